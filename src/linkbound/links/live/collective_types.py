"""What a job of collectives is told to do, cell by cell, and what its parts agree on (L4)."""

from enum import StrEnum

from linkbound.links.types import Arm, Launch, Operation
from linkbound.values import Value


class Processes(StrEnum):
    """How the ranks are spread over processes."""

    ONE_A_GPU = "one_a_gpu"
    """As engines do: the record."""
    ONE_FOR_ALL = "one_for_all"
    """All ranks in one process, where NCCL uses plain pointers: the control."""


class Placement(StrEnum):
    """Where the result goes."""

    OUT_OF_PLACE = "out_of_place"
    IN_PLACE = "in_place"


class Family(StrEnum):
    """Who moves the data."""

    NCCL = "nccl"
    OWN = "own"
    """Our kernels over mapped peer memory: `one_shot_push`, `one_shot`, `two_shot`."""
    TORCH = "torch"
    """torch's symmetric memory, where torch is installed."""


DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
"""Element types that are sent, with their size; bfloat16 is what engines reduce."""


class CollectiveJob(Value, frozen=True, kw_only=True):
    """All cells of one family, group and arm: one NCCL communicator serves them."""

    family: Family
    group: tuple[str, ...]
    """GPU labels in rank order."""
    devices: tuple[str, ...]
    """PCI bus id, or the CUDA ordinal, of each rank's GPU."""
    uuids: tuple[str | None, ...] = ()
    """Of each rank's GPU, for its byte counters; empty or None where unknown."""
    arm: Arm
    processes: Processes = Processes.ONE_A_GPU
    operations: tuple[Operation, ...] = (Operation.ALL_REDUCE,)
    sizes_bytes: tuple[int, ...]
    launches: tuple[Launch, ...] = (Launch.EAGER, Launch.GRAPH)
    placements: tuple[Placement, ...] = (Placement.OUT_OF_PLACE, Placement.IN_PLACE)
    dtype: str = "bfloat16"
    work: bool = False
    """Whether arithmetic keeps every GPU busy while the samples are taken."""
    seed: int = 1
    samples: int = 10
    """Samples of a cell, fewer only where their spread is small already."""
    cell_s: float = 0.02
    """Seconds that the samples of one cell may take before the spread decides."""
    limit_s: float = 3600.0
    """Seconds that the whole job may take: silence ends it long before."""

    def __post_init__(self) -> None:
        if len(self.group) != len(self.devices) or len(self.group) < 2:
            raise ValueError("a collective needs at least two GPUs, each with its device")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"'{self.dtype}' is none of {', '.join(DTYPE_BYTES)}")


GRAPH_MOST_BYTES = 16 * 1024**2
"""Above, a call takes so long that its launch is hidden: only eager calls are timed, if any are."""


class Cell(Value, frozen=True, kw_only=True):
    """One row to be: an operation at a size, launched and placed in one way."""

    operation: Operation
    implementation: str
    variant: str = ""
    """Which of several ways of the implementation: `push`, `pull`."""
    size_bytes: int
    launch: Launch
    placement: Placement


class RankReport(Value, frozen=True, kw_only=True):
    """What the ranks of one process found in one cell."""

    samples_s: tuple[float, ...] = ()
    calls: int = 1
    work_ended: bool = False
    """The work beside ended before the samples did."""
    wrong: int | None = None
    """None where nothing was checked."""
    wrong_at_bytes: int | None = None
    """First wrong byte, counted in the result of the rank that found it."""
