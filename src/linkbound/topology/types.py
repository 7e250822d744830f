"""One model of a machine, from any source; what no source says is None (M1, M2, M4)."""

from collections.abc import Mapping
from enum import StrEnum

from linkbound.values import Value


class PathKind(StrEnum):
    """How two devices are joined, in the words of `nvidia-smi topo -m`, best first."""

    SELF = "X"
    NVLINK = "NV"
    XGMI = "XGMI"
    C2C = "C2C"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


class Capability(StrEnum):
    """What one GPU may do with another's memory."""

    READ = "read"
    WRITE = "write"
    NVLINK = "nvlink"
    ATOMICS = "atomics"
    PCI = "pci"
    ACCESS = "access"
    """What the CUDA runtime answers (cudaDeviceCanAccessPeer)."""
    NATIVE_ATOMICS = "native_atomics"
    """Whether CUDA carries out atomics on the peer's memory over the link itself."""


class PeerStatus(StrEnum):
    """The driver's answer with its reason (nvml.h, nvmlGpuP2PStatus_t)."""

    OK = "OK"
    CHIPSET_NOT_SUPPORTED = "CNS"
    GPU_NOT_SUPPORTED = "GNS"
    TOPOLOGY_NOT_SUPPORTED = "TNS"
    DISABLED_BY_REGKEY = "DR"
    NOT_SUPPORTED = "NS"
    DENIED = "denied"
    """Refused without a reason: what the CUDA runtime says."""
    UNKNOWN = "U"


class DeviceKind(StrEnum):
    """A node of the tree."""

    SOCKET = "socket"
    NUMA_NODE = "numa_node"
    HOST_BRIDGE = "host_bridge"
    ROOT_PORT = "root_port"
    SWITCH_PORT = "switch_port"
    BRIDGE = "bridge"
    GPU = "gpu"
    NIC = "nic"
    NVSWITCH = "nvswitch"
    OTHER = "other"


class PcieLink(Value, frozen=True, kw_only=True):
    """Generation as a transfer rate (GT/s) and lanes, now and at most."""

    gt_per_s: float | None = None
    width: int | None = None
    max_gt_per_s: float | None = None
    max_width: int | None = None


class NvLink(Value, frozen=True, kw_only=True):
    """One NVLink (or XGMI) lane bundle of a GPU."""

    index: int
    active: bool | None = None
    bytes_per_s: float | None = None
    """One direction, as the device reports it."""
    remote: str | None = None
    """Bus id of the far end, or `nvswitch`."""
    errors: Mapping[str, int] = {}
    """Counts since the driver was loaded: `replay`, `recovery`, `crc`; those that answer."""


class Gpu(Value, frozen=True, kw_only=True):
    """One GPU. `key` is its identity inside the machine: UUID, else bus id, else label."""

    key: str
    label: str
    """`GPU0`, as the tools print it."""
    uuid: str | None = None
    bus_id: str | None = None
    vendor: str | None = None
    model: str | None = None
    device_id: str | None = None
    memory_bytes: int | None = None
    bar1_bytes: int | None = None
    compute_capability: str | None = None
    numa_node: int | None = None
    cpu_affinity: str | None = None
    pcie: PcieLink | None = None
    nvlinks: tuple[NvLink, ...] = ()
    mig: bool | None = None
    parent: str | None = None
    """Key of the device above it in the tree."""
    facts: Mapping[str, str] = {}
    """Anything else that a source printed, under its own words."""


class Device(Value, frozen=True, kw_only=True):
    """A node of the tree that is not a GPU."""

    key: str
    kind: DeviceKind
    label: str
    bus_id: str | None = None
    parent: str | None = None
    numa_node: int | None = None
    pcie: PcieLink | None = None
    facts: Mapping[str, str] = {}


class Pair(Value, frozen=True, kw_only=True):
    """An ordered pair of GPU keys."""

    src: str
    dst: str


class PairPath(Value, frozen=True, kw_only=True):
    """What is known of src -> dst: never mirrored from dst -> src."""

    pair: Pair
    kind: PathKind | None = None
    nvlink_count: int | None = None
    hops: int | None = None
    status: Mapping[Capability, PeerStatus] = {}
    performance_rank: int | None = None
    """CUDA's order of links: lower is faster; it compares pairs of one host only."""
    derived: bool = False
    """`kind` was worked out from a tree and its links; no tool printed it."""

    @property
    def label(self) -> str | None:
        """`NV18`, `PHB`, ...; None where no source says."""
        if self.kind is None:
            return None
        if self.kind is PathKind.NVLINK and self.nvlink_count:
            return f"NV{self.nvlink_count}"
        return self.kind.value


class NicPath(Value, frozen=True, kw_only=True):
    """How near a NIC is to a GPU."""

    gpu: str
    nic: str
    kind: PathKind
    derived: bool = False
    """Worked out from a tree; no tool printed it."""


class NumaNode(Value, frozen=True, kw_only=True):
    """One NUMA node: its processors (list notation) and memory."""

    index: int
    cpus: str | None = None
    memory_bytes: int | None = None


class Claim(Value, frozen=True, kw_only=True):
    """What one source says."""

    source: str
    value: str


class Contradiction(Value, frozen=True, kw_only=True):
    """Sources that disagree: both are kept and shown."""

    what: str
    claims: tuple[Claim, ...]


class Machine(Value, frozen=True, kw_only=True):
    """A machine, or what one source shows of it."""

    sources: tuple[str, ...]
    """Names of the files or probes it was filled from."""
    gpus: tuple[Gpu, ...] = ()
    devices: tuple[Device, ...] = ()
    pairs: tuple[PairPath, ...] = ()
    nic_paths: tuple[NicPath, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    host: Mapping[str, str] = {}
    """Driver, CUDA, NCCL, kernel, virtualisation, ...: condition keys, each as printed."""
    contradictions: tuple[Contradiction, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read, and what that leaves unknown."""

    def gpu(self, name: str) -> Gpu:
        """The GPU with this key or label. Raises KeyError."""
        for gpu in self.gpus:
            if name in (gpu.key, gpu.label):
                return gpu
        raise KeyError(name)

    def path(self, src: str, dst: str) -> PairPath:
        """What is known of the ordered pair; an empty PairPath where nothing is."""
        pair = Pair(src=self.gpu(src).key, dst=self.gpu(dst).key)
        for path in self.pairs:
            if path.pair == pair:
                return path
        return PairPath(pair=pair)
