"""What a log of NCCL or RCCL shows: communicators, the path of every channel, settings (P3)."""

from collections.abc import Mapping
from enum import StrEnum

from linkbound.links.types import Operation
from linkbound.values import Value


class TransportKind(StrEnum):
    """Over what a channel runs, in NCCL's words."""

    P2P = "P2P"
    SHM = "SHM"
    NET = "NET"
    OTHER = "other"


class Communicator(Value, frozen=True, kw_only=True):
    """One rank's view of a communicator."""

    pointer: str
    rank: int
    ranks: int
    cuda_device: int | None = None
    nvml_device: int | None = None
    bus_id: str | None = None
    comm_id: str | None = None
    """Equal on all ranks; None in versions before it was printed and in split communicators."""
    parent: str | None = None
    nodes: int | None = None
    complete: bool = False
    """Whether the log shows the end of its initialisation."""


class Transport(Value, frozen=True, kw_only=True):
    """Channels of one kind from one rank to another."""

    src_rank: int
    dst_rank: int
    src_device: str | None
    """NVML index, or hexadecimal bus id before 2.18.3, as printed."""
    dst_device: str | None
    kind: TransportKind
    detail: str
    """`CUMEM`, `IPC/read`, `direct pointer`, `direct/direct`, `IB/1/GDRDMA`, ..."""
    channels: int
    comm_id: str | None = None
    gdr: bool | None = None
    """GPUDirect RDMA; None where no network is used."""
    copy_engine: bool = False


class P2pType(Value, frozen=True, kw_only=True):
    """The line `Check P2P Type`. None where the version does not print the field."""

    all_direct: bool
    """All local pairs are within the permitted level, without a relay."""
    direct_mode: bool
    """Two ranks share a process."""
    all_cuda: bool | None = None
    """The driver grants peer access to all pairs, whatever the level: no proof of use."""


class Channels(Value, frozen=True, kw_only=True):
    """How many channels a communicator was given."""

    collective: int
    nvls: int | None
    p2p: int
    p2p_per_peer: int


class GraphPattern(Value, frozen=True, kw_only=True):
    """A search result: patterns 1-3 trees, 4 ring, 5 NVLS; GB/s as NCCL assumes them."""

    pattern: int
    channels: int
    intra_gb_per_s: float
    inter_gb_per_s: float
    intra_type: str
    inter_type: str


class GraphPath(Value, frozen=True, kw_only=True):
    """NCCL's path between two GPUs, named by their bus ids as printed."""

    src: str
    dst: str
    hops: int
    gb_per_s: float
    type: str


class NcclProtocol(StrEnum):
    """How NCCL marks data as arrived: by a flag beside it, or by a step counter."""

    LL = "LL"
    LL128 = "LL128"
    SIMPLE = "SIMPLE"


class NcclChoice(Value, frozen=True, kw_only=True):
    """What NCCL says it takes for a collective of one size (subsystem TUNING, rank 0)."""

    operation: Operation | None
    """None in versions up to 2.22, which print the size alone."""
    size_bytes: int
    algorithm: str
    """`RING`, `TREE`, `NVLS`, ..., as printed or as the number means."""
    protocol: NcclProtocol | None
    """None for one that is not known here."""
    calls: int
    """Times that it was printed: calls from a CUDA graph print when they are captured only."""


class LogWarning(Value, frozen=True, kw_only=True):
    """A text of `NCCL WARN` or a refusal, once, with how often it was printed."""

    text: str
    count: int


class NcclLog(Value, frozen=True, kw_only=True):
    """Everything that one log shows; several processes may have written it."""

    source: str
    library: str | None
    """`nccl` or `rccl`; None where no version line is in the log."""
    version: str | None
    communicators: tuple[Communicator, ...]
    transports: tuple[Transport, ...]
    rings: tuple[tuple[int, ...], ...]
    settings: Mapping[str, str]
    """Variables that the log says were set by the environment."""
    p2p_types: tuple[P2pType, ...]
    channels: tuple[Channels, ...]
    patterns: tuple[GraphPattern, ...]
    paths: tuple[GraphPath, ...]
    choices: tuple[NcclChoice, ...] = ()
    nvls_available: bool | None
    """True where any device says so; None where no line speaks of it."""
    warnings: tuple[LogWarning, ...]
    refusals: tuple[LogWarning, ...]
    """What NCCL says of pairs that the driver refused."""
    torn_lines: int
    notes: tuple[str, ...]


class LogPath(StrEnum):
    """Over what the data of a log's communicators crosses."""

    DIRECT = "direct"
    STAGED = "staged"
    NET = "net"
    MIXED = "mixed"
    UNKNOWN = "unknown"


class OffBecause(StrEnum):
    """Why peer-to-peer is not used."""

    SETTING = "setting"
    """A variable asks for it."""
    POLICY = "policy"
    """The driver grants it, NCCL's own rule of distance does not use it."""
    DRIVER = "driver"
    """The driver refuses it."""


class PathSummary(Value, frozen=True, kw_only=True):
    """The path, with the pairs it was read from and the sentence that says why."""

    path: LogPath
    pairs: tuple[Transport, ...]
    off_because: OffBecause | None
    why: str
