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
    """nccl, one_shot, two_shot, symm_mem, engine, copy_engine, sm, driver, pinned, pageable."""
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
