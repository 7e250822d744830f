"""PCI functions from any source: which of them is a GPU, and how the others sort (M1 M4)."""

import re
from collections.abc import Mapping, Sequence

from linkbound.errors import InputError
from linkbound.topology.identifiers import normal_bus_id
from linkbound.topology.types import Device, DeviceKind, Gpu, PcieLink
from linkbound.values import Value

NVIDIA = "10de"
AMD = "1002"
INTEL = "8086"
VENDOR_NAMES = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}

CLASS_BRIDGE = 0x0604
CLASS_OTHER_BRIDGE = 0x0680
_GPU_CLASSES = frozenset({0x0300, 0x0302, 0x0380})
_ACCELERATOR_CLASS = 0x1200
_NETWORK_BASE_CLASS = 0x02
# ATI ES1000 and RN50 drive the console of a server board; they compute nothing.
_CONSOLE_CHIPS = frozenset({"1002:515e", "1002:5969"})

MAX_FUNCTIONS = 16_384
MAX_GPUS = 512
MAX_CHARS = 8 * 1024**2

GT_PER_S_OF_GENERATION = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Transfer rate of each PCIe generation: what NVML counts and lspci prints (PCIe base spec)."""

_LAST_REAL_DOMAIN = 0xFFFF
_SPEED = re.compile(r"(\d{1,4}(?:\.\d{1,4})?) ?GT/s")
_NO_IDENTITY = re.compile(r"^GPU-[0-]+$")


class PciFunction(Value, frozen=True, kw_only=True):
    """One function of a PCI device, as far as a source describes it."""

    bus_id: str
    class_code: int | None = None
    """Base class and subclass: 0x0302."""
    vendor_id: str | None = None
    device_id: str | None = None
    """Vendor and device: `10de:2335`."""
    name: str | None = None
    parent: str | None = None
    numa_node: int | None = None
    pcie: PcieLink | None = None
    bar1_bytes: int | None = None
    kind: DeviceKind | None = None
    """Where the source itself says what it is."""
    facts: Mapping[str, str] = {}


def host_bridge_key(bus_id: str) -> str:
    """Key of the host bridge whose root bus is that of `bus_id`: `pci0000:00`, as Linux says."""
    return f"pci{bus_id.rsplit(':', 1)[0]}"


def host_bridge(key: str, *, parent: str | None = None, numa_node: int | None = None) -> Device:
    """The host bridge with this key (`pci0000:00`)."""
    return Device(
        key=key, kind=DeviceKind.HOST_BRIDGE, label=key, parent=parent, numa_node=numa_node
    )


def numa_key(node: int) -> str:
    """Key of the NUMA node in the tree, the same in all sources: `numa:0`."""
    return f"numa:{node}"


def numa_device(node: int, *, parent: str | None = None) -> Device:
    """NUMA node `node` as a device of the tree."""
    return Device(
        key=numa_key(node),
        kind=DeviceKind.NUMA_NODE,
        label=f"NUMA {node}",
        parent=parent,
        numa_node=node,
    )


def far_end_bus_id(text: str) -> str | None:
    """Bus id of a link's far end; None for FFFFFFFF:FF:FF.0, which guests see for hidden ones."""
    bus_id = normal_bus_id(text)
    if bus_id is None or int(bus_id.split(":")[0], 16) > _LAST_REAL_DOMAIN:
        return None
    return bus_id


def parse_gt_per_s(text: str) -> float | None:
    """Gigatransfers a second in `text` ("8.0 GT/s PCIe", "16GT/s"); None where it has none."""
    found = _SPEED.search(text)
    return float(found.group(1)) if found else None


def identifying_uuid(text: str) -> str | None:
    """The UUID, or None for one of zeros only: a placeholder that identifies nothing."""
    return None if not text or _NO_IDENTITY.match(text) else text


def is_gpu(function: PciFunction) -> bool:
    """Whether this function computes: a display or accelerator class of a maker of such GPUs."""
    if function.kind is not None:
        return function.kind is DeviceKind.GPU
    if function.device_id in _CONSOLE_CHIPS or function.vendor_id not in VENDOR_NAMES:
        return False
    if function.class_code == _ACCELERATOR_CLASS:
        return function.vendor_id == AMD
    return function.class_code in _GPU_CLASSES


def kind_of(function: PciFunction) -> DeviceKind:
    """What a function that is not a GPU is in the tree."""
    if function.kind is not None:
        return function.kind
    code = function.class_code
    if code == CLASS_BRIDGE:
        return _bridge_kind(function.parent)
    if code == CLASS_OTHER_BRIDGE and function.vendor_id == NVIDIA:
        return DeviceKind.NVSWITCH
    if code is not None and code >> 8 == _NETWORK_BASE_CLASS:
        return DeviceKind.NIC
    return DeviceKind.OTHER


def refuse_too_long(text: str, source: str) -> None:
    """Raises InputError for more text than a listing of any one machine has."""
    if len(text) > MAX_CHARS:
        raise InputError(
            f"{source}: {len(text):,} characters.",
            why=f"A listing of one machine's devices is below {MAX_CHARS:,}.",
            hint="Check that this is the file you meant.",
        )


def refuse_too_many(functions: Sequence[PciFunction], source: str) -> None:
    """Raises InputError where a list is longer than any machine's: pairs grow with its square."""
    gpus = sum(1 for function in functions if is_gpu(function))
    if len(functions) > MAX_FUNCTIONS or gpus > MAX_GPUS:
        raise InputError(
            f"{source}: {len(functions):,} PCI functions, {gpus:,} of them GPUs.",
            why=f"No machine has more than {MAX_FUNCTIONS:,} functions or {MAX_GPUS} GPUs.",
            hint="Check that this is one machine's file.",
        )


def sort_functions(
    functions: Sequence[PciFunction], source: str
) -> tuple[tuple[Gpu, ...], tuple[Device, ...]]:
    """The GPUs, numbered as the makers' tools number them, and all other devices.

    Raises InputError where there are more than any machine has.
    """
    refuse_too_many(functions, source)
    ordered = sorted(functions, key=lambda function: _place(function.bus_id))
    computing = [function for function in ordered if is_gpu(function)]
    # nvidia-smi counts NVIDIA's in bus order and sees no others.
    computing.sort(key=lambda function: function.vendor_id != NVIDIA)
    gpus = tuple(_gpu(function, index) for index, function in enumerate(computing))
    return gpus, tuple(_device(function) for function in ordered if not is_gpu(function))


def _bridge_kind(parent: str | None) -> DeviceKind:
    if parent is None:
        return DeviceKind.BRIDGE
    return DeviceKind.ROOT_PORT if parent.startswith("pci") else DeviceKind.SWITCH_PORT


def _place(bus_id: str) -> tuple[int, str]:
    domain, rest = bus_id.split(":", 1)
    return int(domain, 16), rest


def _gpu(function: PciFunction, index: int) -> Gpu:
    return Gpu(
        key=function.bus_id,
        label=f"GPU{index}",
        bus_id=function.bus_id,
        vendor=VENDOR_NAMES.get(function.vendor_id or ""),
        model=function.name,
        device_id=function.device_id,
        bar1_bytes=function.bar1_bytes,
        numa_node=function.numa_node,
        pcie=function.pcie,
        parent=function.parent,
        facts=function.facts,
    )


def _device(function: PciFunction) -> Device:
    return Device(
        key=function.bus_id,
        kind=kind_of(function),
        label=function.name or function.device_id or function.bus_id,
        bus_id=function.bus_id,
        parent=function.parent,
        numa_node=function.numa_node,
        pcie=function.pcie,
        facts=function.facts,
    )
