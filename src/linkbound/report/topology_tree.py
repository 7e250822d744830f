"""The part of a machine's tree that leads to GPUs and NICs, as branches to print or draw (M1)."""

from collections.abc import Iterable, Mapping

from linkbound.topology.types import Device, DeviceKind, Gpu, Machine
from linkbound.values import Value

_WORDS = {
    DeviceKind.BRIDGE: "bridge",
    DeviceKind.SWITCH_PORT: "switch port",
    DeviceKind.ROOT_PORT: "root port",
    DeviceKind.HOST_BRIDGE: "host bridge",
}
MAX_DEPTH = 32
"""Deeper than any host: a tree that runs in a circle is cut here."""


class Branch(Value, frozen=True, kw_only=True):
    """A node with what hangs below it; `kind` is None for what no source names."""

    key: str
    kind: DeviceKind | None
    text: str
    children: tuple["Branch", ...] = ()

    @property
    def leaves(self) -> int:
        """How many leaves are below, at least 1: the room that the branch needs."""
        return sum(child.leaves for child in self.children) or 1


def machine_tree(machine: Machine) -> tuple[Branch, ...]:
    """The roots. GPUs whose place is unknown hang from their NUMA node, if that is known."""
    devices = {device.key: device for device in machine.devices}
    leaves: list[Gpu | Device] = list(machine.gpus)
    leaves += [device for device in machine.devices if device.kind is DeviceKind.NIC]
    below: dict[str | None, list[str]] = {}
    placed: set[str] = set()
    stand_ins: dict[str, Branch] = {}
    for leaf in leaves:
        parent = _parent(leaf, devices, machine, stand_ins)
        below.setdefault(parent, []).append(leaf.key)
        while parent in devices and parent not in placed:
            placed.add(parent)
            above = devices[parent].parent
            above = above if above in devices else None
            below.setdefault(above, []).append(parent)
            parent = above
    branches = {gpu.key: _gpu_branch(gpu) for gpu in machine.gpus}
    cpus = {node.index: node.cpus for node in machine.numa_nodes}
    branches |= {device.key: _device_branch(device, cpus) for device in machine.devices}
    branches |= stand_ins
    roots = [*below.get(None, ()), *stand_ins]
    return tuple(_grown(key, branches, below, MAX_DEPTH) for key in dict.fromkeys(roots))


def _parent(
    leaf: Gpu | Device,
    devices: dict[str, Device],
    machine: Machine,
    stand_ins: dict[str, Branch],
) -> str | None:
    """The device above, else the NUMA node, else a stand-in that says that nothing is known."""
    if leaf.parent in devices:
        return leaf.parent
    node = leaf.numa_node
    known = next(
        (
            device.key
            for device in devices.values()
            if device.kind is DeviceKind.NUMA_NODE and device.numa_node == node is not None
        ),
        None,
    )
    if known is not None:
        return known
    key = "place unknown" if node is None else f"NUMA {node}"
    if key not in stand_ins:
        cpus = next((one.cpus for one in machine.numa_nodes if one.index == node), None)
        text = key if cpus is None else f"{key}, CPUs {cpus}"
        kind = None if node is None else DeviceKind.NUMA_NODE
        stand_ins[key] = Branch(key=key, kind=kind, text=text)
    return key


def _grown(
    key: str, branches: dict[str, Branch], below: dict[str | None, list[str]], depth: int
) -> Branch:
    branch = branches[key]
    children: Iterable[str] = dict.fromkeys(below.get(key, ())) if depth else ()
    return Branch(
        key=branch.key,
        kind=branch.kind,
        text=branch.text,
        children=tuple(_grown(child, branches, below, depth - 1) for child in children),
    )


def _gpu_branch(gpu: Gpu) -> Branch:
    parts = [gpu.label, *(part for part in (gpu.model, gpu.bus_id) if part and part != gpu.label)]
    return Branch(key=gpu.key, kind=DeviceKind.GPU, text="  ".join(parts))


def _device_branch(device: Device, cpus: Mapping[int, str | None]) -> Branch:
    word = _WORDS.get(device.kind)
    text = f"{word} {device.label}" if word else device.label
    if word and device.bus_id:
        text = f"{word} {device.bus_id}"
    if device.kind is DeviceKind.NUMA_NODE and device.numa_node is not None:
        listed = cpus.get(device.numa_node)
        text += f", CPUs {listed}" if listed else ""
    if device.kind is DeviceKind.NIC:
        name = device.facts.get("name")
        text = "  ".join(
            dict.fromkeys(part for part in (device.label, name, device.bus_id) if part)
        )
    return Branch(key=device.key, kind=device.kind, text=text)
