"""The live machine: NVML, CUDA, /sys, /proc; works without GPUs, driver or PCI tree (M1 M2 M3)."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import structs

from linkbound.topology.cuda_peers import probe_cuda
from linkbound.topology.merge import merge
from linkbound.topology.nvml import read_nvml
from linkbound.topology.nvml_ask import NvmlRefused
from linkbound.topology.parse_sysfs import machine_from_attributes
from linkbound.topology.types import Machine, NumaNode

_ATTRIBUTES = (
    "vendor",
    "device",
    "class",
    "numa_node",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "resource",
)
_NODE = re.compile(r"^node(\d{1,6})$")
_MEM_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d{1,15}) kB", re.MULTILINE)
_MEM_TOTAL = re.compile(r"MemTotal:\s+(\d{1,15}) kB")
_IOMMU_WORD = re.compile(r"^(?:\w*iommu\w*|pci|pcie_acs_override)=")
_CONTAINER_WORDS = ("docker", "kubepods", "containerd", "lxc", "libpod")
_MAX_CHARS = 1 << 20


class _Pynvml:
    """NVML through nvidia-ml-py."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def ask(self, function: str, *arguments: Any) -> Any:
        call = getattr(self.module, function, None)
        if call is None:
            raise NvmlRefused(function, "not in this nvidia-ml-py")
        try:
            return call(*arguments)
        except self.module.NVMLError as error:
            raise NvmlRefused(function, str(error)) from error


def probe_machine() -> Machine:
    """This machine from NVML, CUDA and /sys; notes name the library or driver that is missing."""
    host = read_host()
    seen = read_sysfs()
    nvml = _probe_nvml()
    cuda = (probe_cuda(),) if len(nvml.gpus) > 1 else ()
    return merge((nvml, *cuda, structs.replace(seen, host={**seen.host, **host})))


def _probe_nvml() -> Machine:
    try:
        import pynvml
    except ModuleNotFoundError:
        return _nothing("nvidia-ml-py is not installed: NVIDIA's driver cannot be asked.")
    nvml = _Pynvml(pynvml)
    try:
        nvml.ask("nvmlInit")
    except NvmlRefused as refusal:
        return _nothing(f"No NVIDIA driver answers ({refusal}): no GPU was asked.")
    try:
        return read_nvml(nvml)
    finally:
        with suppress(NvmlRefused):
            nvml.ask("nvmlShutdown")


def _nothing(note: str) -> Machine:
    """NVML did not answer, so it is no source of what is shown."""
    return Machine(sources=(), notes=(note,))


def read_sysfs(root: Path = Path("/sys")) -> Machine:
    """The PCI tree and NUMA nodes that Linux shows below `root`; a note where there are none."""
    source = str(root)
    folder = root / "bus/pci/devices"
    record = {device.name: _attributes(device, root) for device in _entries(folder)}
    if record:
        machine = machine_from_attributes(record, source)
    else:
        note = f"{folder} shows no device (WSL2, containers, other systems): no PCI tree is known."
        machine = Machine(sources=(source,), notes=(note,))
    return structs.replace(machine, numa_nodes=tuple(_numa_nodes(root)), host=_iommu(root))


def read_host(root: Path = Path("/")) -> dict[str, str]:
    """Kernel, product and signs of a virtual machine or container, from files below `root`."""
    said = {
        "kernel": _read(root / "proc/sys/kernel/osrelease"),
        "product": _read(root / "sys/class/dmi/id/product_name"),
        "virtualisation": _virtualisation(root),
        "container": _container(root),
        "iommu_arguments": _iommu_arguments(root),
    }
    return {name: value for name, value in said.items() if value}


def read_available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that new processes can have without swapping; None where the kernel does not say."""
    found = _MEM_AVAILABLE.search(_read(root / "proc/meminfo") or "")
    return int(found[1]) * 1024 if found else None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _attributes(device: Path, root: Path) -> dict[str, str | None]:
    said: dict[str, str | None] = {name: _read(device / name) for name in _ATTRIBUTES}
    said["path"] = str(device.resolve())
    said["driver"] = _target(device / "driver")
    group = _target(device / "iommu_group")
    said["iommu_group"] = group
    if group is not None:
        said["iommu_group_type"] = _read(root / "kernel/iommu_groups" / group / "type")
    return said


def _numa_nodes(root: Path) -> Iterator[NumaNode]:
    found = ((_NODE.match(path.name), path) for path in _entries(root / "devices/system/node"))
    nodes = sorted((int(match[1]), path) for match, path in found if match)
    for index, path in nodes:
        memory = _MEM_TOTAL.search(_read(path / "meminfo") or "")
        yield NumaNode(
            index=index,
            cpus=_read(path / "cpulist"),
            memory_bytes=int(memory[1]) * 1024 if memory else None,
        )


def _iommu(root: Path) -> dict[str, str]:
    """How many IOMMU groups there are and what they do with addresses ("DMA", "identity")."""
    folder = root / "kernel/iommu_groups"
    if not folder.is_dir():
        return {}
    groups = _entries(folder)
    kinds = sorted({kind for group in groups if (kind := _read(group / "type"))})
    listed = f" ({', '.join(kinds)})" if kinds else ""
    return {"iommu": f"{len(groups)} groups{listed}" if groups else "no groups"}


def _virtualisation(root: Path) -> str | None:
    if "microsoft" in (_read(root / "proc/sys/kernel/osrelease") or "").lower():
        return "WSL2"
    hypervisor = _read(root / "sys/hypervisor/type")
    if hypervisor:
        return hypervisor
    flags = re.search(r"^flags\s*:.*\bhypervisor\b", _read(root / "proc/cpuinfo") or "", re.M)
    return "hypervisor" if flags else None


def _container(root: Path) -> str | None:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    groups = _read(root / "proc/1/cgroup") or ""
    return next((word for word in _CONTAINER_WORDS if word in groups), None)


def _iommu_arguments(root: Path) -> str | None:
    """The kernel's arguments on IOMMU and PCI; the others may name private things."""
    words = (_read(root / "proc/cmdline") or "").split()
    return " ".join(word for word in words if _IOMMU_WORD.match(word)) or None


def _target(link: Path) -> str | None:
    try:
        return link.readlink().name
    except OSError:
        return None


def _read(path: Path) -> str | None:
    """The text of a file; None where it is absent, unreadable or empty."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CHARS).strip() or None
    except OSError:
        return None
