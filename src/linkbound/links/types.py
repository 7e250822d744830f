"""Curves: the time of one operation against its size, and under which conditions (L1, L2, L4)."""

from enum import StrEnum

from linkbound.evidence.types import Provenance
from linkbound.values import Value


class Arm(StrEnum):
    """One way in which GPUs may talk. Each is an explicit environment per engine."""

    P2P = "p2p"
    """Everything on: NCCL peer-to-peer and the engine's own all-reduce."""
    NCCL = "nccl"
    """NCCL peer-to-peer on, the engine's own all-reduce off."""
    STAGED = "staged"
    """Every consumer of peer-to-peer off: data goes through host memory."""
    NET = "net"
    """Shared memory off too: sockets inside the host."""


class Operation(StrEnum):
    """What is timed."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND_RECV = "send_recv"
    COPY = "copy"
    """GPU to GPU, one way."""
    COPY_BOTH_WAYS = "copy_both_ways"
    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"
    HOST_DEVICE_BOTH_WAYS = "host_device_both_ways"
    LOCAL_COPY = "local_copy"
    """Inside one GPU's memory."""
    LATENCY = "latency"
    """One of the figures named in `method`: never without it."""


class Launch(StrEnum):
    """How the work reaches the device."""

    EAGER = "eager"
    GRAPH = "graph"


class CurveKey(Value, frozen=True, kw_only=True):
    """What a curve is of. Two curves with equal keys are of the same thing."""

    operation: Operation
    implementation: str
    """nccl, one_shot, two_shot, symm_mem, engine, engine_nccl, copy_engine, sm, driver, pinned,
    pageable."""
    group: tuple[str, ...]
    """GPU labels in rank order; for copies (src, dst)."""
    arm: Arm | None = None
    launch: Launch = Launch.EAGER
    concurrency: str = "alone"
    method: str = ""
    """Tool and test that timed it: `nccl-tests all_reduce_perf`, `nvbandwidth ...`."""


class CurvePoint(Value, frozen=True, kw_only=True):
    """The time of one call at one size; `low` and `high` from repeats where there are any."""

    size_bytes: int
    time_s: float
    low_s: float | None = None
    high_s: float | None = None
    n: int | None = None
    wrong: int | None = None
    """Elements that verification found wrong; None where nothing was verified."""


class CurveFit(Value, frozen=True, kw_only=True):
    """t = alpha + n / B in two regimes (L2), each None where the curve does not reach it."""

    latency_s: float | None
    latency_spread_s: float | None
    bytes_per_s: float | None
    """Asymptotic bandwidth: size over time for the slope of the largest decade."""
    bytes_per_s_spread: float | None
    half_size_bytes: float | None
    """Size at which half of that bandwidth is reached."""


class Timed(Value, frozen=True, kw_only=True):
    """The time of a call read off a curve, in seconds, and how it was read."""

    time_s: float
    low_s: float
    high_s: float
    provenance: Provenance


class Curve(Value, frozen=True, kw_only=True):
    """Points in ascending size, never empty, with what they rest on."""

    key: CurveKey
    points: tuple[CurvePoint, ...]
    provenance: Provenance = Provenance.MEASURED
    source: str = ""
    """File, record or publication that the points are from."""
    record_ids: tuple[str, ...] = ()


class PairRate(Value, frozen=True, kw_only=True):
    """A bandwidth that a tool printed for src -> dst, in bytes a second."""

    src: str
    """GPU label, `host`, or `others` (all other GPUs of the test)."""
    dst: str
    operation: Operation
    implementation: str
    method: str
    bytes_per_s: float
    size_bytes: int | None = None
    """Bytes of one copy; None where the tool does not print its buffer size."""
    arm: Arm | None = None
    """None where the file does not show whether peer access was open."""
    concurrency: str = "alone"
    each_way_bytes_per_s: tuple[float, ...] = ()
    """The two directions of a both-ways copy, in printed order, where they are printed."""


class PairLatency(Value, frozen=True, kw_only=True):
    """A time that a tool calls latency; `method` says which of the four kinds it is."""

    src: str
    dst: str
    method: str
    latency_s: float
    arm: Arm | None = None


class PeerAccess(Value, frozen=True, kw_only=True):
    """The CUDA runtime's answer: may `src` address the memory of `dst`?"""

    src: str
    dst: str
    granted: bool


class Waived(Value, frozen=True, kw_only=True):
    """A test that the tool did not run or did not finish, in the tool's own words."""

    test: str
    status: str
    reason: str | None = None


class TestDevice(Value, frozen=True, kw_only=True):
    """A rank of nccl-tests and the GPU under it."""

    __test__ = False  # the name starts like a test class of pytest

    rank: int
    host: str
    device: int
    """CUDA ordinal inside the process that owns it."""
    bus_id: str
    name: str


class Timing(Value, frozen=True, kw_only=True):
    """One half of a row of nccl-tests."""

    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: int | None = None
    """Wrong elements; None for N/A and for versions that print an error instead."""
    error: float | None = None
    """Largest deviation, of versions before the count: rounding, not corruption."""


class NcclTestsRow(Value, frozen=True, kw_only=True):
    """One size of one run."""

    size_bytes: int
    count: int
    dtype: str
    redop: str | None = None
    root: int | None = None
    out_of_place: Timing
    in_place: Timing | None = None
    """None where the row was cut."""


class NcclTestsRun(Value, frozen=True, kw_only=True):
    """One table of nccl-tests with what stands around it."""

    source: str
    collective: str | None
    """`all_reduce`, `sendrecv`, ...: None where neither the output nor the file name says."""
    ranks: int | None
    launch: Launch | None
    version: str | None
    nccl_version: str | None
    devices: tuple[TestDevice, ...]
    rows: tuple[NcclTestsRow, ...]
    out_of_bounds: int | None
    """Sizes that failed verification, by the summary line; None where it is missing."""
    complete: bool
    notes: tuple[str, ...]


class NvbandwidthTest(Value, frozen=True, kw_only=True):
    """One matrix set of nvbandwidth: cells are GB/s, or ns for latencies; None is N/A."""

    name: str
    description: str
    """The title with the arrow that says which axis is the source."""
    matrix: tuple[tuple[float | None, ...], ...]


class NvbandwidthRun(Value, frozen=True, kw_only=True):
    """What one output of nvbandwidth holds."""

    source: str
    version: str | None
    driver: str | None
    devices: tuple[str, ...]
    tests: tuple[NvbandwidthTest, ...]
    waived: tuple[Waived, ...]
    notes: tuple[str, ...]


class P2pTestRun(Value, frozen=True, kw_only=True):
    """What one output of p2pBandwidthLatencyTest holds."""

    source: str
    devices: tuple[str, ...]
    access: tuple[PeerAccess, ...]
    rates: tuple[PairRate, ...]
    latencies: tuple[PairLatency, ...]
    notes: tuple[str, ...]
