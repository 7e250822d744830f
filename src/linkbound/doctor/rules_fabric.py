"""Fabric manager and NVLink multicast: services and features of NVSwitch machines (M3)."""

from collections.abc import Iterator

from linkbound.doctor.parts import model_of, nvlink_part
from linkbound.doctor.types import Facts, Message
from linkbound.doctor.vocabulary import by_source, healthy, listed, seen, suspected
from linkbound.evidence.types import Finding


def fabric_manager(facts: Facts) -> Iterator[Finding]:
    """The service's own lines, and CUDA's error for switches that were not set up."""
    idle = _of(facts, "fm_not_needed")
    if idle:
        text = f"{idle[0].text} ({_where(idle)})."
        yield healthy("fabric-manager-not-needed", text)
    mismatch, failed = _of(facts, "fm_mismatch"), _of(facts, "fm_failed")
    if mismatch and not idle:
        yield seen("fabric-manager-down", f"{mismatch[0].text} ({_where(mismatch)}).")
    elif failed and not idle:
        text = f"{failed[0].text} ({_where(failed)})"
        modules, cards = _modules(facts), _cards(facts)
        if modules:
            yield seen("fabric-manager-down", f"{text}; the GPUs are {listed(modules)}.")
        elif cards:
            yield healthy("fabric-manager-not-needed", f"{text}; no NVSwitch: {listed(cards)}.")
        else:
            yield suspected("fabric-manager-down", f"{text}; the GPUs are not in the input.")
    yield from _not_ready(facts)


def _not_ready(facts: Facts) -> Iterator[Finding]:
    errors = _of(facts, "not_ready")
    if errors and not (_cards(facts) and not _modules(facts)):
        gpus = f"; the GPUs are {listed(_modules(facts))}" if _modules(facts) else ""
        text = f"CUDA error 802: {errors[0].text} ({_where(errors)}){gpus}."
        yield seen("fabric-manager-down", text)
    for machine in facts.machines:
        waiting = [
            f"{gpu.label} {gpu.facts['Fabric / State']}"
            for gpu in machine.gpus
            if gpu.facts.get("Fabric / State") in ("In Progress", "Not Started")
            and nvlink_part(model_of(gpu))
        ]
        if waiting:
            text = f"Fabric State of {listed(waiting)} ({machine.sources[0]})."
            yield seen("fabric-manager-down", text)


def _of(facts: Facts, kind: str) -> list[Message]:
    return [message for message in facts.messages if message.kind == kind]


def _where(messages: list[Message]) -> str:
    return by_source(message.place for message in messages)


def _names(facts: Facts) -> list[str]:
    names = [model_of(gpu) for machine in facts.machines for gpu in machine.gpus]
    return [name for name in names if name] + [
        device.name for run in facts.runs for device in run.devices
    ]


def _modules(facts: Facts) -> list[str]:
    return [name for name in _names(facts) if nvlink_part(name)]


def _cards(facts: Facts) -> list[str]:
    return [name for name in _names(facts) if not nvlink_part(name)]


def multicast(facts: Facts) -> Iterator[Finding]:
    """Whether NCCL has NVLink multicast, per log."""
    for message in _of(facts, "nvls_head")[:1]:
        yield healthy("nvls-used", f"{message.text} ({message.place}).")
    for log in facts.logs:
        counts = [channels.nvls for channels in log.channels if channels.nvls is not None]
        if log.nvls_available or any(counts):
            most = f", {max(counts)} nvls channels" if counts else ""
            yield healthy("nvls-used", f"NVLS multicast is available{most} ({log.source}).")
        elif (log.nvls_available is False or counts) and not _should_multicast(facts):
            said = "NVLS multicast is not available" if log.nvls_available is False else ""
            text = said or "0 nvls channels"
            yield healthy("nvls-absent", f"{text} ({log.source}).")
    errors = _of(facts, "nvls_error")
    if errors:
        yield seen("nvls-failed", f"{errors[0].text} ({_where(errors)}).")


def _should_multicast(facts: Facts) -> bool:
    """Whether named parts can multicast: then its absence is not fine by itself."""
    return any(part.multicast for name in _names(facts) if (part := nvlink_part(name)))
