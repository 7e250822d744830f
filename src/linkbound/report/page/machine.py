"""The machine as a picture, its pairs, and what each pair carries as heatmaps (M1, M2, L1)."""

from collections.abc import Sequence

from linkbound.links.types import Arm, Operation, PairRate
from linkbound.report.page.markup import (
    Cell,
    Citations,
    esc,
    how,
    items,
    number,
    section,
    table,
    text,
)
from linkbound.report.topology_svg import render_topology_svg
from linkbound.report.types import Report
from linkbound.report.words import NOT_KNOWN, visible
from linkbound.topology.types import Machine, PairPath
from linkbound.units import format_significant, format_size
from linkbound.values import Value

SHADES = 6
# Pairs of four GPUs; with more of them the matrices say it at a glance.
PAIRS_IN_THE_OPEN = 12
_GPU_COPIES = (Operation.COPY, Operation.COPY_BOTH_WAYS)


class HeatCell(Value, frozen=True, kw_only=True):
    """A figure of a pair, and the path that was open if the tool shows it."""

    value: float
    words: str
    arm: Arm | None


Matrix = dict[tuple[str, str], HeatCell]
"""By source and destination."""


def machine(report: Report, cite: Citations) -> str:
    """Picture, pairs and what sources disagree about."""
    picture = visible(render_topology_svg(report.machine))
    return section(
        "machine",
        "The machine",
        f'<figure class="machine"><div class="scroll">{picture}</div>',
        '<figcaption class="how">Sockets above bridges above GPUs. A blue line is a direct link '
        "and carries its word; dashed is what no source says. "
        f"{cite(report.machine_record_ids)}</figcaption></figure>\n",
        _pairs(report, cite),
        items(f"{esc(label)} is left out: {esc(why)}" for label, why in report.excluded.items()),
        _contradictions(report.machine),
    )


def _pairs(report: Report, cite: Citations) -> str:
    shown = report.machine
    paths = [
        shown.path(src.key, dst.key)
        for src in shown.gpus
        for dst in shown.gpus
        if src.key != dst.key
    ]
    if not paths:
        return ""
    states = list(dict.fromkeys(one for path in paths for one in path.status))
    header = [text("src -> dst"), text("path"), *(text(one.value) for one in states)]
    header.append(number("best copy GB/s"))
    rows = [
        [
            text(f"{_name(shown, path.pair.src)} -> {_name(shown, path.pair.dst)}"),
            text(_path_words(path)),
            *(text(path.status[one].value if one in path.status else NOT_KNOWN) for one in states),
            _best_copy(report, path),
        ]
        for path in paths
    ]
    caption = f"Ordered pairs of GPUs {cite((*report.machine_record_ids, *report.link_record_ids))}"
    reading = (
        "Each direction by itself, in the words of nvidia-smi; OK or the driver's reason. The copy "
        "is the fastest that a tool timed alone and one way."
    )
    shown_rows = table(caption, header, rows) + how(reading)
    if len(rows) <= PAIRS_IN_THE_OPEN:
        return shown_rows
    return f"<details><summary>{len(rows)} ordered pairs</summary>{shown_rows}</details>"


def _name(shown: Machine, key: str) -> str:
    return shown.gpu(key).label


def _path_words(path: PairPath) -> str:
    if path.label is None:
        return NOT_KNOWN
    return f"{path.label} (worked out)" if path.derived else path.label


def _best_copy(report: Report, path: PairPath) -> Cell:
    names = (_name(report.machine, path.pair.src), _name(report.machine, path.pair.dst))
    rates = [
        one.bytes_per_s
        for one in report.pair_rates
        if (one.src, one.dst) == names
        and one.operation is Operation.COPY
        and one.concurrency == "alone"
    ]
    return number(_rate(max(rates)) if rates else "not measured")


def _contradictions(shown: Machine) -> str:
    entries = [
        f"{esc(one.what)}: "
        + "; ".join(f"{esc(claim.source)} says {esc(claim.value)}" for claim in one.claims)
        for one in shown.contradictions
    ]
    if not entries:
        return ""
    return (
        f"<details><summary>Sources disagree ({len(entries)})</summary>{items(entries)}</details>"
    )


def matrices(report: Report, cite: Citations) -> str:
    """A heatmap for each test of copies between GPUs, then latencies, then the rest as rows."""
    labels = [gpu.label for gpu in report.machine.gpus]
    grids = [_heatmap(title, labels, cells) for title, cells in _tests(report, labels).items()]
    rest = [one for one in _largest(report.pair_rates) if not _among(one, labels)]
    if not grids and not rest:
        return ""
    reading = (
        "Row is the source, column the destination; the number is in the cell, darker is more of "
        "it. Both ways: the sum of the two directions. Where one test ran pairs over unlike paths, "
        "the cell names its own."
    )
    return section(
        "matrices",
        "What each pair carries",
        f'<div class="grids">{"".join(grids)}</div>',
        how(reading),
        f"<p>{cite(report.link_record_ids)}</p>",
        _rest(rest),
    )


def _largest(rates: Sequence[PairRate]) -> list[PairRate]:
    """Each test of a pair at its largest size: how rates grow with size is in the curves."""
    found: dict[tuple[str, str, Operation, str, Arm | None, str], PairRate] = {}
    for one in rates:
        key = (one.src, one.dst, one.operation, one.method, one.arm, one.concurrency)
        if key not in found or (one.size_bytes or 0) > (found[key].size_bytes or 0):
            found[key] = one
    return list(found.values())


def _among(one: PairRate, labels: Sequence[str]) -> bool:
    return (
        one.operation in _GPU_COPIES
        and one.src in labels
        and one.dst in labels
        and one.concurrency == "alone"
    )


def _tests(report: Report, labels: Sequence[str]) -> dict[str, Matrix]:
    """Cells of each test by its title, in the order of the files."""
    found: dict[str, Matrix] = {}
    for rate in _largest(report.pair_rates):
        if _among(rate, labels):
            cell = HeatCell(value=rate.bytes_per_s, words=_rate(rate.bytes_per_s), arm=rate.arm)
            found.setdefault(_rate_title(rate), {})[rate.src, rate.dst] = cell
    for latency in report.pair_latencies:
        if latency.src in labels and latency.dst in labels:
            words = format_significant(latency.latency_s * 1e6)
            cell = HeatCell(value=latency.latency_s, words=words, arm=latency.arm)
            title = latency.method if "(us)" in latency.method else f"{latency.method}, us"
            found.setdefault(title, {})[latency.src, latency.dst] = cell
    return found


def _rate_title(one: PairRate) -> str:
    ways = "both ways" if one.operation is Operation.COPY_BOTH_WAYS else "one way"
    size = "" if one.size_bytes is None else f", {format_size(one.size_bytes)}"
    unit = "" if "GB/s" in one.method else ", GB/s"
    return f"{one.method}, {ways}{size}{unit}"


def _rate(bytes_per_s: float) -> str:
    rate = bytes_per_s / 1e9
    return f"{rate:,.2f}" if rate < 100 else f"{rate:,.0f}"


def _heatmap(title: str, labels: Sequence[str], cells: Matrix) -> str:
    arms = {cell.arm for cell in cells.values() if cell.arm is not None}
    only = f", {next(iter(arms)).value}" if len(arms) == 1 else ""
    most = max(cell.value for cell in cells.values())
    header = [text("src \\ dst"), *(number(label) for label in labels)]
    rows = [
        [
            text(src),
            *(_heat_cell(src == dst, cells.get((src, dst)), most, not only) for dst in labels),
        ]
        for src in labels
    ]
    return table(f"{esc(title)}{only}", header, rows, look="heat")


def _heat_cell(same: bool, cell: HeatCell | None, most: float, named: bool) -> Cell:
    if cell is None:
        return number("-") if same else number("not measured", "absent")
    shade = min(SHADES - 1, int(SHADES * cell.value / most)) if most > 0 else 0
    words = f"{cell.words} {cell.arm.value}" if named and cell.arm is not None else cell.words
    return number(words, f"h{shade}")


def _rest(rates: Sequence[PairRate]) -> str:
    if not rates:
        return ""
    header = [text("src -> dst"), text("operation"), text("test"), text("at the same time")]
    header.append(number("GB/s"))
    rows = [
        [
            text(f"{one.src} -> {one.dst}"),
            text(one.operation.value.replace("_", " ")),
            text(one.method),
            text(one.concurrency),
            number(_rate(one.bytes_per_s)),
        ]
        for one in rates
    ]
    return (
        f"<details><summary>Host copies, copies inside a GPU and several at once "
        f"({len(rates)} figures)</summary>{table('As the tools printed them', header, rows)}"
        "</details>"
    )
