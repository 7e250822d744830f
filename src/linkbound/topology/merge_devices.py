"""Which bridges, NUMA nodes and NICs of several sources are one, and what is said of them (M4)."""

from collections.abc import Sequence

from msgspec import structs

from linkbound.topology.identifiers import normal_bus_id
from linkbound.topology.settle import Ledger
from linkbound.topology.types import Device, DeviceKind, Machine, PcieLink


def merge_devices(
    machines: Sequence[Machine], ledger: Ledger
) -> tuple[tuple[Device, ...], list[dict[str, str]]]:
    """The devices, and for each machine the way from its keys to the merged ones."""
    keys: list[dict[str, str]] = [{} for _ in machines]
    merged: dict[str, Device] = {}
    signed: dict[str, str] = {}
    known: dict[tuple[str, str], str] = {}
    for at, machine in enumerate(machines):
        source = ", ".join(machine.sources)
        taken: set[str] = set()
        for device in machine.devices:
            names = _names(device)
            key = next((known[n] for n in names if n in known and known[n] not in taken), None)
            if key is None:
                key = _free(device.key, merged)
                merged[key] = structs.replace(device, key=key, parent=None)
                signed[key] = source
            else:
                merged[key] = _fill(merged[key], signed[key], device, source, ledger)
            taken.add(key)
            keys[at][device.key] = key
            for name in names:
                known.setdefault(name, key)
    for at, machine in enumerate(machines):
        for device in machine.devices:
            key, above = keys[at][device.key], keys[at].get(device.parent or "")
            if above is not None and merged[key].parent is None:
                merged[key] = structs.replace(merged[key], parent=above)
    return tuple(merged.values()), keys


def _names(device: Device) -> list[tuple[str, str]]:
    """What a device goes by, surest first. Two ports of one NIC share a bus id, not a name."""
    if device.kind is DeviceKind.NUMA_NODE and device.numa_node is not None:
        return [("numa", str(device.numa_node))]
    bus_id = device.bus_id and (normal_bus_id(device.bus_id) or device.bus_id)
    if device.kind is DeviceKind.NIC:
        name = device.facts.get("name")
        found = [("nic", name)] if name else []
        if bus_id:
            found.append(("nic function", bus_id) if not name else ("port of", f"{bus_id} {name}"))
        return found or [("key", device.key)]
    return [("function", bus_id)] if bus_id else [("key", device.key)]


def _free(key: str, merged: dict[str, Device]) -> str:
    wanted, count = key, 2
    while key in merged:
        key, count = f"{wanted} #{count}", count + 1
    return key


def _fill(a: Device, a_source: str, b: Device, b_source: str, ledger: Ledger) -> Device:
    node = ledger.settle(
        f"NUMA node of {a.label}", ((a_source, a.numa_node), (b_source, b.numa_node))
    )
    return structs.replace(
        a,
        bus_id=a.bus_id or b.bus_id,
        numa_node=node,
        pcie=_pcie(a.pcie, b.pcie),
        facts={**b.facts, **a.facts},
    )


def _pcie(a: PcieLink | None, b: PcieLink | None) -> PcieLink | None:
    if a is None or b is None:
        return a or b
    return PcieLink(
        gt_per_s=a.gt_per_s or b.gt_per_s,
        width=a.width or b.width,
        max_gt_per_s=a.max_gt_per_s or b.max_gt_per_s,
        max_width=a.max_width or b.max_width,
    )
