"""Host, guest and container: shared memory, invented trees, WSL, MIG, limits (M3)."""

import re
from collections.abc import Iterator

from linkbound.doctor.parts import is_virtual, is_virtual_function
from linkbound.doctor.rules_pcie import chain
from linkbound.doctor.types import Facts, Message
from linkbound.doctor.vocabulary import by_source, listed, seen, suspected
from linkbound.evidence.types import Finding
from linkbound.topology.types import Device, DeviceKind, Gpu, Machine
from linkbound.units import format_capacity

_SMALL_SHM_BYTES = 512 * 1024**2
"""Docker gives 64 MiB; a communicator of eight takes about 10 MB a segment, several a peer."""
_FIRST_BUS = 0x1000
"""Below it is bus 0 in NCCL's numbers: domain, bus, device and function, 20, 12, 4 bits up."""
_INVENTED_VENDORS = ("0x0000", "0xffff")
_CPU_FLAGS, _HYPERVISOR_TYPE = "/proc/cpuinfo", "/sys/hypervisor/type"
"""Where a live host's kernel says that it is a guest: a CPU flag, or the hypervisor's name."""


def _of(facts: Facts, kind: str) -> list[Message]:
    return [message for message in facts.messages if message.kind == kind]


def _quoted(messages: list[Message]) -> str:
    return f"{messages[0].text} ({by_source(message.place for message in messages)})."


def shared_memory(facts: Facts) -> Iterator[Finding]:
    """/dev/shm that is full, or too small to begin with."""
    full, failed = _of(facts, "shm_full"), _of(facts, "shm_failed")
    if full:
        yield seen("shm-too-small", _quoted(full))
    elif failed:
        yield suspected("shm-too-small", _quoted(failed))
    size = facts.environment.shm_bytes if facts.environment else None
    if size is not None and size < _SMALL_SHM_BYTES:
        yield seen("shm-too-small", f"/dev/shm of this host has {format_capacity(size)}.")


def virtual(facts: Facts) -> Iterator[Finding]:
    """Trees made by a hypervisor or by hand, and guests that say so."""
    for machine in facts.machines:
        reason = _invented(machine)
        if reason:
            yield seen("virtual-topology", f"{reason}.")
        elif any(_has_no_node(device) for device in machine.devices):
            text = f"The NUMA node of a CPU is -1 ({machine.sources[0]})."
            yield suspected("virtual-topology", text)
    for kind in ("passthrough", "hypervisor"):
        found = [message for message in _of(facts, kind) if "Microsoft Hyper-V" not in message.text]
        if found:
            yield seen("virtual-topology", _quoted(found))


def _has_no_node(device: Device) -> bool:
    return device.kind is DeviceKind.NUMA_NODE and device.facts.get("numa_node") == "-1"


def guests(facts: Facts) -> Iterator[Finding]:
    """GPUs on bus 0: on hardware there is always a port above them."""
    for machine in facts.machines:
        ids = [gpu.bus_id for gpu in machine.gpus if gpu.bus_id]
        if ids and all(re.match(r"0000:00:", bus_id) for bus_id in ids):
            text = f"GPUs on the root bus: {listed(ids)} ({machine.sources[0]})."
            yield suspected("virtual-topology", text)
    for log in facts.logs:
        printed = {comm.bus_id for comm in log.communicators if comm.bus_id}
        printed |= {one.src_device for one in log.transports if one.src_device}
        printed = {one for one in printed if _is_bus_id(one)}
        if printed and all(int(one, 16) < _FIRST_BUS for one in printed):
            text = f"GPUs on the root bus: {listed(sorted(printed))} ({log.source})."
            yield suspected("virtual-topology", text)


def _is_bus_id(printed: str) -> bool:
    """NCCL's number of a function ends in its function, 0; NVML's index is a plain number."""
    return re.fullmatch(r"[0-9a-f]{1,11}0", printed) is not None


def _invented(machine: Machine) -> str | None:
    """What shows that the tree is a guest's or made by hand, and which source says it."""
    if tree := _invented_tree(machine):
        return f"{tree} ({', '.join(machine.sources)})"
    said = machine.host.get("gpu_virtualisation")
    source = machine.sources[0]
    if not said:
        said = machine.host.get("virtualisation")
        source = _CPU_FLAGS if said == "hypervisor" else _HYPERVISOR_TYPE
    if said and said not in ("None", "WSL2", "Host VGPU", "Host VSGA"):
        return f"Virtualisation: {said} ({source})"
    return None


def _invented_tree(machine: Machine) -> str | None:
    bridges = [device for device in machine.devices if device.bus_id and _is_bridge(device)]
    made = [device for device in bridges if _is_invented(device)]
    if made:
        return f"Bridges that no hardware has: {listed(device.bus_id for device in made)}"
    above = [device for gpu in machine.gpus for device in chain(machine, gpu) if is_virtual(device)]
    if above:
        return f"Emulated bridges above GPUs: {listed(device.bus_id for device in above)}"
    parts = [gpu for gpu in machine.gpus if is_virtual_function(gpu)]
    if parts:
        names = listed(f"{gpu.label} {gpu.model or gpu.device_id}" for gpu in parts)
        return f"Virtual functions or vGPUs: {names}"
    if _domain_each(machine, bridges):
        return f"{len(machine.gpus)} GPUs, each alone in a PCI domain without a bridge"
    if _without_data(machine):
        return "GPUs without vendor, device or gpu data: a file made by hand"
    return None


def _is_bridge(device: Device) -> bool:
    return device.kind in (DeviceKind.BRIDGE, DeviceKind.ROOT_PORT, DeviceKind.SWITCH_PORT)


def _is_invented(device: Device) -> bool:
    address = device.bus_id or ""
    return address.startswith("ffff:ff") or device.facts.get("vendor") in _INVENTED_VENDORS


def _domain_each(machine: Machine, bridges: list[Device]) -> bool:
    domains = [gpu.bus_id.split(":")[0] for gpu in machine.gpus if gpu.bus_id]
    placed = [gpu for gpu in machine.gpus if gpu.parent is not None]
    alone = len(set(domains)) == len(domains) == len(machine.gpus) > 1
    return alone and not bridges and len(placed) == len(machine.gpus)


def _without_data(machine: Machine) -> bool:
    """NCCL writes ids and <gpu> elements into its own dumps; a hand-made file has neither."""

    def bare(gpu: Gpu) -> bool:
        return gpu.vendor is None and gpu.device_id is None and "dev" not in gpu.facts

    nodes = any(device.facts.get("affinity") for device in machine.devices)
    return bool(machine.gpus) and nodes and all(map(bare, machine.gpus))


def empty_affinity(facts: Facts) -> Iterator[Finding]:
    """NCCL finds no CPU near a GPU: a guest, or a process that is bound elsewhere."""
    found = _of(facts, "empty_affinity")
    if found:
        yield suspected("virtual-topology", _quoted(found))


def is_invented(machine: Machine) -> bool:
    """Whether the tree shows by itself that no hardware has it."""
    return _invented(machine) is not None


def cpu_masks(facts: Facts) -> Iterator[Finding]:
    """Masks of a topology file that overlap, or of which one is smaller than its like."""
    for machine in facts.machines:
        masks = {
            device.label: _mask(device.facts["affinity"])
            for device in machine.devices
            if device.kind is DeviceKind.NUMA_NODE and device.facts.get("affinity")
        }
        where = machine.sources[0]
        overlapping = [
            f"{one} and {other}"
            for one, mask in masks.items()
            for other, theirs in masks.items()
            if one < other and mask & theirs
        ]
        if overlapping:
            text = f"CPU masks of {listed(overlapping)} overlap ({where})."
            yield seen("cpu-mask-inconsistent", text)
            continue
        counts = {name: mask.bit_count() for name, mask in masks.items() if mask}
        most = max(counts.values(), default=0)
        short = [f"{name} has {count}" for name, count in counts.items() if count < most]
        # One node of two may be smaller on purpose; one among several alike is a slip.
        if short and len(short) < len(counts) - 1:
            text = f"{listed(short)} CPUs, the others {most} ({where})."
            yield seen("cpu-mask-inconsistent", text)


def _mask(printed: str) -> int:
    words = printed.split(",")
    try:
        return sum(int(word, 16) << 32 * at for at, word in enumerate(reversed(words)))
    except ValueError:
        return 0


def wsl(facts: Facts) -> Iterator[Finding]:
    """Windows' Linux: its kernel's name, its device, or the missing PCI tree."""
    found, lacking = _of(facts, "wsl"), _of(facts, "no_sysfs")
    live = [m for m in facts.machines if m.host.get("virtualisation") == "WSL2"]
    if found:
        yield seen("wsl", _quoted(found))
    elif live:
        yield seen("wsl", f"The kernel of this host is WSL's ({live[0].host.get('kernel')}).")
    elif lacking:
        yield suspected("wsl", _quoted(lacking))


def mig(facts: Facts) -> Iterator[Finding]:
    """GPUs in MIG mode, or instances listed."""
    for machine in facts.machines:
        on = [gpu.label for gpu in machine.gpus if gpu.mig]
        if on:
            yield seen("mig-no-p2p", f"MIG mode is on: {listed(on)} ({machine.sources[0]}).")
    found = _of(facts, "mig")
    if found:
        yield seen("mig-no-p2p", _quoted(found))


def container(facts: Facts) -> Iterator[Finding]:
    """What a namespace, cgroup or ulimit denied."""
    found = _of(facts, "container")
    if found:
        yield seen("container-limits", _quoted(found))


def driver_errors(facts: Facts) -> Iterator[Finding]:
    """Xid lines and failed static BAR1 mappings of the NVIDIA driver."""
    for kind, code in (("xid", "gpu-xid"), ("static_bar1", "bar1-mapping-missing")):
        found = _of(facts, kind)
        if found:
            yield seen(code, _quoted(found))
