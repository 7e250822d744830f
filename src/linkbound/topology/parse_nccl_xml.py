"""Reads the topology XML of NCCL and RCCL: tree, links, NICs; and tells a graph file apart (M4).

In these files a bridge is a whole PCIe switch, and a `cpu` is a NUMA node.
"""

import re
from collections.abc import Sequence
from itertools import combinations
from xml.etree.ElementTree import Element

from msgspec import structs

from linkbound.errors import InputError
from linkbound.topology.identifiers import cpus_of_mask, list_of_cpus, normal_bus_id
from linkbound.topology.labels import NVSWITCH, derive_nic_paths, derive_pairs
from linkbound.topology.types import (
    Device,
    DeviceKind,
    Gpu,
    Machine,
    NumaNode,
    NvLink,
    PathKind,
    PcieLink,
)
from linkbound.topology.xml import load_xml_start

_VENDORS = {"10de": "NVIDIA", "1002": "AMD"}
_GPU_CLASSES = ("0302", "0380", "1200")
_VGA_CLASS = "0300"
_NIC_CLASSES = ("0200", "0207")
_SWITCH_CLASS = "0680"
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,2})?) GT/s")
_SMALL = re.compile(r"\d{1,4}")
# A bus id that no hardware has: the files that cloud vendors ship invent switches with it.
_INVENTED = "ffff:ff:"
_GRAPH_WORDS = (
    "pattern",
    "nchannels",
    "speedintra",
    "speedinter",
    "typeintra",
    "typeinter",
)
MAX_LINKS = 64
"""More links than any GPU has; a larger count is no count of links."""


def parse_nccl_xml(text: str, source: str) -> Machine:
    """The machine of a topology file, with labels worked out for every ordered pair.

    A graph file (`<graphs>`) is no machine: it gives notes and no GPUs. A file that is cut off
    gives what its complete elements say.
    """
    root, cut = load_xml_start(text, source)
    notes = [] if cut is None else [f"{cut} What was complete before the cut was read."]
    if root.tag == "graphs":
        return Machine(sources=(source,), notes=(*_graph_notes(root, source), *notes))
    if root.tag not in ("system", "cpu", "pci"):
        raise InputError(
            f"{source}: its root element is <{root.tag[:40]}>, not <system>.",
            why="It is no topology file of NCCL or RCCL.",
            hint="NCCL writes one to the path in NCCL_TOPO_DUMP_FILE.",
        )
    if root.tag != "system":
        notes.append(f"{source} is a fragment: it begins with <{root.tag}>, not with <system>.")
    reader = _Reader()
    reader.walk(root)
    if not reader.gpus:
        raise InputError(
            f"{source}: no complete GPU in this {'fragment' if cut else 'file'}.",
            why="No machine can be taken from it.",
            hint="Give the whole file that NCCL_TOPO_DUMP_FILE names.",
        )
    return reader.machine(source, notes)


class _Reader:
    """Collects the elements of one file on the way down its tree."""

    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self.gpus: dict[str, Gpu] = {}
        self.masks: dict[int, frozenset[int]] = {}
        self.nodes: list[int] = []
        self.host: dict[str, str] = {}
        self.notes: list[str] = []

    def walk(self, root: Element) -> None:
        # A stack, in the order of the file: depth is the file's choice.
        todo: list[tuple[Element, str | None, int | None]] = [(root, None, None)]
        while todo:
            element, above, node = todo.pop()
            below = above
            if element.tag == "cpu":
                below, node = self.cpu(element)
            elif element.tag == "nic":
                self.nic(element, None, above, node)
                continue
            elif element.tag == "pci":
                kind = _pci_kind(element)
                if kind is DeviceKind.GPU:
                    self.gpu(element, above, node)
                    continue
                if kind is DeviceKind.NIC:
                    self.nic(element, element, above, node)
                    continue
                below = self.add(element, kind, above, node)
            todo += [(child, below, node) for child in reversed(element)]

    def cpu(self, element: Element) -> tuple[str, int | None]:
        stated, mask = element.get("numaid", ""), element.get("affinity")
        node = int(stated) if _SMALL.fullmatch(stated) else None
        key = self.new_key(f"numa:{stated[:40] or 'unknown'}")
        facts = {} if mask is None else {"affinity": mask}
        for name, word in (("vendor", "cpu_vendor"), ("arch", "arch")):
            if value := element.get(name):
                self.host.setdefault(word, value)
        if (family := element.get("familyid")) and (model := element.get("modelid")):
            self.host.setdefault("cpu_family_model", f"{family}/{model}")
        if node is None:
            facts["numa_node"] = stated or "not stated"
            self.notes.append(
                f"The file gives '{stated}' as NUMA node of a CPU: the node is unknown, and what "
                "hangs below may be on several."
            )
        else:
            self.nodes.append(node)
        cpus = cpus_of_mask(mask) if mask is not None else None
        if cpus is not None and node is not None:
            self.masks[node] = cpus
        elif mask is not None and cpus is None:
            self.notes.append(f"The CPU mask of NUMA node {node} is none: '{mask[:60]}'.")
        label = "CPU of unknown NUMA node" if node is None else f"NUMA {node}"
        self.devices[key] = Device(
            key=key, kind=DeviceKind.NUMA_NODE, label=label, numa_node=node, facts=facts
        )
        return key, node

    def add(self, element: Element, kind: DeviceKind, above: str | None, node: int | None) -> str:
        bus_id = normal_bus_id(element.get("busid", ""))
        key = self.new_key(bus_id or element.get("busid", "")[:40] or "pci")
        self.devices[key] = Device(
            key=key,
            kind=kind,
            label=bus_id or key,
            bus_id=bus_id,
            parent=above,
            numa_node=node,
            pcie=_pcie(element),
            facts=_ids(element),
        )
        return key

    def nic(
        self, element: Element, function: Element | None, above: str | None, node: int | None
    ) -> None:
        """Each `<net>` is a NIC, as in `nvidia-smi topo -m`; a function without one is one too."""
        nets = list(element.iter("net"))
        if not nets and function is not None:
            self.add(function, DeviceKind.NIC, above, node)
        for net in nets:
            name = net.get("name", "")[:80] or f"net{net.get('dev', '')[:8]}"
            key = self.new_key(f"nic:{name}")
            facts = {key: value for key, value in net.attrib.items() if value}
            self.devices[key] = Device(
                key=key,
                kind=DeviceKind.NIC,
                label=name,
                bus_id=None if function is None else normal_bus_id(function.get("busid", "")),
                parent=above,
                numa_node=node,
                pcie=None if function is None else _pcie(function),
                facts=facts,
            )
            if function is None:
                self.notes.append(
                    f"{name} is no PCI function here: which GPU it is near to is unknown."
                )

    def gpu(self, element: Element, above: str | None, node: int | None) -> None:
        inner = element.find("gpu")
        bus_id = normal_bus_id(element.get("busid", ""))
        key = self.new_key(bus_id or element.get("busid", "")[:40] or "gpu")
        vendor, device = (element.get(name, "").removeprefix("0x") for name in ("vendor", "device"))
        attributes = {} if inner is None else dict(inner.attrib)
        links, facts = ((), {}) if inner is None else self.links(inner, key)
        facts |= {name: attributes[name] for name in ("dev", "rank", "gdr") if name in attributes}
        sm = attributes.get("sm", "")
        if "gcn" in attributes:
            vendor = vendor or "1002"
            facts["gcn"] = attributes["gcn"]
        above_device = self.devices.get(above or "")
        if above_device is not None and "numa_node" in above_device.facts:
            facts["numa_node"] = above_device.facts["numa_node"]
        self.gpus[key] = Gpu(
            key=key,
            label=f"GPU{attributes.get('dev', '')}",
            bus_id=bus_id,
            vendor=_VENDORS.get(vendor, f"0x{vendor}" if vendor else None),
            device_id=f"{vendor}:{device}" if vendor and device else None,
            compute_capability=_capability(sm) if "gcn" not in attributes else None,
            numa_node=node,
            cpu_affinity=list_of_cpus(self.masks[node]) or None if node in self.masks else None,
            pcie=_pcie(element),
            nvlinks=links,
            parent=above,
            facts=facts,
        )

    def links(self, inner: Element, key: str) -> tuple[tuple[NvLink, ...], dict[str, str]]:
        remotes: list[str | None] = []
        facts: dict[str, str] = {}
        for link in inner:
            target = link.get("target", "")
            count = int(link.get("count", "")) if _SMALL.fullmatch(link.get("count", "")) else 0
            if link.tag == "c2c":
                facts["c2c"] = f"count {link.get('count')}, bw {link.get('bw')}"
            if link.tag not in ("nvlink", "xgmi"):
                continue
            if not 0 < count <= MAX_LINKS:
                self.notes.append(f"{key}: '{link.get('count')}' is no count of links; not used.")
                continue
            remote = normal_bus_id(target)
            if remote == key:
                self.notes.append(f"{key}: {count} links that lead to itself; not used.")
                continue
            if link.get("tclass", "").removeprefix("0x").startswith(_SWITCH_CLASS):
                remote = f"{NVSWITCH} {remote or target[:20]}"
            remotes += [remote] * count
        links = tuple(NvLink(index=index, remote=remote) for index, remote in enumerate(remotes))
        return links, facts

    def new_key(self, wanted: str) -> str:
        """`wanted`, or the next free name of its kind: a file may name two things alike."""
        key, count = wanted, 2
        while key in self.devices or key in self.gpus:
            key, count = f"{wanted} #{count}", count + 1
        return key

    def machine(self, source: str, notes: Sequence[str]) -> Machine:
        gpus = _numbered(list(self.gpus.values()), self.notes)
        devices = tuple(self.devices.values())
        self.notes += _tree_notes(gpus, devices, self.masks)
        pairs = derive_pairs(gpus, devices, ports_shown=False)
        if any(path.kind is PathKind.PHB for path in pairs):
            self.notes.append("NCCL's files show no host bridges: PHB here may be NODE.")
        return Machine(
            sources=(source,),
            gpus=gpus,
            devices=devices,
            pairs=pairs,
            nic_paths=derive_nic_paths(gpus, devices, ports_shown=False),
            numa_nodes=tuple(
                NumaNode(
                    index=node,
                    cpus=list_of_cpus(self.masks[node]) or None if node in self.masks else None,
                )
                for node in sorted(set(self.nodes))
            ),
            host=self.host,
            notes=(*notes, *dict.fromkeys(self.notes)),
        )


def _pci_kind(element: Element) -> DeviceKind:
    code = element.get("class", "").removeprefix("0x")[:4]
    vendor = element.get("vendor", "").removeprefix("0x")
    if element.find("gpu") is not None or code in _GPU_CLASSES:
        return DeviceKind.GPU
    if code == _VGA_CLASS and vendor in _VENDORS:
        return DeviceKind.GPU
    if code in _NIC_CLASSES or element.find("nic") is not None:
        return DeviceKind.NIC
    if code == _SWITCH_CLASS:
        return DeviceKind.NVSWITCH
    return DeviceKind.BRIDGE if len(element) or code == "0604" else DeviceKind.OTHER


def _pcie(element: Element) -> PcieLink | None:
    """The best that device and port can do together; 0 lanes is NCCL's word for unknown."""
    speed = _SPEED.search(element.get("link_speed", ""))
    width = element.get("link_width", "")
    lanes = int(width) if _SMALL.fullmatch(width) and int(width) else None
    if speed is None and lanes is None:
        return None
    return PcieLink(max_gt_per_s=float(speed[1]) if speed else None, max_width=lanes)


def _ids(element: Element) -> dict[str, str]:
    return {name: value for name in ("vendor", "device") if (value := element.get(name))}


def _capability(sm: str) -> str | None:
    return f"{sm[:-1]}.{sm[-1]}" if re.fullmatch(r"\d{2,3}", sm) else None


def _numbered(gpus: list[Gpu], notes: list[str]) -> tuple[Gpu, ...]:
    """GPUs in the order of their `dev`; without one, in the order of their bus ids."""
    numbers = [gpu.label.removeprefix("GPU") for gpu in gpus]
    if all(_SMALL.fullmatch(number) for number in numbers) and len(set(numbers)) == len(gpus):
        return tuple(sorted(gpus, key=lambda gpu: int(gpu.label.removeprefix("GPU"))))
    notes.append("The file does not number all GPUs: they are numbered by bus id here.")
    ordered = sorted(gpus, key=lambda gpu: gpu.bus_id or gpu.key)
    return tuple(structs.replace(gpu, label=f"GPU{at}") for at, gpu in enumerate(ordered))


def _tree_notes(
    gpus: Sequence[Gpu], devices: Sequence[Device], masks: dict[int, frozenset[int]]
) -> list[str]:
    notes = []
    invented = [device.key for device in devices if device.key.startswith(_INVENTED)]
    if invented:
        notes.append(
            f"{len(invented)} bridges have invented bus ids ({invented[0]}, ...): whoever wrote "
            "the file says which devices are near; no such switch was seen."
        )
    if not any("dev" in gpu.facts for gpu in gpus):
        notes.append(
            "Written by hand or for NCCL_TOPO_FILE: it says nothing on NVLinks, so the labels "
            "speak of PCIe only."
        )
    for (a, ours), (b, theirs) in combinations(sorted(masks.items()), 2):
        if both := ours & theirs:
            notes.append(
                f"The CPU masks of NUMA nodes {a} and {b} overlap in {len(both)} CPUs "
                f"({list_of_cpus(both)}): a CPU belongs to one node, so the file is wrong."
            )
    return notes


def _graph_notes(root: Element, source: str) -> list[str]:
    notes = [f"{source} is an NCCL graph file: which links NCCL chose, not how they are wired."]
    for graph in root.iter("graph"):
        ranks = {gpu.get("dev", "") for gpu in graph.iter("gpu")}
        words = [f"{name} {value[:20]}" for name in _GRAPH_WORDS if (value := graph.get(name))]
        notes.append(f"Graph {graph.get('id')}: {', '.join(words)}; {len(ranks)} GPUs.")
    return notes
