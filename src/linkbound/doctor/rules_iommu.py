"""IOMMU and ACS: what stands between two GPUs on the way through the root complex (M3)."""

from collections.abc import Iterator

from linkbound.doctor.gpus import gpu_buses
from linkbound.doctor.parse_kernel_arguments import (
    in_force,
    mentions_iommu,
    passes_through,
    translates,
)
from linkbound.doctor.suspicions import nvlink_only
from linkbound.doctor.types import DmaFault, Facts, KernelArguments, Message
from linkbound.doctor.vocabulary import by_source, healthy, listed, seen, suspected
from linkbound.evidence.types import Finding, Severity


def iommu_faults(facts: Facts) -> Iterator[Finding]:
    """Accesses that the IOMMU refused, by device."""
    gpus = gpu_buses(facts)
    by_device: dict[str, list[DmaFault]] = {}
    for fault in facts.dma_faults:
        by_device.setdefault(fault.device, []).append(fault)
    for device, faults in by_device.items():
        known = device in gpus or faults[0].driver in ("nvidia", "amdgpu", "nouveau")
        other = faults[0].driver is not None and not known
        where = by_source(fault.place for fault in faults)
        text = f"{len(faults)} {faults[0].unit} faults of {device} ({where})"
        if known:
            yield seen("iommu-translating", f"{text}: a GPU's DMA was refused.")
        elif not other:
            yield suspected("iommu-translating", f"{text}: the input does not say which device.")


def kernel_arguments(facts: Facts) -> Iterator[Finding]:
    """What the kernel was told about the IOMMU."""
    for line in in_force(facts.kernel_arguments):
        words = _where(line)
        if option := passes_through(line):
            yield healthy("iommu-passthrough", f"{option} {words}.")
        elif option := translates(line):
            yield seen("iommu-translating", f"{option} without iommu=pt {words}.")
        elif not mentions_iommu(line):
            yield seen("iommu-pt-missing", f"No IOMMU option {words}.")
    for line in facts.kernel_arguments:
        option = next((w for w in line.words if w.startswith("pcie_acs_override=")), None)
        if option:
            yield seen("acs-override-set", f"{option} {_where(line)}.")


def _where(line: KernelArguments) -> str:
    if line.in_use:
        return f"on the kernel command line ({line.place})"
    return f"in the boot loader's file ({line.place}; the line in use is not in the input)"


def library_warning(facts: Facts) -> Iterator[Finding]:
    """RCCL looks at the command line itself."""
    found = [message for message in facts.messages if message.kind == "no_iommu_pt"]
    if found:
        where = by_source(message.place for message in found)
        yield seen("iommu-pt-missing", f"The library says it: {found[0].text} ({where}).")


def iommu_domains(facts: Facts) -> Iterator[Finding]:
    """IOMMU groups that the kernel made, and whether their addresses are translated."""
    translated = [gpu for gpu in _group_types(facts) if gpu[1].startswith("DMA")]
    direct = [gpu for gpu in _group_types(facts) if gpu[1] == "identity"]
    if translated:
        names = listed(f"{name} ({kind})" for name, kind in translated)
        text = f"IOMMU group type of {names}: addresses are translated."
        if nvlink_only(facts):
            text += " Peer traffic takes NVLink here, which the IOMMU does not see."
            yield seen("iommu-translating", text, severity=Severity.INFO)
        else:
            yield seen("iommu-translating", text)
    elif direct:
        names = listed(name for name, _ in direct)
        yield healthy("iommu-passthrough", f"IOMMU group type identity of {names}.")
    default = [m for m in facts.messages if m.kind == "iommu_default"]
    if default and "Passthrough" in default[-1].text:
        yield healthy("iommu-passthrough", f"{default[-1].text} ({default[-1].place}).")
    elif default and (group := _gpu_group(facts)):
        text = f"{default[-1].text} ({default[-1].place}); {group.text} ({group.place})."
        yield seen("iommu-translating", text)


def _group_types(facts: Facts) -> list[tuple[str, str]]:
    return [
        (f"{gpu.label} {gpu.bus_id or ''}".strip(), kind)
        for machine in facts.machines
        for gpu in machine.gpus
        if (kind := gpu.facts.get("iommu_group_type"))
    ]


def _gpu_group(facts: Facts) -> Message | None:
    """The line that puts a GPU into an IOMMU group: only then is the default type its type."""
    gpus = gpu_buses(facts)
    return next(
        (
            message
            for message in facts.messages
            if message.kind == "iommu_group" and any(gpu in message.text for gpu in gpus)
        ),
        None,
    )


def acs(facts: Facts) -> Iterator[Finding]:
    """Ports that redirect peer requests, or that none of them does."""
    redirecting = [port for port in facts.acs if port.redirects and port.above_gpu is not False]
    placed = [port for port in redirecting if port.above_gpu or port.bus_id is None]
    if redirecting:
        names = listed(
            port.bus_id or "a port that the excerpt does not name" for port in redirecting
        )
        where = by_source(port.place for port in redirecting)
        text = f"ReqRedir+ or CmpltRedir+ in ACSCtl of {names} ({where})."
        clear = any(not port.redirects for port in facts.acs)
        certain = bool(placed) or not clear
        yield seen("acs-redirect", text) if certain else suspected("acs-redirect", text)
    elif facts.acs and not any(port.redirects for port in facts.acs):
        where = by_source(port.place for port in facts.acs)
        text = f"ACSCtl of {len(facts.acs)} ports, all ReqRedir- and CmpltRedir- ({where})."
        yield healthy("acs-clear", text)


def acs_override_warning(facts: Facts) -> Iterator[Finding]:
    """The kernel's own warning at boot."""
    for message in facts.messages:
        if message.kind == "acs_override":
            yield seen("acs-override-set", f"{message.text} ({message.place}).")
