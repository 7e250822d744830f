"""`lspci -v`, `-vv`, `-vvv` listings, whole or an excerpt of one device (M1 M3 M4).

A speed marked "(downgraded)" is kept as it stands: an idle GPU trains its link down by design.
"""

import re
from collections.abc import Iterator

from msgspec import structs

from linkbound.errors import InputError
from linkbound.topology.identifiers import normal_bus_id
from linkbound.topology.labels import derive_nic_paths, derive_pairs
from linkbound.topology.lspci_names import class_code_of, model_in, nvidia_part, vendor_id_of
from linkbound.topology.parse_pci_tree import looks_like_tree, parse_pci_tree
from linkbound.topology.pci import (
    PciFunction,
    host_bridge,
    host_bridge_key,
    parse_gt_per_s,
    refuse_too_long,
    refuse_too_many,
    sort_functions,
)
from linkbound.topology.types import DeviceKind, Gpu, Machine, PcieLink

_HEADER = re.compile(
    r"^\s{0,8}((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) "
    r"([^:\[]{1,80}?)(?: \[([0-9a-f]{4})\])?: (.*)$",
    re.IGNORECASE,
)
_REGION = re.compile(
    r"^\s*(?:Region \d: )?Memory at \S{1,20} \([^)]{1,60}\).{0,40}\[size=(\d{1,6})([KMGT]?)\]"
)
_RESIZABLE = re.compile(r"^\s*BAR (\d): current size: (\d{1,6})([KMGTP]?)B", re.MULTILINE)
_BUSES = re.compile(r"secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", re.IGNORECASE)
_WIDTH = re.compile(r"Width x(\d{1,2})\b")
_NUMA = re.compile(r"NUMA node:? (\d{1,5})\b")
_IOMMU = re.compile(r"IOMMU group:? (\d{1,6})\b")
_PORT = re.compile(r"Capabilities: \[[^\]]{1,12}\] Express \(v\d\) ([A-Za-z/\- ]{4,60})")
_ID_PAIR = re.compile(r"\[([0-9a-f]{4}:[0-9a-f]{4})\]", re.IGNORECASE)
_DEVICE_BODY = re.compile(r"^\s*(?:Lnk(?:Cap|Sta):|ACSC(?:tl|ap):|BAR \d: current size|Region \d)")
_SCALE = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}
_PORT_KINDS = {
    "root port": DeviceKind.ROOT_PORT,
    "upstream port": DeviceKind.SWITCH_PORT,
    "downstream port": DeviceKind.SWITCH_PORT,
    "pci-express to pci/pci-x bridge": DeviceKind.BRIDGE,
    "pci/pci-x to pci-express bridge": DeviceKind.BRIDGE,
}
_FIRST_FUNCTION = ":00:00.0"
_KEPT = ("LnkCap", "LnkSta", "ACSCap", "ACSCtl", "Kernel driver in use", "Physical Slot")


def parse_lspci(text: str, source: str) -> Machine:
    """The machine that a listing (tree or verbose) shows. Raises InputError for other text."""
    refuse_too_long(text, source)
    if looks_like_tree(text):
        return parse_pci_tree(text, source)
    blocks = list(_blocks(text))
    if not any(header for header, _ in blocks):
        return _excerpt(text, source)
    functions, buses = [], {}
    for header, body in blocks:
        if header is None:
            continue
        function, range_below = _function(header, body)
        functions.append(function)
        if range_below:
            buses[function.bus_id] = range_below
    return _machine(functions, buses, source)


def _blocks(text: str) -> Iterator[tuple[re.Match[str] | None, str]]:
    """Each device's heading and the lines below it; the first may have no heading."""
    header: re.Match[str] | None = None
    body: list[str] = []
    for line in text.splitlines():
        found = _HEADER.match(line)
        if not found:
            body.append(line)
            continue
        if header or body:
            yield header, "\n".join(body)
        header, body = found, []
    yield header, "\n".join(body)


def _function(header: re.Match[str], body: str) -> tuple[PciFunction, tuple[int, int] | None]:
    address, class_name, class_hex, name = header.groups()
    own = _own_lines(body)
    buses = _BUSES.search(own)
    vendor_id = vendor_id_of(name)
    port = _PORT.search(own)
    function = PciFunction(
        bus_id=normal_bus_id(address) or address,
        class_code=int(class_hex, 16) if class_hex else class_code_of(class_name),
        vendor_id=vendor_id,
        device_id=_device_id(name, vendor_id),
        name=model_in(name),
        numa_node=_number(_NUMA, own),
        pcie=_link(own),
        bar1_bytes=_bar1_bytes(own),
        kind=_PORT_KINDS.get(port.group(1).split("(")[0].strip().lower()) if port else None,
        facts=_facts(class_name, name, own),
    )
    return function, (int(buses[1], 16), int(buses[2], 16)) if buses else None


def _own_lines(body: str) -> str:
    """The lines of the function itself, without what describes its virtual functions."""
    kept, virtual = [], False
    for line in body.splitlines():
        if "Capabilities:" in line:
            virtual = "Virtual Resizable BAR" in line or "SR-IOV" in line
        if not virtual:
            kept.append(line)
    return "\n".join(kept)


def _device_id(name: str, vendor_id: str | None) -> str | None:
    pair = _ID_PAIR.search(name)
    if pair:
        return pair.group(1).lower()
    part = nvidia_part(name)
    return f"{vendor_id}:{part}" if vendor_id and part else None


def _link(own: str) -> PcieLink | None:
    most, now = _line(own, "LnkCap"), _line(own, "LnkSta")
    if most is None and now is None:
        return None
    return PcieLink(
        gt_per_s=parse_gt_per_s(now or ""),
        width=_lanes(now or ""),
        max_gt_per_s=parse_gt_per_s(most or ""),
        max_width=_lanes(most or ""),
    )


def _lanes(text: str) -> int | None:
    """Lanes; None for x0, which a port without a partner prints."""
    found = _WIDTH.search(text)
    return int(found.group(1)) or None if found else None


def _line(own: str, name: str) -> str | None:
    """What follows `name:`, on its first line."""
    found = re.search(rf"^\s*{re.escape(name)}:[ \t]*(.*)$", own, re.MULTILINE)
    return found.group(1).strip() if found else None


def _number(pattern: re.Pattern[str], own: str) -> int | None:
    found = pattern.search(own)
    return int(found.group(1)) if found else None


def _bar1_bytes(own: str) -> int | None:
    """The second memory window: NVIDIA's BAR1 is region 1, or 2 where region 0 takes 64 bits."""
    sizes = [
        int(found[1]) * _SCALE[found[2]] for found in map(_REGION.match, own.splitlines()) if found
    ]
    if len(sizes) > 1:
        return sizes[1]
    resizable = [(int(i), int(n) * _SCALE[unit]) for i, n, unit in _RESIZABLE.findall(own)]
    return next((size for index, size in resizable if index in (1, 2)), None)


def _facts(class_name: str, name: str, own: str) -> dict[str, str]:
    facts = {"Class": class_name, "Name": name}
    for key in _KEPT:
        value = _line(own, key)
        if value:
            facts[key] = value
    group = _number(_IOMMU, own)
    if group is not None:
        facts["IOMMU group"] = str(group)
    return facts


def _machine(
    functions: list[PciFunction], buses: dict[str, tuple[int, int]], source: str
) -> Machine:
    refuse_too_many(functions, source)
    whole = any(function.bus_id.endswith(_FIRST_FUNCTION) for function in functions)
    placed, notes = [], []
    for function in functions:
        parent, direct = _parent(function.bus_id, buses, whole)
        if not direct:
            notes.append(_gap(function.bus_id, parent))
        placed.append(structs.replace(function, parent=parent))
    gpus, others = sort_functions(placed, source)
    roots = sorted({f.parent for f in placed if f.parent and f.parent.startswith("pci")})
    devices = (*map(host_bridge, roots), *others)
    return Machine(
        sources=(source,),
        gpus=gpus,
        devices=devices,
        # With bridges missing, two switches in a row would look like one.
        pairs=() if notes else derive_pairs(gpus, devices, ports_shown=True),
        nic_paths=() if notes else derive_nic_paths(gpus, devices, ports_shown=True),
        notes=tuple(dict.fromkeys(notes)),
    )


def _parent(bus_id: str, buses: dict[str, tuple[int, int]], whole: bool) -> tuple[str | None, bool]:
    """Key of the nearest listed device above, and whether it is the one directly above."""
    domain, bus_hex, _ = bus_id.split(":")
    bus = int(bus_hex, 16)
    above = [
        (last - first, key, first)
        for key, (first, last) in buses.items()
        if key.split(":")[0] == domain and first <= bus <= last and key != bus_id
    ]
    if above:
        _, key, first = min(above)
        return key, first == bus
    # In a whole listing a bus below no bridge is a root bus; bus 00 always is one.
    root = whole or bus == 0
    return (host_bridge_key(bus_id), True) if root else (None, False)


def _gap(bus_id: str, parent: str | None) -> str:
    bus = bus_id.rsplit(":", 1)[0]
    if parent is None:
        return f"The listing shows no bridge above bus {bus}: its place in the tree is unknown."
    return f"The bridge directly above bus {bus} is not listed: it is put below {parent}."


def _excerpt(text: str, source: str) -> Machine:
    """One device whose heading was cut off: people quote the lines of their GPU."""
    if not any(_DEVICE_BODY.match(line) for line in text.splitlines()):
        raise InputError(
            f"{source}: no device of `lspci` in it.",
            why="Neither a heading such as `01:00.0 VGA compatible controller: ...` nor a "
            "line with a link or a region was found.",
            hint="Write the file with `lspci -vv` (as root, to see ACS) or `lspci -tv`.",
        )
    own = _own_lines(text)
    gpu = Gpu(
        key="GPU0",
        label="GPU0",
        bar1_bytes=_bar1_bytes(own),
        numa_node=_number(_NUMA, own),
        pcie=_link(own),
        facts={key: value for key in _KEPT if (value := _line(own, key))},
    )
    note = f"{source} names no device: its lines are taken for one GPU's."
    return Machine(sources=(source,), gpus=(gpu,), notes=(note,))
