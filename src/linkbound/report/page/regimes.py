"""The map of batch and length: what bounds a step, and how much of it the link takes (S4)."""

from collections.abc import Sequence

from linkbound.predict.types import Regime, RegimeCell
from linkbound.report.page.markup import Cell, Citations, esc, how, number, section, table, text
from linkbound.report.types import MapShown, Report
from linkbound.splits.types import Phase
from linkbound.units import format_time

LETTERS = {Regime.COMPUTE: "C", Regime.MEMORY: "M", Regime.LATENCY: "S", Regime.LINK: "L"}
_LENGTH = {Phase.DECODE: "cached tokens", Phase.PREFILL: "prompt tokens"}


def maps(report: Report, cite: Citations) -> str:
    """Two grids a plan."""
    grids = "".join(
        _grid(shown, phase, cite)
        for shown in report.maps
        for phase in (Phase.DECODE, Phase.PREFILL)
    )
    if not grids:
        return ""
    reading = (
        "The letter is what takes most of a step: C matrix products, M memory reads, S small "
        "kernels, host and engine, L the link. The number is the link's share in percent, waiting "
        "included; darker is more. + the step is faster than on one GPU, - it is not; neither "
        "where one GPU cannot hold it. A prefill is all steps that the engine makes of it. "
        "Predicted."
    )
    return section(
        "map",
        "Where the split is link-bound",
        f'<div class="grids twos">{grids}</div>',
        how(reading),
    )


def _grid(shown: MapShown, phase: Phase, cite: Citations) -> str:
    cells = {(one.batch, one.length): one for one in shown.cells if one.phase is phase}
    if not cells:
        return ""
    batches = sorted({batch for batch, _ in cells})
    lengths = sorted({length for _, length in cells})
    caption = (
        f"{esc(shown.plan.name)}, {phase.value}: batch by {_LENGTH[phase]} {cite(shown.record_ids)}"
    )
    header = [text("batch"), *(number(f"{one:,}") for one in lengths)]
    return table(caption, header, _rows(cells, batches, lengths), look="heat map")


def _rows(
    cells: dict[tuple[int, int], RegimeCell], batches: Sequence[int], lengths: Sequence[int]
) -> list[list[Cell]]:
    return [
        [text(f"{batch:,}"), *(_cell(cells.get((batch, length))) for length in lengths)]
        for batch in batches
    ]


def _cell(found: RegimeCell | None) -> Cell:
    if found is None:
        return number("not priced", "absent")
    if not found.fits:
        return number("does not fit", "absent")
    sign = {True: "+", False: "-", None: ""}[found.faster_than_one]
    share = round(100 * found.link_share)
    shade = min(5, int(found.link_share * 8))
    title = f"step ~{format_time(found.step_s)}, bound by {found.regime.value}"
    words = f"<b>{LETTERS[found.regime]}</b> {share}{sign}"
    return Cell(words, f"n h{shade}", title)
