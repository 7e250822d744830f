"""Reads the topology XML of NCCL and RCCL: tree, links, NICs; and tells a graph file apart (M4).

In these files a bridge is a whole PCIe switch, and a `cpu` is a NUMA node.
"""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from msgspec import structs

from linkbound.errors import InputError
from linkbound.topology.identifiers import cpus_of_mask, list_of_cpus, normal_bus_id
from linkbound.topology.labels import NVSWITCH, check_size, derive_nic_paths, derive_pairs
from linkbound.topology.nccl_elements import (
    SMALL,
    SWITCH_CLASS,
    VENDORS,
    capability,
    ids,
    pci_kind,
    pcie,
)
from linkbound.topology.types import (
    Device,
    DeviceKind,
    Gpu,
    Machine,
    NumaNode,
    NvLink,
    PathKind,
)
from linkbound.topology.xml import load_xml_start

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
    root, cut, unfinished = load_xml_start(text, source)
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
    reader = _Reader(unfinished)
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

    def __init__(self, unfinished: Sequence[Element]) -> None:
        self.unfinished = unfinished
        self.devices: dict[str, Device] = {}
        self.gpus: dict[str, Gpu] = {}
        self.masks: dict[int, frozenset[int]] = {}
        self.nodes: list[int] = []
        self.host: dict[str, str] = {}
        self.notes: list[str] = []
        self.alike: dict[str, int] = {}

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
                kind = pci_kind(element)
                if kind is DeviceKind.GPU:
                    if any(element is open_one for open_one in self.unfinished):
                        # Links after the cut are unknown, so its labels would be wrong.
                        self.notes.append("The last GPU is cut off in the middle: left out.")
                    else:
                        self.gpu(element, above, node)
                    continue
                if kind is DeviceKind.NIC:
                    self.nic(element, element, above, node)
                    continue
                below = self.add(element, kind, above, node)
            todo += [(child, below, node) for child in reversed(element)]

    def cpu(self, element: Element) -> tuple[str, int | None]:
        stated, mask = element.get("numaid", ""), element.get("affinity")
        node = int(stated) if SMALL.fullmatch(stated) else None
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
            pcie=pcie(element),
            facts=ids(element),
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
                pcie=None if function is None else pcie(function),
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
            vendor=VENDORS.get(vendor, f"0x{vendor}" if vendor else None),
            device_id=f"{vendor}:{device}" if vendor and device else None,
            compute_capability=capability(sm) if "gcn" not in attributes else None,
            numa_node=node,
            cpu_affinity=list_of_cpus(self.masks[node]) or None if node in self.masks else None,
            pcie=pcie(element),
            nvlinks=links,
            parent=above,
            facts=facts,
        )

    def links(self, inner: Element, key: str) -> tuple[tuple[NvLink, ...], dict[str, str]]:
        remotes: list[str | None] = []
        facts: dict[str, str] = {}
        for link in inner:
            target = link.get("target", "")
            count = int(link.get("count", "")) if SMALL.fullmatch(link.get("count", "")) else 0
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
            if link.get("tclass", "").removeprefix("0x").startswith(SWITCH_CLASS):
                remote = f"{NVSWITCH} {remote or target[:20]}"
            remotes += [remote] * count
        links = tuple(NvLink(index=index, remote=remote) for index, remote in enumerate(remotes))
        return links, facts

    def new_key(self, wanted: str) -> str:
        """`wanted`, or a numbered form of it: a file may name two things alike."""
        count = self.alike[wanted] = self.alike.get(wanted, 0) + 1
        return wanted if count == 1 else f"{wanted} #{count}"

    def machine(self, source: str, notes: Sequence[str]) -> Machine:
        gpus = _numbered(list(self.gpus.values()), self.notes)
        devices = tuple(self.devices.values())
        check_size(gpus, devices, source)
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


def _numbered(gpus: list[Gpu], notes: list[str]) -> tuple[Gpu, ...]:
    """GPUs in the order of their `dev`; without one, in the order of their bus ids."""
    numbers = [gpu.label.removeprefix("GPU") for gpu in gpus]
    if all(SMALL.fullmatch(number) for number in numbers) and len(set(numbers)) == len(gpus):
        return tuple(sorted(gpus, key=lambda gpu: int(gpu.label.removeprefix("GPU"))))
    notes.append("The file does not number all GPUs: they are numbered by bus id here.")
    ordered = sorted(gpus, key=lambda gpu: gpu.bus_id or gpu.key)
    return tuple(structs.replace(gpu, label=f"GPU{at}") for at, gpu in enumerate(ordered))


def _tree_notes(
    gpus: Sequence[Gpu], devices: Sequence[Device], masks: Mapping[int, frozenset[int]]
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
    return notes + _overlaps(masks)


def _overlaps(masks: Mapping[int, frozenset[int]]) -> list[str]:
    owner: dict[int, int] = {}
    shared: dict[tuple[int, int], set[int]] = {}
    for node, cpus in sorted(masks.items()):
        for cpu in cpus:
            first = owner.setdefault(cpu, node)
            if first != node:
                shared.setdefault((first, node), set()).add(cpu)
    return [
        f"The CPU masks of NUMA nodes {a} and {b} overlap in {len(cpus)} CPUs "
        f"({list_of_cpus(frozenset(cpus))}): a CPU belongs to one node, so the file is wrong."
        for (a, b), cpus in sorted(shared.items())
    ]


def _graph_notes(root: Element, source: str) -> list[str]:
    notes = [f"{source} is an NCCL graph file: which links NCCL chose, not how they are wired."]
    for graph in root.iter("graph"):
        ranks = {gpu.get("dev", "") for gpu in graph.iter("gpu")}
        words = [f"{name} {value[:20]}" for name in _GRAPH_WORDS if (value := graph.get(name))]
        notes.append(f"Graph {graph.get('id')}: {', '.join(words)}; {len(ranks)} GPUs.")
    return notes
