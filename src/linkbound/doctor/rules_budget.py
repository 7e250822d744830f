"""Rates above what the stated link can carry: no delivery, a cache, or a wrong unit (L2, M3)."""

from collections.abc import Iterator

from linkbound.doctor.identity import identity, kinds, maps_of, may_be_same
from linkbound.doctor.parts import model_of, never_has_nvlink
from linkbound.doctor.types import Facts, LinkRow, RateMatrix, Switch
from linkbound.doctor.vocabulary import seen
from linkbound.evidence.types import Finding
from linkbound.topology.types import PathKind, PcieLink
from linkbound.units import format_rate

_PCIE = frozenset((PathKind.PIX, PathKind.PXB, PathKind.PHB, PathKind.NODE, PathKind.SYS))
_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_LINE_CODE = ((8.0, 0.8), (64.0, 128 / 130))
"""8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s; Gen6 has none of its own."""
_ROUNDING = 1.02


def pcie_bytes_per_s(link: PcieLink) -> float | None:
    """Raw bytes a second of one direction at the link's highest speed and present lanes."""
    width = link.width or link.max_width
    speed = link.max_gt_per_s or link.gt_per_s
    if width is None or speed is None:
        return None
    code = next((share for below, share in _LINE_CODE if speed < below), 1.0)
    return speed * 1e9 / 8 * width * code


def over_budget(facts: Facts) -> Iterator[Finding]:
    """A pair without NVLink whose rate no PCIe link of that width and generation delivers."""
    for matrix in facts.matrices:
        for pair, limit, stated in exceeded(facts, matrix):
            if _is_pcie(facts, matrix, pair):
                text = (
                    f"{pair[0]}->{pair[1]} {format_rate(matrix.cells[pair])} ({matrix.source}), "
                    f"the stated link carries {format_rate(limit)} ({stated})."
                )
                yield seen("link-budget-exceeded", text)
                break


def exceeded(facts: Facts, matrix: RateMatrix) -> Iterator[tuple[tuple[str, str], float, str]]:
    """Pairs above the PCIe links that some input states: pair, limit and that input."""
    limits = {} if matrix.switch is Switch.DISABLED else _limits(facts, matrix)
    for pair, rate in matrix.cells.items():
        if set(pair) <= limits.keys():
            limit, stated = min(limits[gpu] for gpu in pair)
            limit *= 2 if matrix.both_ways else 1
            if rate > _ROUNDING * limit:
                yield pair, limit, stated


def _limits(facts: Facts, matrix: RateMatrix) -> dict[str, tuple[float, str]]:
    """Raw rate of each GPU's link and the input that states it, by label."""
    ours = identity(facts, matrix.source)
    found: dict[str, tuple[float, str]] = {}
    for machine in facts.machines:
        alike = len(machine.gpus) == len(matrix.gpus)
        if alike and may_be_same(ours, identity(facts, machine.sources[0])):
            for gpu in machine.gpus:
                if gpu.pcie and (limit := pcie_bytes_per_s(gpu.pcie)):
                    found[gpu.label] = (limit, machine.sources[0])
    for row in facts.link_rows:
        if limit := pcie_bytes_per_s(_link(row)):
            found.setdefault(row.gpu, (limit, row.place.source))
    return found


def _link(row: LinkRow) -> PcieLink:
    generation = row.max_generation or row.generation
    speed = _GT_PER_S.get(generation) if generation else None
    return PcieLink(max_gt_per_s=speed, width=row.width, max_width=row.max_width)


def _is_pcie(facts: Facts, matrix: RateMatrix, pair: tuple[str, str]) -> bool:
    """Whether a map shows a PCIe path, or the cards have no NVLink connector."""
    maps = [paths[pair] for machine in maps_of(facts, matrix) if pair in (paths := kinds(machine))]
    if maps:
        return set(maps) <= _PCIE
    models = [
        model_of(gpu)
        for machine in facts.machines
        if matrix.source in machine.sources
        for gpu in machine.gpus
    ]
    return bool(models) and all(map(never_has_nvlink, models))
