"""hwloc XML (`lstopo file.xml`), formats 1, 2 and 3: sockets, NUMA nodes, bridges, devices (M1 M4).

hwloc gives a PCIe link as one product in GB/s, so neither generation nor width is known from it.
"""

import re
from collections.abc import Mapping
from xml.etree.ElementTree import Element

from msgspec import structs

from linkbound.errors import InputError
from linkbound.topology.hwloc_links import nvlinks_of, without_unseen_switches
from linkbound.topology.hwloc_os_devices import (
    OsDevices,
    infos_of,
    numbered,
    with_driver_facts,
    with_os_devices,
)
from linkbound.topology.identifiers import list_of_cpus, normal_bus_id
from linkbound.topology.labels import derive_nic_paths, derive_pairs
from linkbound.topology.pci import (
    CLASS_BRIDGE,
    PciFunction,
    host_bridge,
    kind_of,
    numa_device,
    numa_key,
    sort_functions,
)
from linkbound.topology.types import Device, DeviceKind, Gpu, Machine, NumaNode, NvLink
from linkbound.topology.xml import load_xml

_PCI_TYPE = re.compile(r"^([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
_HOST_BUSES = re.compile(r"^([0-9a-f]{4,8}):\[([0-9a-f]{2})-[0-9a-f]{2}\]$", re.IGNORECASE)
_SMALL = re.compile(r"^\d{1,6}$")
_BYTES = re.compile(r"^\d{1,18}$")
_WORD = re.compile(r"(?:0x)?[0-9a-fA-F]{0,8}")
_RATE = re.compile(r"\d{1,6}(?:\.\d{1,12})?")
_HOST = {
    "OSRelease": "kernel",
    "Architecture": "arch",
    "DMIProductName": "product",
    "PlatformModel": "product",
    "CPUModel": "cpu_model",
    "hwlocVersion": "hwloc",
}
MAX_MASK_BITS = 65_536


def parse_hwloc_xml(text: str, source: str) -> Machine:
    """The machine in an hwloc file. Raises InputError where the root is not hwloc's."""
    root = load_xml(text, source)
    if root.tag != "topology" or root.find("object") is None:
        raise InputError(
            f"{source}: its root element is <{root.tag[:40]}>, without hwloc's objects.",
            why="hwloc writes <topology> with <object> elements.",
            hint="Write the file with `lstopo --whole-io machine.xml`.",
        )
    reader = _Reader()
    reader.walk(root)
    return reader.machine(root, source)


class _Reader:
    """Collects the objects of one file on the way down its tree."""

    def __init__(self) -> None:
        self.tops: dict[str, Device] = {}
        self.nodes: dict[int, NumaNode] = {}
        self.functions: dict[str, PciFunction] = {}
        self.os_devices: dict[str, OsDevices] = {}
        """What the OS devices of a function say: bus id -> name -> infos."""
        self.ends: dict[str, str] = {}
        """hwloc's gp_index -> bus id or key of a socket: what a matrix of links names."""
        self.host: dict[str, str] = {}

    def walk(self, root: Element) -> None:
        # A stack, in the order of the file. `parent` and `numa` are those of the element above.
        stack: list[tuple[Element, str | None, int | None]] = [(root, None, None)]
        while stack:
            element, parent, numa = stack.pop()
            if element.tag == "info":
                self.note_host(element)
                continue
            if element.get("nodeset"):
                numa = _single_node(element.get("nodeset", ""))
            own = self.enter(element, parent, numa)
            below = _only_memory(element) or own
            for child in reversed(element):
                if child.tag in ("object", "info"):
                    is_memory = child.get("type") == "NUMANode"
                    stack.append((child, own if is_memory else below, numa))

    def enter(self, element: Element, parent: str | None, numa: int | None) -> str | None:
        """Takes one object in; returns the key that its children stand below."""
        match element.get("type", ""):
            case "NUMANode":
                return self.numa_node(element, parent)
            case "Package" | "Socket":
                return self.socket(element, parent)
            case "Bridge" if not element.get("pci_busid"):
                return self.host_bridge(element, parent, numa)
            case "Bridge" | "PCIDev":
                return self.function(element, parent, numa)
            case "OSDev":
                self.os_device(element, parent)
        return parent

    def note_host(self, info: Element) -> None:
        name = _HOST.get(info.get("name", ""))
        value = info.get("value", "").strip()
        if name and value:
            self.host.setdefault(name, value[:200])

    def numa_node(self, element: Element, parent: str | None) -> str | None:
        index = element.get("os_index", "")
        if not _SMALL.fullmatch(index):
            return parent
        node = int(index)
        memory = element.get("local_memory", "")
        cpus = _bits(element.get("cpuset", ""))
        self.tops[numa_key(node)] = numa_device(node, parent=parent)
        self.nodes[node] = NumaNode(
            index=node,
            cpus=list_of_cpus(cpus) if cpus else None,
            memory_bytes=int(memory) if _BYTES.fullmatch(memory) and int(memory) else None,
        )
        return numa_key(node)

    def socket(self, element: Element, parent: str | None) -> str:
        index = element.get("os_index", "")
        key = f"socket:{index}" if _SMALL.fullmatch(index) else f"socket:#{len(self.tops)}"
        self.tops[key] = Device(
            key=key, kind=DeviceKind.SOCKET, label=key.replace(":", " "), parent=parent
        )
        self.ends[element.get("gp_index", "")] = key
        return key

    def host_bridge(self, element: Element, parent: str | None, numa: int | None) -> str | None:
        buses = _HOST_BUSES.match(element.get("bridge_pci", ""))
        if not buses:
            return parent
        key = f"pci{int(buses[1], 16):04x}:{buses[2].lower()}"
        above = parent if numa is None else numa_key(numa)
        self.tops[key] = host_bridge(key, parent=above, numa_node=numa)
        return key

    def function(self, element: Element, parent: str | None, numa: int | None) -> str | None:
        bus_id = normal_bus_id(element.get("pci_busid", ""))
        if bus_id is None:
            return parent
        words = _PCI_TYPE.match(element.get("pci_type", ""))
        infos = infos_of(element)
        self.functions[bus_id] = PciFunction(
            bus_id=bus_id,
            class_code=CLASS_BRIDGE
            if element.get("type") == "Bridge"
            else (int(words[1], 16) if words else None),
            vendor_id=words[2].lower() if words else None,
            device_id=f"{words[2]}:{words[3]}".lower() if words else None,
            name=infos.get("PCIDevice"),
            parent=parent,
            numa_node=numa,
            kind=DeviceKind.NVSWITCH if element.get("subtype") == "NVSwitch" else None,
            facts=_function_facts(element, infos),
        )
        self.ends[element.get("gp_index", "")] = bus_id
        return bus_id

    def os_device(self, element: Element, parent: str | None) -> None:
        if parent in self.functions:
            name = element.get("name", "")[:80]
            self.os_devices.setdefault(parent, {})[name] = infos_of(element)
            self.ends[element.get("gp_index", "")] = parent

    def machine(self, root: Element, source: str) -> Machine:
        named = [
            with_os_devices(function, self.os_devices.get(bus_id, {}))
            for bus_id, function in self.functions.items()
        ]
        sorted_gpus, others = sort_functions(named, source)
        links, note = nvlinks_of(root, self.end_of)
        gpus = numbered(tuple(self.filled(gpu, links) for gpu in sorted_gpus), self.os_devices)
        devices = (*self.tops.values(), *others)
        pairs, unknown = without_unseen_switches(
            gpus, derive_pairs(gpus, devices, ports_shown=True)
        )
        return Machine(
            sources=(source,),
            gpus=gpus,
            devices=devices,
            pairs=pairs,
            nic_paths=derive_nic_paths(gpus, devices, ports_shown=True),
            numa_nodes=tuple(self.nodes[node] for node in sorted(self.nodes)),
            host=self.host,
            notes=tuple(said for said in (note, unknown) if said),
        )

    def end_of(self, gp_index: str) -> tuple[str, bool] | None:
        """Bus id or key of an object in a matrix, and whether it is an NVSwitch."""
        end = self.ends.get(gp_index)
        if end is None:
            return None
        function = self.functions.get(end)
        return end, function is not None and kind_of(function) is DeviceKind.NVSWITCH

    def filled(self, gpu: Gpu, links: Mapping[str, tuple[NvLink, ...]]) -> Gpu:
        """The GPU with its drivers' words, its links and the processors of its node."""
        bus_id = gpu.bus_id or ""
        node = self.nodes.get(-1 if gpu.numa_node is None else gpu.numa_node)
        return structs.replace(
            with_driver_facts(gpu, self.os_devices.get(bus_id, {})),
            cpu_affinity=node.cpus if node else None,
            nvlinks=links.get(bus_id, ()),
        )


def _only_memory(element: Element) -> str | None:
    """Key of the one NUMA node directly in an object: what else is in the object is on it."""
    nodes = [child for child in element if child.get("type") == "NUMANode"]
    index = nodes[0].get("os_index", "") if len(nodes) == 1 else ""
    return numa_key(int(index)) if _SMALL.fullmatch(index) else None


def _bits(mask: str) -> frozenset[int]:
    """The numbers in hwloc's mask: 32-bit words, highest first, empty ones zero."""
    words = mask.split(",")
    if len(words) * 32 > MAX_MASK_BITS:
        return frozenset()
    value = 0
    for word in words:
        if not _WORD.fullmatch(word):
            return frozenset()
        value = value << 32 | int(word or "0", 16)
    return frozenset(bit for bit in range(value.bit_length()) if value >> bit & 1)


def _single_node(nodeset: str) -> int | None:
    nodes = _bits(nodeset)
    return next(iter(nodes)) if len(nodes) == 1 else None


def _function_facts(element: Element, infos: Mapping[str, str]) -> dict[str, str]:
    facts = {name: infos[name] for name in ("PCIVendor", "PCIDevice", "PCISlot") if name in infos}
    speed = element.get("pci_link_speed", "")
    if _RATE.fullmatch(speed) and float(speed) > 0:
        facts["pci_link_speed"] = f"{speed} GB/s"
    return facts
