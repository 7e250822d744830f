"""One row of a live measurement, with all its dimensions: what a child hands back (L1-L6).

Copies and collectives share this type; a row without samples says why in `reason`.
"""

from collections.abc import Mapping
from enum import StrEnum
from statistics import median

from linkbound.evidence.types import Reason
from linkbound.links.types import Arm, Launch, Operation
from linkbound.values import Value

HOST = "host"
"""The label of the host's memory in a group."""


class Direction(StrEnum):
    """Which ways bytes go at once."""

    ONE_WAY = "one_way"
    BOTH_WAYS = "both_ways"


class Flag(StrEnum):
    """What makes a sample less than it seems; the row is kept and says so."""

    THROTTLED = "throttled"
    """The driver named a reason for lower clocks, other than idling or a set limit."""
    BUSY = "busy"
    """Another process was on one of the GPUs."""
    UNSTEADY = "unsteady"
    """The time ran out before the spread was reached."""
    GATE_TIMEOUT = "gate_timeout"
    """A gate ended by its own limit: such samples are left out, and this says that there were."""
    CACHED = "cached"
    """The buffer fits the L2 of its GPU, and repeated calls use the same one."""


class LinkRow(Value, frozen=True, kw_only=True):
    """One cell of a sweep: samples of one call in seconds, and under which conditions."""

    operation: Operation
    implementation: str
    """As in CurveKey: copy_engine, sm, driver, pinned, pageable, nccl, one_shot, ..."""
    method: str
    """What is called and by whom: `ce_push`, `sm_read`, `all_reduce in place`, ..."""
    group: tuple[str, ...]
    """GPU labels in rank order; for copies (src, dst), where one may be `host`."""
    arm: Arm | None = None
    launch: Launch = Launch.EAGER
    direction: Direction = Direction.ONE_WAY
    concurrency: str = "alone"
    """`alone`, or the name of the set or of the work that ran at the same time."""
    size_bytes: int
    """Bytes of one call in one direction."""
    pieces: int = 1
    """Copies that these bytes were cut into."""
    samples_s: tuple[float, ...] = ()
    """Seconds of one call, every sample in the order taken."""
    calls: int = 1
    """Calls back to back inside one timed window; a sample is the window over the calls."""
    each_way_bytes_per_s: tuple[float, ...] = ()
    """Both ways: the median rate of src -> dst, then of dst -> src, each in its own window."""
    wrong: int | None = None
    """Elements that the owner of the memory found wrong; None where nothing was checked."""
    wrong_at_bytes: int | None = None
    """Offset of the first wrong element."""
    alone_s: float | None = None
    """Median seconds of the same call alone in the same child: what a share is taken of."""
    cpu_s_per_gb: float | None = None
    """CPU seconds of this process for 1e9 bytes, waiting without spinning."""
    timer: str = "events"
    """`gate+events`, `events`, `host`, `globaltimer`: what the samples were read from."""
    flags: tuple[Flag, ...] = ()
    numa_node: int | None = None
    """Node of the host buffer; None where no host buffer of ours takes part."""
    counters: Mapping[str, int] = {}
    """Growth of the hardware's byte counters over the cell, `GPU0 nvlink_tx_bytes`."""
    facts: Mapping[str, str] = {}
    """Anything else that belongs to the row: chunk, transport of the channels, algorithm."""
    reason: Reason | None = None
    """Why there are no samples."""

    @property
    def time_s(self) -> float | None:
        """Median seconds of one call; None of no samples."""
        return median(self.samples_s) if self.samples_s else None

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes moved over the median window; both ways counts both directions."""
        if not self.samples_s:
            return None
        ways = 2 if self.direction is Direction.BOTH_WAYS else 1
        return ways * self.size_bytes / median(self.samples_s)

    @property
    def retained_share(self) -> float | None:
        """Rate together over rate alone, both as medians; None where one of them is missing."""
        if not self.samples_s or self.alone_s is None:
            return None
        return self.alone_s / median(self.samples_s)
