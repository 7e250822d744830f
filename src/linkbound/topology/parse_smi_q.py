"""`nvidia-smi -q`, whole or one section: each GPU's identity, memory, PCIe link and modes (M1 M3).

"N/A" is None: the driver has no answer, which is not the same as zero.
"""

import re
from collections.abc import Iterator, Mapping

from linkbound.errors import InputError
from linkbound.topology.identifiers import normal_bus_id
from linkbound.topology.pci import (
    GT_PER_S_OF_GENERATION,
    identifying_uuid,
    refuse_too_long,
)
from linkbound.topology.types import Gpu, Machine, PcieLink

_GPU = re.compile(r"^GPU ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s*$", re.IGNORECASE)
_MIB = re.compile(r"^(\d{1,9}) MiB$")
_GENERATION = re.compile(r"^(?:Gen ?)?(\d)$")
_LANES = re.compile(r"^(\d{1,2})x$")
_NOTHING = frozenset({"", "N/A", "[N/A]", "Not Available", "Unknown Error"})
_HOST = {
    ("Driver Version",): "driver",
    ("CUDA Version",): "cuda",
    ("NVML Version",): "nvml",
}
_GENERATIONS = ("GPU Link Info", "PCIe Generation")
_WIDTHS = ("GPU Link Info", "Link Width")
_FACTS = (
    ("Persistence Mode",),
    ("Product Brand",),
    ("Product Architecture",),
    ("Addressing Mode",),
    ("GPU C2C Mode",),
    ("GPU Virtualization Mode", "Virtualization Mode"),
    ("GPU Virtualization Mode", "Host VGPU Mode"),
    ("VBIOS Version",),
    ("GSP Firmware Version",),
    ("Performance State",),
    ("Compute Mode",),
    ("ECC Mode", "Current"),
    ("PCI", *_GENERATIONS, "Device Max"),
    ("PCI", *_GENERATIONS, "Host Max"),
    ("PCI", "Replays Since Reset"),
    ("Clocks", "SM"),
    ("Clocks", "Memory"),
    ("Max Clocks", "SM"),
    ("Max Clocks", "Memory"),
    ("GPU Power Readings", "Current Power Limit"),
    ("GPU Power Readings", "Max Power Limit"),
    ("Power Readings", "Power Limit"),
    ("Power Readings", "Max Power Limit"),
    ("Fabric", "State"),
    ("Fabric", "Status"),
    ("Fabric", "CliqueId"),
)
_SECTIONS = frozenset(
    {"BAR1 Memory Usage", "FB Memory Usage", "GPU Link Info", "MIG Mode", "Fabric", "PCI"}
)

Path = tuple[str, ...]


def parse_smi_q(text: str, source: str) -> Machine:
    """The machine behind `nvidia-smi -q`. Raises InputError where nothing of it is found."""
    refuse_too_long(text, source)
    host: dict[str, str] = {}
    gpus: list[Gpu] = []
    for bus_id, lines in _blocks(text):
        said = dict(_paths(lines))
        if bus_id is None:
            host.update(_host(said))
            if gpus or not _SECTIONS & {path[0] for path in said}:
                continue
        gpus.append(_gpu(bus_id, len(gpus), said))
    if not gpus and not host:
        raise InputError(
            f"{source}: nothing of `nvidia-smi -q` in it.",
            why="Neither a heading `GPU 00000000:01:00.0` nor one of its sections was found.",
            hint="Write the file with `nvidia-smi -q`.",
        )
    modes = {gpu.facts.get("GPU Virtualization Mode / Virtualization Mode") for gpu in gpus}
    mode = modes.pop() if len(modes) == 1 else None
    if mode:
        host["gpu_virtualisation"] = mode
    return Machine(sources=(source,), gpus=tuple(gpus), host=host, notes=_notes(gpus, source))


def _blocks(text: str) -> Iterator[tuple[str | None, list[str]]]:
    """What stands before the first GPU (None), then each GPU's bus id and lines."""
    bus_id: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        found = _GPU.match(line)
        if not found:
            lines.append(line)
            continue
        yield bus_id, lines
        bus_id, lines = normal_bus_id(found.group(1)), []
    yield bus_id, lines


def _paths(lines: list[str]) -> Iterator[tuple[Path, str]]:
    """Each `key : value` with the headings above it, told by their indentation; first wins."""
    above: list[tuple[int, str]] = []
    seen: set[Path] = set()
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        key, colon, value = (part.strip() for part in line.partition(" : "))
        while above and above[-1][0] >= indent:
            above.pop()
        path = (*(name for _, name in above[-6:]), key)
        if not colon:
            above.append((indent, key))
        if path not in seen:
            seen.add(path)
            yield path, value


def _host(said: Mapping[Path, str]) -> dict[str, str]:
    return {name: said[path] for path, name in _HOST.items() if said.get(path, "") not in _NOTHING}


def _gpu(bus_id: str | None, index: int, said: Mapping[Path, str]) -> Gpu:
    uuid = identifying_uuid(_text(said, "GPU UUID") or "")
    label = f"GPU{index}"
    return Gpu(
        key=uuid or bus_id or label,
        label=label,
        uuid=uuid,
        bus_id=bus_id,
        vendor="NVIDIA" if bus_id else None,
        model=_text(said, "Product Name"),
        device_id=_device_id(_text(said, "PCI", "Device Id")),
        memory_bytes=_bytes(_text(said, "FB Memory Usage", "Total")),
        bar1_bytes=_bytes(_text(said, "BAR1 Memory Usage", "Total")),
        numa_node=_numa_node(said),
        pcie=_pcie(said),
        mig={"Enabled": True, "Disabled": False}.get(_text(said, "MIG Mode", "Current") or ""),
        facts={" / ".join(path): said[path] for path in _FACTS if _text(said, *path)},
    )


def _text(said: Mapping[Path, str], *path: str) -> str | None:
    value = said.get(path, "")
    return None if value in _NOTHING else value


def _bytes(value: str | None) -> int | None:
    found = _MIB.match(value or "")
    return int(found.group(1)) * 1024**2 if found else None


def _device_id(value: str | None) -> str | None:
    """`10de:2335` of 0x233510DE: the device stands before the vendor."""
    found = re.fullmatch(r"0x([0-9a-f]{4})([0-9a-f]{4})", value or "", re.IGNORECASE)
    return f"{found.group(2)}:{found.group(1)}".lower() if found else None


def _numa_node(said: Mapping[Path, str]) -> int | None:
    for path, value in said.items():
        if "numa" in path[-1].lower() and re.fullmatch(r"\d{1,5}", value):
            return int(value)
    return None


def _pcie(said: Mapping[Path, str]) -> PcieLink | None:
    """The link, below `PCI` in a whole listing and at the top in an excerpt."""
    link = PcieLink(
        gt_per_s=_gt_per_s(_link_text(said, *_GENERATIONS, "Current")),
        width=_lanes(_link_text(said, *_WIDTHS, "Current")),
        max_gt_per_s=_gt_per_s(_link_text(said, *_GENERATIONS, "Max")),
        max_width=_lanes(_link_text(said, *_WIDTHS, "Max")),
    )
    return None if link == PcieLink() else link


def _link_text(said: Mapping[Path, str], *path: str) -> str | None:
    return _text(said, "PCI", *path) or _text(said, *path)


def _gt_per_s(value: str | None) -> float | None:
    found = _GENERATION.match(value or "")
    return GT_PER_S_OF_GENERATION.get(int(found.group(1))) if found else None


def _lanes(value: str | None) -> int | None:
    found = _LANES.match(value or "")
    return int(found.group(1)) or None if found else None


def _notes(gpus: list[Gpu], source: str) -> tuple[str, ...]:
    if any(gpu.bus_id is None for gpu in gpus):
        return (f"{source} names no GPU: its lines are taken for one GPU's.",)
    return ()
