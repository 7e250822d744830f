"""Attributes of /sys/bus/pci/devices, recorded as JSON or just read: the PCI tree (M1 M4)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from linkbound.errors import InputError
from linkbound.topology.identifiers import normal_bus_id
from linkbound.topology.labels import derive_nic_paths, derive_pairs
from linkbound.topology.pci import (
    CLASS_BRIDGE,
    PciFunction,
    host_bridge,
    host_bridge_key,
    numa_device,
    numa_key,
    parse_gt_per_s,
    sort_functions,
)
from linkbound.topology.types import Device, DeviceKind, Machine, PcieLink

MAX_BYTES = 64 * 1024**2
_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", re.IGNORECASE)
_ROOT = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$", re.IGNORECASE)
_RESOURCE = re.compile(r"^(?:0x[0-9a-f]{1,16} ){2}0x[0-9a-f]{1,16}$", re.IGNORECASE)
_HEX = re.compile(r"^0x[0-9a-f]{1,8}$", re.IGNORECASE)
_NO_LINK_WIDTHS = frozenset({0, 255})
_KEPT = ("iommu_group", "iommu_group_type", "driver")
_MEMORY_FLAG = 0x200
_BARS = 6

Attributes = Mapping[str, Any]


def parse_sysfs_json(text: str, source: str) -> Machine:
    """The machine in a record `{bus id: {attribute: value}}`. Raises InputError for other text."""
    if len(text) > MAX_BYTES:
        raise _refused(source, f"it is longer than {MAX_BYTES:,} characters")
    try:
        record = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refused(source, f"it is not JSON ({error})") from None
    if not isinstance(record, dict) or not record:
        raise _refused(source, "it is not an object with one entry a device")
    for address, attributes in record.items():
        if not _ADDRESS.match(address) or not isinstance(attributes, dict):
            raise _refused(source, f"its entry '{address[:60]}' is not a PCI device's attributes")
    return machine_from_attributes(record, source)


def machine_from_attributes(record: Mapping[str, Attributes], source: str) -> Machine:
    """The machine behind each device's attributes as Linux prints them, keyed by bus id.

    `path` (the resolved device folder) gives the tree; without it, buses below bridges stay
    unplaced.
    """
    with_bridges = any(_class_code(said) == CLASS_BRIDGE for said in record.values())
    functions = [_function(address, said, with_bridges) for address, said in record.items()]
    gpus, others = sort_functions(functions, source)
    devices = (*_tops(functions), *others)
    return Machine(
        sources=(source,),
        gpus=gpus,
        devices=devices,
        pairs=derive_pairs(gpus, devices, ports_shown=True),
        nic_paths=derive_nic_paths(gpus, devices, ports_shown=True),
        notes=tuple(_notes(functions, record, source)),
    )


def _tops(functions: list[PciFunction]) -> Iterator[Device]:
    """Host bridges, each below the NUMA node that all functions right below it name."""
    nodes: dict[str, set[int | None]] = {}
    for function in functions:
        if function.parent and _ROOT.match(function.parent):
            nodes.setdefault(function.parent, set()).add(function.numa_node)
    agreed = {
        key: node
        for key, named in nodes.items()
        if len(known := named - {None}) == 1 and (node := next(iter(known))) is not None
    }
    for node in sorted(set(agreed.values())):
        yield numa_device(node)
    for key in sorted(nodes):
        known_node = agreed.get(key)
        above = None if known_node is None else numa_key(known_node)
        yield host_bridge(key, parent=above, numa_node=known_node)


def _function(address: str, said: Attributes, with_bridges: bool) -> PciFunction:
    bus_id = normal_bus_id(address) or address
    vendor_id = _hex(said.get("vendor"))
    device = _hex(said.get("device"))
    printed = _integer(said.get("numa_node"))
    return PciFunction(
        bus_id=bus_id,
        class_code=_class_code(said),
        vendor_id=vendor_id,
        device_id=f"{vendor_id}:{device}" if vendor_id and device else None,
        parent=_parent(bus_id, said, with_bridges),
        numa_node=printed if printed is not None and printed >= 0 else None,
        pcie=_link(said),
        bar1_bytes=_bar1_bytes(said.get("resource")),
        kind=_conventional(said),
        facts=_facts(said, printed),
    )


def _parent(bus_id: str, said: Attributes, with_bridges: bool) -> str | None:
    """Key of the device above: the folder above; without folders, known only on flat machines."""
    path = said.get("path")
    if isinstance(path, str):
        above = path.rstrip("/").split("/")[-2:-1]
        if above and _ROOT.match(above[0]):
            return above[0].lower()
        return normal_bus_id(above[0]) if above else None
    return None if with_bridges else host_bridge_key(bus_id)


def _link(said: Attributes) -> PcieLink | None:
    link = PcieLink(
        gt_per_s=_speed(said.get("current_link_speed")),
        width=_lanes(said.get("current_link_width")),
        max_gt_per_s=_speed(said.get("max_link_speed")),
        max_width=_lanes(said.get("max_link_width")),
    )
    return None if link == PcieLink() else link


def _bar1_bytes(resource: object) -> int | None:
    """Size of the second memory window: start, end and flags (ioport.h) of each BAR a line."""
    if not isinstance(resource, str):
        return None
    windows = [
        [int(word, 16) for word in line.split()]
        for line in resource.splitlines()[:_BARS]
        if _RESOURCE.match(line)
    ]
    sizes = [end - start + 1 for start, end, flags in windows if flags & _MEMORY_FLAG]
    return sizes[1] if len(sizes) > 1 and sizes[1] > 0 else None


def _conventional(said: Attributes) -> DeviceKind | None:
    """A bridge whose link attributes are all absent is no PCI Express port."""
    if _class_code(said) == CLASS_BRIDGE and "max_link_speed" in said and _link(said) is None:
        return DeviceKind.BRIDGE
    return None


def _facts(said: Attributes, numa_node: int | None) -> dict[str, str]:
    facts = {key: str(said[key]) for key in _KEPT if said.get(key) is not None}
    if numa_node is not None:
        facts["numa_node"] = str(numa_node)
    return facts


def _class_code(said: Attributes) -> int | None:
    """Base class and subclass of 0x030200."""
    value = said.get("class")
    return int(value, 16) >> 8 if isinstance(value, str) and _HEX.match(value) else None


def _hex(value: object) -> str | None:
    return value[2:].lower().zfill(4) if isinstance(value, str) and _HEX.match(value) else None


def _integer(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value.strip()):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _speed(value: object) -> float | None:
    return parse_gt_per_s(value) if isinstance(value, str) else None


def _lanes(value: object) -> int | None:
    """Lanes; Linux prints 0 or 255 where no link is up."""
    lanes = _integer(value)
    return None if lanes is None or lanes in _NO_LINK_WIDTHS or lanes < 0 else lanes


def _notes(
    functions: list[PciFunction], record: Mapping[str, Attributes], source: str
) -> Iterator[str]:
    unknown = sum(1 for function in functions if function.facts.get("numa_node") == "-1")
    if unknown:
        yield (
            f"{source}: numa_node is -1 for {unknown} of {len(record)} PCI devices, which means "
            "unknown: other sources may name the node."
        )
    if any(function.parent is None for function in functions):
        yield f"{source}: the device folders are not recorded: the PCI tree is not known."


def _refused(source: str, what: str) -> InputError:
    return InputError(
        f"{source}: not a record of /sys/bus/pci/devices: {what}.",
        why='It maps each bus id to its attributes: {"0000:01:00.0": {"class": "0x030200"}}.',
        hint="Check that this is the file you meant.",
    )
