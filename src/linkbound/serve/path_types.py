"""Over which path the data of a run crossed, by witnesses that do not know each other (P3)."""

from collections.abc import Mapping
from enum import StrEnum

from linkbound.evidence.types import Finding
from linkbound.values import Value


class PathAnswer(StrEnum):
    """Where the data crosses."""

    DIRECT = "direct"
    """From GPU to GPU, over NVLink or PCIe."""
    STAGED = "staged"
    """Through memory of the host, or through a network without GPUDirect."""
    MIXED = "mixed"
    """Some of it direct, some staged: the reason says which."""
    UNKNOWN = "unknown"


class WitnessKind(StrEnum):
    """Who says it: a setting is intent, a log line a choice, a byte counter a fact."""

    NCCL = "nccl"
    ENGINE = "engine"
    COUNTERS = "counters"


class Witness(Value, frozen=True, kw_only=True):
    """What one witness says, and what it cannot say."""

    kind: WitnessKind
    source: str
    answer: PathAnswer
    why: str
    pairs: tuple[str, ...] = ()
    """`0 -> 1 P2P/CUMEM x24`: the ordered pairs behind the answer, where they are shown."""


class PathVerdict(Value, frozen=True, kw_only=True):
    """The answer that the witnesses give together."""

    answer: PathAnswer
    why: str
    witnesses: tuple[Witness, ...]
    findings: tuple[Finding, ...] = ()


class OwnReduce(StrEnum):
    """Whether an engine moves data from GPU to GPU by kernels of its own."""

    LIVE = "live"
    """A line shows that they are in use: addresses registered, pipeline set up."""
    LISTED = "listed"
    """Among the enabled ways; which one a call takes is not printed."""
    OFF = "off"
    """The engine says that only NCCL, or nothing of its own, is enabled."""
    UNKNOWN = "unknown"


class EngineLog(Value, frozen=True, kw_only=True):
    """What an engine says of itself. None and empty: the log has no line on it."""

    source: str
    engine: str
    version: str | None = None
    nccl_version: str | None = None
    world_size: int | None = None
    backends: Mapping[str, tuple[str, ...]] = {}
    """All-reduce ways of a group (`tp:0`), in the order in which they are tried."""
    own_reduce: OwnReduce = OwnReduce.UNKNOWN
    own_reduce_why: str = ""
    """The line behind it."""
    disabled_because: tuple[str, ...] = ()
    """Reasons that the engine prints for not using its own kernels."""
    multicast: bool | None = None
    """Whether it says that multicast is in use; False where it says that it is not."""
    facts: Mapping[str, str] = {}
    """Memory, cache and start-up figures, as printed."""
