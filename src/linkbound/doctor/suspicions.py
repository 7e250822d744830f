"""Suspicions that a symptom allows, and what in the inputs ends them (M3).

The input must leave room for peer transfers over PCIe: granted, used, or nothing said.
"""

from collections.abc import Iterator

from linkbound.doctor.identity import identity, kinds, may_be_same
from linkbound.doctor.parse_kernel_arguments import in_force, passes_through
from linkbound.doctor.parse_module_options import STATIC_BAR1
from linkbound.doctor.parts import model_of, nvlink_part
from linkbound.doctor.types import Facts, Symptom
from linkbound.doctor.vocabulary import listed, suspected
from linkbound.evidence.types import Finding
from linkbound.links.log_types import TransportKind
from linkbound.topology.types import Capability, Machine, PathKind, PeerStatus

_LOST = (Symptom.HANG, Symptom.CORRUPT)


def lost_transfers(facts: Facts) -> Iterator[Finding]:
    """With a hang or wrong results: the causes that stop or lose peer writes."""
    if facts.symptom not in _LOST or no_room(facts) is not None:
        return
    room = _room(facts)
    if facts.symptom is Symptom.HANG:
        yield suspected("p2p-hang", f"A hang was reported; {room}.")
    elif not any(check.correct for check in facts.peer_checks):
        yield suspected("p2p-corruption", f"Wrong results were reported; {room}.")
    if not _is_passed_through(facts):
        text = f"{room}, and no iommu=pt or IOMMU off in the input."
        yield suspected("iommu-translating", _capital(text))
    if not facts.acs:
        yield suspected("acs-redirect", _capital(f"{room}, and no ACSCtl line in the input."))
    if _granted_by_driver(facts) and not _static_mapping_set(facts):
        granted = listed(_granted_by_driver(facts))
        text = f"nvidia-smi calls {granted} OK; nothing shows that the BAR1 mapping works."
        yield suspected("bar1-mapping-missing", text)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def no_room(facts: Facts) -> str | None:
    """Why peer transfers over PCIe cannot be the cause; None where they can."""
    used = {one.kind for log in facts.logs for one in log.transports}
    if TransportKind.P2P in used:
        return "NVLink joins all GPUs" if nvlink_only(facts) else None
    if _all_refused(facts):
        return "peer access is refused for all pairs"
    if used:
        return "the channels use no peer transport"
    if _one_gpu_a_host(facts):
        return "each rank has a host of its own"
    if _all_differ(facts):
        return "no two GPUs are of one model"
    return "NVLink joins all GPUs" if nvlink_only(facts) else None


def _room(facts: Facts) -> str:
    used = [log.source for log in facts.logs if _has_p2p(log.transports)]
    if used:
        return f"peer transfers are used ({listed(used)})"
    granted = any(one.granted for _, one in facts.access)
    granted = granted or any(one.kind == "peer_allowed" for one in facts.messages)
    if granted or _granted_by_driver(facts):
        return "peer access is granted"
    return "nothing in the input rules peer transfers over PCIe out"


def _has_p2p(transports: tuple[object, ...]) -> bool:
    return any(getattr(one, "kind", None) is TransportKind.P2P for one in transports)


def _granted_by_driver(facts: Facts) -> list[str]:
    """Pairs that a peer matrix calls OK for reading or writing."""
    return [
        f"{labels[path.pair.src]}->{labels[path.pair.dst]}"
        for machine in facts.machines
        for labels in ({gpu.key: gpu.label for gpu in machine.gpus},)
        for path in machine.pairs
        if PeerStatus.OK in (path.status.get(Capability.READ), path.status.get(Capability.WRITE))
    ]


def _all_refused(facts: Facts) -> bool:
    """Every pair that any input speaks of is refused, by the driver or by CUDA."""
    answers = [one.granted for _, one in facts.access]
    kinds_of = ("peer_refused", "peer_allowed")
    answers += [one.kind == "peer_allowed" for one in facts.messages if one.kind in kinds_of]
    for machine in facts.machines:
        for path in machine.pairs:
            status = path.status.get(Capability.READ, path.status.get(Capability.WRITE))
            if status is not None and status is not PeerStatus.UNKNOWN:
                answers.append(status is PeerStatus.OK)
    said = bool(answers) or any(log.refusals for log in facts.logs)
    return said and not any(answers)


def _one_gpu_a_host(facts: Facts) -> bool:
    runs = [run for run in facts.runs if len(run.devices) > 1]
    return bool(runs) and all(
        len({device.host for device in run.devices}) == len(run.devices) for run in runs
    )


def _all_differ(facts: Facts) -> bool:
    """A listing of two or more GPUs in which no model occurs twice, and none where one does."""
    listings = [
        [name for gpu in machine.gpus if (name := model_of(gpu))] for machine in facts.machines
    ]
    several = [names for names in listings if len(names) > 1]
    return bool(several) and all(len(set(names)) == len(names) for names in several)


def nvlink_only(facts: Facts) -> bool:
    """A map joins all pairs by NVLink, or all GPUs are NVLink modules.

    A PCI tree of the same machine shows PCIe paths beside it; a map of another machine counts.
    """
    maps = [
        (machine, set(paths.values())) for machine in facts.machines if (paths := kinds(machine))
    ]
    linked = [machine for machine, found in maps if found == {PathKind.NVLINK}]
    if maps:
        return bool(linked) and all(
            any(_may_be(facts, machine, other) for other in linked) for machine, _ in maps
        )
    names = [name for machine in facts.machines for name in _names(machine)]
    names += [device.name for run in facts.runs for device in run.devices]
    return len(names) > 1 and all(map(nvlink_part, names))


def _may_be(facts: Facts, one: Machine, other: Machine) -> bool:
    same = may_be_same(identity(facts, one.sources[0]), identity(facts, other.sources[0]))
    return same and len(one.gpus) == len(other.gpus)


def _names(machine: Machine) -> list[str]:
    return [name for gpu in machine.gpus if (name := model_of(gpu))]


def _is_passed_through(facts: Facts) -> bool:
    arguments = in_force(facts.kernel_arguments)
    default = [one.text for one in facts.messages if one.kind == "iommu_default"]
    types = [
        gpu.facts.get("iommu_group_type") for machine in facts.machines for gpu in machine.gpus
    ]
    identity = bool(types) and all(kind == "identity" for kind in types)
    return (
        any(map(passes_through, arguments))
        or any("Passthrough" in text for text in default)
        or identity
    )


def _static_mapping_set(facts: Facts) -> bool:
    """Both keys are set, or a peer copy was verified at its owner."""
    keys = {option.key for option in facts.registry if option.value.strip("0x")}
    return keys >= STATIC_BAR1 or any(check.correct for check in facts.peer_checks)


def slow_transfers(facts: Facts) -> Iterator[Finding]:
    """With `slow`: peer access across sockets, which staging often beats."""
    if facts.symptom is not Symptom.SLOW:
        return
    for log in facts.logs:
        direct = [one for one in log.transports if one.kind is TransportKind.P2P]
        if not direct or len(direct) < len(log.transports):
            continue
        devices = {f"GPU{one.src_device}" for one in direct}
        devices |= {f"GPU{one.dst_device}" for one in direct}
        for machine in facts.machines:
            far = [
                pair
                for pair, kind in kinds(machine).items()
                if kind is PathKind.SYS and devices.issuperset(pair)
            ]
            if far:
                text = (
                    f"All channels of {log.source} are P2P, and {far[0][0]}-{far[0][1]} is SYS "
                    f"({machine.sources[0]})."
                )
                yield suspected("p2p-slower-than-staging", text)
                break
