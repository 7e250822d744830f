"""What NVML says of this machine: GPUs, NVLinks and every ordered pair's status (M1 M2).

NVML makes no CUDA context. Each fact is asked by itself: a refusal leaves it None, with a note.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from linkbound.topology.identifiers import list_of_cpus, normal_bus_id
from linkbound.topology.labels import NVSWITCH, derive_pairs
from linkbound.topology.nvml_ask import Asker, Nvml, NvmlRefused, field_number
from linkbound.topology.pci import GT_PER_S_OF_GENERATION, far_end_bus_id, identifying_uuid
from linkbound.topology.types import (
    Capability,
    Gpu,
    Machine,
    NvLink,
    Pair,
    PairPath,
    PathKind,
    PcieLink,
    PeerStatus,
)

SOURCE = "NVML"

# nvml.h, nvmlGpuP2PCapsIndex_t. As plain numbers: pynvml's constant for READ is the tuple (0,).
_CAPABILITIES = {
    Capability.READ: 0,
    Capability.WRITE: 1,
    Capability.NVLINK: 2,
    Capability.ATOMICS: 3,
    Capability.PCI: 4,
}
# nvml.h, nvmlGpuP2PStatus_t.
_STATUS = (
    PeerStatus.OK,
    PeerStatus.CHIPSET_NOT_SUPPORTED,
    PeerStatus.GPU_NOT_SUPPORTED,
    PeerStatus.TOPOLOGY_NOT_SUPPORTED,
    PeerStatus.DISABLED_BY_REGKEY,
    PeerStatus.NOT_SUPPORTED,
    PeerStatus.UNKNOWN,
)
# nvml.h, nvmlGpuTopologyLevel_t; it speaks of PCIe only, also where NVLink joins the pair.
_ANCESTORS = {
    10: PathKind.PIX,
    20: PathKind.PXB,
    30: PathKind.PHB,
    40: PathKind.NODE,
    50: PathKind.SYS,
}
_VIRTUALISATION = {1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
_MAX_LINKS = 36
_REMOTE_IS_SWITCH = 2
_FIELD_SPEED = 164
"""NVML_FI_DEV_NVLINK_GET_SPEED: MB/s of one direction of the link in the scope."""
# nvml.h, NVML_FI_DEV_NVLINK_ERROR_DL_*: errors of the data link layer of the link in the scope.
_FIELD_ERRORS = {"replay": 161, "recovery": 162, "crc": 163}
_FIELD_C2C_LINKS = 170
"""NVML_FI_DEV_C2C_LINK_COUNT: coherent links to the processor."""
_AFFINITY_WORDS = 64
_SCOPE_NODE = 0
_NO_SUCH_LINK = frozenset({"not supported", "invalid argument"})


def read_nvml(nvml: Nvml) -> Machine:
    """The machine as an initialised NVML shows it; a fact that is refused is None with a note."""
    asker = Asker(nvml)
    count = asker.fact("machine", "nvmlDeviceGetCount") or 0
    handles: list[Any] = []
    gpus: list[Gpu] = []
    for index in range(count):
        handle = asker.fact(f"GPU{index}", "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            handles.append(handle)
            gpus.append(_gpu(asker, handle, index))
    pairs = _pairs(asker, handles, gpus)
    return Machine(
        sources=(SOURCE,),
        gpus=tuple(gpus),
        pairs=pairs,
        host=_host(asker, gpus),
        notes=asker.notes(),
    )


def _host(asker: Asker, gpus: Iterable[Gpu]) -> dict[str, str]:
    cuda = asker.fact("machine", "nvmlSystemGetCudaDriverVersion_v2")
    said = {
        "driver": _text(asker.fact("machine", "nvmlSystemGetDriverVersion")),
        "nvml": _text(asker.fact("machine", "nvmlSystemGetNVMLVersion")),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else None,
    }
    modes = {gpu.facts.get("virtualisation") for gpu in gpus}
    if len(modes) == 1:
        said["gpu_virtualisation"] = modes.pop()
    return {name: value for name, value in said.items() if value}


def _gpu(asker: Asker, handle: Any, index: int) -> Gpu:
    label = f"GPU{index}"

    def fact(function: str, *arguments: Any) -> Any:
        return asker.fact(label, function, handle, *arguments)

    pci = fact("nvmlDeviceGetPciInfo")
    bus_id = normal_bus_id(_text(pci.busId) or "") if pci else None
    uuid = identifying_uuid(_text(fact("nvmlDeviceGetUUID")) or "")
    memory = fact("nvmlDeviceGetMemoryInfo")
    bar1 = fact("nvmlDeviceGetBAR1MemoryInfo")
    mig = fact("nvmlDeviceGetMigMode")
    capability = fact("nvmlDeviceGetCudaComputeCapability")
    cpus = fact("nvmlDeviceGetCpuAffinity", _AFFINITY_WORDS)
    nodes = fact("nvmlDeviceGetMemoryAffinity", _AFFINITY_WORDS, _SCOPE_NODE)
    return Gpu(
        key=uuid or bus_id or label,
        label=label,
        uuid=uuid,
        bus_id=bus_id,
        vendor="NVIDIA",
        model=_text(fact("nvmlDeviceGetName")),
        device_id=_device_id(pci.pciDeviceId) if pci else None,
        memory_bytes=int(memory.total) if memory else None,
        bar1_bytes=int(bar1.bar1Total) if bar1 else None,
        compute_capability=".".join(map(str, capability)) if capability else None,
        numa_node=_single(_bits(nodes)),
        cpu_affinity=list_of_cpus(_bits(cpus)) or None,
        pcie=_pcie(fact),
        nvlinks=_nvlinks(asker, handle, label),
        mig=bool(mig[0]) if mig else None,
        facts=_facts(asker, handle, label),
    )


def _facts(asker: Asker, handle: Any, label: str) -> dict[str, str]:
    persistence = asker.fact(label, "nvmlDeviceGetPersistenceMode", handle)
    mode = asker.fact(label, "nvmlDeviceGetVirtualizationMode", handle)
    facts = {}
    if persistence is not None:
        facts["Persistence Mode"] = "Enabled" if persistence else "Disabled"
    if mode in _VIRTUALISATION:
        facts["virtualisation"] = _VIRTUALISATION[mode]
    (coherent,) = _fields(asker, handle, [(_FIELD_C2C_LINKS, 0)])
    if coherent:
        facts["C2C links"] = f"{coherent:.0f}"
    return facts


def _fields(
    asker: Asker, handle: Any, wanted: Sequence[tuple[int, int]]
) -> tuple[float | None, ...]:
    """The numbers of (field, link); None for a field that this GPU has not, which is no news."""
    try:
        values = asker.nvml.ask("nvmlDeviceGetFieldValues", handle, list(wanted))
    except NvmlRefused:
        return (None,) * len(wanted)
    return tuple(field_number(value) for value in values)


def _pcie(fact: Any) -> PcieLink | None:
    generation, width = (
        fact("nvmlDeviceGetCurrPcieLinkGeneration"),
        fact("nvmlDeviceGetCurrPcieLinkWidth"),
    )
    max_generation, max_width = (
        fact("nvmlDeviceGetMaxPcieLinkGeneration"),
        fact("nvmlDeviceGetMaxPcieLinkWidth"),
    )
    link = PcieLink(
        gt_per_s=GT_PER_S_OF_GENERATION.get(generation),
        width=width or None,
        max_gt_per_s=GT_PER_S_OF_GENERATION.get(max_generation),
        max_width=max_width or None,
    )
    return None if link == PcieLink() else link


def _nvlinks(asker: Asker, handle: Any, label: str) -> tuple[NvLink, ...]:
    states: list[bool] = []
    for index in range(_MAX_LINKS):
        try:
            states.append(bool(asker.nvml.ask("nvmlDeviceGetNvLinkState", handle, index)))
        except NvmlRefused as refusal:
            # This is how NVML says that the GPU has no further link, or none at all.
            if refusal.reason.lower() not in _NO_SUCH_LINK:
                asker.note(str(refusal), f"{label} link {index}")
            break
    rates = _link_rates(asker, handle, label, len(states))
    wanted = [(field, index) for index in range(len(states)) for field in _FIELD_ERRORS.values()]
    counts = _fields(asker, handle, wanted) if wanted else ()
    return tuple(
        NvLink(
            index=index,
            active=active,
            bytes_per_s=rates.get(index) if active else None,
            remote=_remote(asker, handle, index, label) if active else None,
            errors={
                name: int(count)
                for name, count in zip(
                    _FIELD_ERRORS, counts[len(_FIELD_ERRORS) * index :], strict=False
                )
                if count is not None
            },
        )
        for index, active in enumerate(states)
    )


def _link_rates(asker: Asker, handle: Any, label: str, count: int) -> dict[int, float]:
    """Bytes a second of one direction, by link; links whose rate is refused are left out."""
    if not count:
        return {}
    wanted = [(_FIELD_SPEED, index) for index in range(count)]
    values = asker.fact(label, "nvmlDeviceGetFieldValues", handle, wanted)
    if values is None:
        return {}
    rates = {}
    for index, value in enumerate(values):
        megabytes_per_s = field_number(value)
        if megabytes_per_s is None:
            refusal = f"NVLink speed: return code {value.nvmlReturn}"
            asker.note(refusal, f"{label} link {index}")
        elif megabytes_per_s:
            rates[index] = float(megabytes_per_s) * 1e6
    return rates


def _remote(asker: Asker, handle: Any, index: int, label: str) -> str | None:
    about = f"{label} link {index}"
    kind = asker.fact(about, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, index)
    pci = asker.fact(about, "nvmlDeviceGetNvLinkRemotePciInfo", handle, index)
    bus_id = far_end_bus_id(_text(pci.busId) or "") if pci else None
    if kind == _REMOTE_IS_SWITCH:
        return f"{NVSWITCH} {bus_id}" if bus_id else NVSWITCH
    return bus_id


def _pairs(asker: Asker, handles: Sequence[Any], gpus: Sequence[Gpu]) -> tuple[PairPath, ...]:
    """Every ordered pair, asked by itself; joined by NVLink where the links say so."""
    linked = {path.pair: path for path in derive_pairs(gpus, (), ports_shown=True)}
    paths = []
    for src, src_handle in zip(gpus, handles, strict=True):
        for dst, dst_handle in zip(gpus, handles, strict=True):
            if src.key == dst.key:
                continue
            about = f"{src.label} -> {dst.label}"
            ancestor = asker.fact(
                about, "nvmlDeviceGetTopologyCommonAncestor", src_handle, dst_handle
            )
            pair = Pair(src=src.key, dst=dst.key)
            path = linked.get(pair) or PairPath(pair=pair, kind=_ANCESTORS.get(ancestor))
            status = _status(asker, about, src_handle, dst_handle)
            paths.append(structs.replace(path, status=status))
    return tuple(paths)


def _status(
    asker: Asker, about: str, src_handle: Any, dst_handle: Any
) -> Mapping[Capability, PeerStatus]:
    status = {}
    for capability, number in _CAPABILITIES.items():
        code = asker.fact(about, "nvmlDeviceGetP2PStatus", src_handle, dst_handle, number)
        if code is not None:
            known = 0 <= code < len(_STATUS)
            status[capability] = _STATUS[code] if known else PeerStatus.UNKNOWN
    return status


def _text(value: Any) -> str | None:
    """NVML's text: bytes in older bindings."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _device_id(number: int) -> str:
    """`10de:2335` of 0x233510DE: the device stands above the vendor."""
    return f"{number & 0xFFFF:04x}:{number >> 16 & 0xFFFF:04x}"


def _bits(words: Sequence[int] | None) -> frozenset[int]:
    return frozenset(
        64 * at + bit for at, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1
    )


def _single(numbers: frozenset[int]) -> int | None:
    return next(iter(numbers)) if len(numbers) == 1 else None
