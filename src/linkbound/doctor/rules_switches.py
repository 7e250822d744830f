"""Switches whose uplink is narrower than what hangs below them (L3, M3)."""

from collections.abc import Iterator

from linkbound.doctor.identity import identity, may_be_same
from linkbound.doctor.rules_host import is_invented
from linkbound.doctor.rules_pcie import chain
from linkbound.doctor.types import Facts, Symptom
from linkbound.doctor.vocabulary import listed, seen, suspected
from linkbound.evidence.types import Finding
from linkbound.topology.types import Device, DeviceKind, Gpu, Machine, PcieLink

_BRIDGES = (DeviceKind.BRIDGE, DeviceKind.ROOT_PORT, DeviceKind.SWITCH_PORT)


def oversubscribed(facts: Facts) -> Iterator[Finding]:
    """More GPU lanes below a bridge than its link has: seen where traffic is shown to leave it."""
    for machine in facts.machines:
        narrow = [] if is_invented(machine) else list(_narrow_uplinks(machine))
        if not narrow:
            continue
        text = listed(
            f"{lanes} GPU lanes below {device.bus_id or device.label}, whose link has {width}"
            for device, lanes, width in narrow
        )
        users = [_leaving(facts, machine, device) for device, _, _ in narrow]
        leaving = next((source for source in users if source), None)
        if leaving:
            text += f"; channels leave it ({leaving})"
            yield seen("switch-oversubscribed", f"{text} ({machine.sources[0]}).")
        elif facts.symptom is Symptom.SLOW:
            yield suspected("switch-oversubscribed", f"{text} ({machine.sources[0]}).")


def _narrow_uplinks(machine: Machine) -> Iterator[tuple[Device, int, int]]:
    below: dict[str, list[Gpu]] = {}
    for gpu in machine.gpus:
        for device in chain(machine, gpu):
            below.setdefault(device.key, []).append(gpu)
    for device in machine.devices:
        width = _width(device.pcie)
        lanes = sum(_width(gpu.pcie) or 0 for gpu in below.get(device.key, ()))
        if device.kind in _BRIDGES and width and lanes > width:
            yield device, lanes, width


def _width(link: PcieLink | None) -> int | None:
    return None if link is None else link.width or link.max_width


def _leaving(facts: Facts, machine: Machine, device: Device) -> str | None:
    """A log whose channels join a GPU below the bridge and one that is not."""
    inside = {gpu.label for gpu in machine.gpus if device in chain(machine, gpu)}
    everyone = {gpu.label for gpu in machine.gpus}
    for log in facts.logs:
        if not may_be_same(identity(facts, log.source), identity(facts, machine.sources[0])):
            continue
        for one in log.transports:
            ends = {f"GPU{one.src_device}", f"GPU{one.dst_device}"}
            if ends <= everyone and len(ends & inside) == 1:
                return log.source
    return None
