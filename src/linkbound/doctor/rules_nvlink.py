"""NVLink, NVSwitch and XGMI: what is down and what is missing by design (M1, M3)."""

from collections import Counter
from collections.abc import Iterator

from linkbound.doctor.identity import identity, kinds, may_be_same
from linkbound.doctor.parts import (
    PAIRED_LINKS,
    has_xgmi,
    is_paired,
    model_of,
    never_has_nvlink,
    nvlink_part,
)
from linkbound.doctor.types import Facts
from linkbound.doctor.vocabulary import healthy, listed, seen, suspected
from linkbound.evidence.types import Finding
from linkbound.topology.types import Gpu, Machine, PathKind

_NEAR = (PathKind.PIX, PathKind.PXB)


def links_down(facts: Facts) -> Iterator[Finding]:
    """Links that a GPU lists as inactive, or fewer active ones than its siblings."""
    for machine in facts.machines:
        most: dict[str | None, int] = {}
        for gpu in machine.gpus:
            most[gpu.model] = max(most.get(gpu.model, 0), _active(gpu))
        for gpu in machine.gpus:
            if gpu.nvlinks:
                yield from _links_of(gpu, machine.sources[0], most[gpu.model])


def _active(gpu: Gpu) -> int:
    return sum(1 for link in gpu.nvlinks if link.active)


def _links_of(gpu: Gpu, source: str, siblings: int) -> Iterator[Finding]:
    down = [link.index for link in gpu.nvlinks if link.active is False]
    states = any(link.active is not None for link in gpu.nvlinks)
    model, part = model_of(gpu), nvlink_part(model_of(gpu))
    name = f"{gpu.label} {model or ''}".strip()
    known = len(gpu.nvlinks) if not down else _active(gpu)
    text = f"{name}: link {listed(down)} inactive, {_active(gpu)} active ({source})."
    if not states and not part:
        return
    if part and known < part.links and (states or gpu.nvlinks):
        missing = f"link {listed(down)} inactive" if down else "the others are not listed"
        yield seen(
            "nvlink-down", f"{name}: {known} of {part.links} links active, {missing} ({source})."
        )
    elif states and 0 < _active(gpu) < siblings:
        yield seen(
            "nvlink-down",
            f"{name}: {_active(gpu)} links active, {siblings} on its siblings ({source}).",
        )
    elif down and _lacks_by_design(gpu, model, siblings):
        yield healthy("nvlink-absent-by-design", text)
    elif down and not part:
        yield suspected("nvlink-down", text)


def _lacks_by_design(gpu: Gpu, model: str | None, siblings: int) -> bool:
    """All links that the card brings out are up, or it has no connector, or no bridge is on it."""
    if never_has_nvlink(model) or (is_paired(model) and _active(gpu) == PAIRED_LINKS):
        return True
    return model is not None and nvlink_part(model) is None and siblings == 0


def fabric_gap(facts: Facts) -> Iterator[Finding]:
    """A GPU that has fewer links to every peer than the others have among themselves."""
    for machine in facts.machines:
        counts = link_counts(machine)
        best = {gpu.key: max(counts.get(gpu.key, {}).values(), default=0) for gpu in machine.gpus}
        usual, times = Counter(best.values()).most_common(1)[0] if best else (0, 0)
        if len(best) < 4 or times < len(best) - 1:
            continue
        for gpu in machine.gpus:
            if 0 < best[gpu.key] < usual and len(counts[gpu.key]) == len(machine.gpus) - 1:
                text = f"{gpu.label}: NV{best[gpu.key]} to its peers, the others NV{usual}"
                yield seen("nvlink-down", f"{text} ({machine.sources[0]}).")


def link_counts(machine: Machine) -> dict[str, dict[str, int]]:
    """NVLinks of each printed pair: src, dst, count."""
    counts: dict[str, dict[str, int]] = {}
    for path in machine.pairs:
        if path.kind is PathKind.NVLINK and path.nvlink_count:
            counts.setdefault(path.pair.src, {})[path.pair.dst] = path.nvlink_count
    return counts


def no_links_at_all(facts: Facts) -> Iterator[Finding]:
    """Eight GPUs with a near NIC each are built with NVLink as a rule, and none is printed."""
    for machine in facts.machines:
        paths = kinds(machine)
        if not paths or PathKind.NVLINK in paths.values() or PathKind.XGMI in paths.values():
            continue
        where = machine.sources[0]
        modules = _modules_of(facts, where)
        if modules and len(machine.gpus) > 1 and not _derived(machine):
            text = f"{listed(modules)}, and no NV# between any GPUs ({where})."
            yield suspected("fabric-manager-down", text)
        near = _near_nics(machine)
        if len(machine.gpus) >= 8 and near and not _derived(machine):
            text = (
                f"{len(machine.gpus)} GPUs, no NV# between any, and a NIC of its own near each of "
                f"{len(near)} ({where}): the layout of NVLink modules."
            )
            yield suspected("nvlink-down", text)


def _derived(machine: Machine) -> bool:
    return any(path.derived for path in machine.pairs)


def _modules_of(facts: Facts, source: str) -> list[str]:
    """NVLink modules that inputs of the same machine name."""
    ours = identity(facts, source)
    return [
        name
        for machine in facts.machines
        if may_be_same(ours, identity(facts, machine.sources[0]))
        for gpu in machine.gpus
        if (name := model_of(gpu)) and nvlink_part(name)
    ]


def _near_nics(machine: Machine) -> dict[str, str]:
    """The near NIC of each GPU whose row is printed; empty where one has none or shares it."""
    rows = {path.gpu for path in machine.nic_paths}
    near = {path.gpu: path.nic for path in machine.nic_paths if path.kind in _NEAR}
    own = len(set(near.values())) == len(near)
    return near if own and rows and near.keys() == rows and len(rows) > 2 else {}


def xgmi(facts: Facts) -> Iterator[Finding]:
    """AMD: XGMI in one input and PCIe in the library's graph, or modules that always have it."""
    joined = [machine for machine in facts.machines if _has_xgmi_path(machine)]
    for machine in facts.machines:
        if _has_xgmi_path(machine) or len(machine.gpus) < 2 or not _derived(machine):
            continue
        if any(gpu.vendor != "AMD" for gpu in machine.gpus):
            continue
        other = next((one for one in joined if _has_same_buses(machine, one)), None)
        if other:
            text = f"XGMI in {other.sources[0]}, PCIe paths only in {machine.sources[0]}."
            yield seen("xgmi-unused", text)
        elif all(map(has_xgmi, machine.gpus)):
            ids = listed(gpu.model or gpu.device_id for gpu in machine.gpus)
            yield suspected("xgmi-unused", f"{ids} without XGMI in {machine.sources[0]}.")
    for log in facts.logs:
        pcie = {path.type for path in log.paths} & {"PHB", "SYS", "PIX", "PXB", "NODE"}
        if log.library != "nccl" and pcie and not {path.type for path in log.paths} - pcie:
            for machine in joined:
                if may_be_same(identity(facts, log.source), identity(facts, machine.sources[0])):
                    text = f"XGMI in {machine.sources[0]}, {listed(pcie)} in {log.source}."
                    yield seen("xgmi-unused", text)


def _has_xgmi_path(machine: Machine) -> bool:
    return any(path.kind is PathKind.XGMI for path in machine.pairs)


def _has_same_buses(one: Machine, other: Machine) -> bool:
    """Equal bus ids; rocm-smi prints none, and equally many GPUs have to do."""
    buses = {gpu.bus_id for gpu in other.gpus}
    return len(one.gpus) == len(other.gpus) and buses in ({gpu.bus_id for gpu in one.gpus}, {None})


def amd_hops(facts: Facts) -> Iterator[Finding]:
    """rocm-smi's table of hops or weights."""
    for machine in facts.machines:
        hops = {path.hops for path in machine.pairs if path.hops is not None}
        weights = any(key.startswith("Weight to") for gpu in machine.gpus for key in gpu.facts)
        amd = any(gpu.vendor == "AMD" for gpu in machine.gpus)
        if amd and not _derived(machine) and (hops or weights):
            said = f"hops {listed(sorted(hops))}" if hops else "weights"
            text = f"{said} between GPUs ({machine.sources[0]}): classes of path, not links."
            yield healthy("amd-hops-not-links", text)
