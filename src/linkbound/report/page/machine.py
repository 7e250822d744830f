"""The machine as a picture, its pairs, and what each pair carries as heatmaps (M1, M2, L1)."""

from collections.abc import Callable, Iterable, Sequence

from linkbound.links.types import Operation, PairLatency, PairRate
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
from linkbound.units import format_significant

SHADES = 6
_GPU_COPIES = (Operation.COPY, Operation.COPY_BOTH_WAYS)
Matrix = dict[tuple[str, str], float]


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
    return table(caption, header, rows) + how(reading)


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
    among = [one for one in report.pair_rates if _among(one, labels)]
    grids = [
        _heatmap(
            f"{_rate_title(test[0])}, GB/s",
            labels,
            {(one.src, one.dst): one.bytes_per_s for one in test},
            _rate,
        )
        for test in _tests(among)
    ]
    grids += [
        _heatmap(
            f"{one.method}, us" + (f", {one.arm.value}" if one.arm else ""),
            labels,
            _latencies(report.pair_latencies, one),
            lambda seconds: format_significant(seconds * 1e6),
        )
        for one in _latency_tests(report.pair_latencies, labels)
    ]
    rest = [one for one in report.pair_rates if not _among(one, labels)]
    if not grids and not rest:
        return ""
    reading = (
        "Row is the source, column the destination; the number is in the cell, darker is more of "
        "it. Both ways: the sum of the two directions. A test's own name says who moves the bytes."
    )
    return section(
        "matrices",
        "What each pair carries",
        f'<div class="grids">{"".join(grids)}</div>',
        how(reading),
        f"<p>{cite(report.link_record_ids)}</p>",
        _rest(rest),
    )


def _among(one: PairRate, labels: Sequence[str]) -> bool:
    return (
        one.operation in _GPU_COPIES
        and one.src in labels
        and one.dst in labels
        and one.concurrency == "alone"
    )


def _tests(rates: Iterable[PairRate]) -> list[list[PairRate]]:
    """Rates of one test together, in the order of the file."""
    found: dict[tuple[object, ...], list[PairRate]] = {}
    for one in rates:
        key = (one.operation, one.implementation, one.method, one.arm, one.size_bytes)
        found.setdefault(key, []).append(one)
    return list(found.values())


def _rate_title(one: PairRate) -> str:
    ways = "both ways" if one.operation is Operation.COPY_BOTH_WAYS else "one way"
    arm = f", {one.arm.value}" if one.arm else ""
    return f"{one.method}, {ways}{arm}"


def _latency_tests(found: Iterable[PairLatency], labels: Sequence[str]) -> list[PairLatency]:
    """One of each kind of latency between GPUs."""
    kinds = {(one.method, one.arm): one for one in found if {one.src, one.dst} <= set(labels)}
    return list(kinds.values())


def _latencies(found: Iterable[PairLatency], like: PairLatency) -> Matrix:
    return {
        (one.src, one.dst): one.latency_s
        for one in found
        if (one.method, one.arm) == (like.method, like.arm)
    }


def _rate(bytes_per_s: float) -> str:
    rate = bytes_per_s / 1e9
    return f"{rate:,.2f}" if rate < 100 else f"{rate:,.0f}"


def _heatmap(
    title: str, labels: Sequence[str], values: Matrix, write: Callable[[float], str]
) -> str:
    most = max(values.values())
    header = [text("src \\ dst"), *(number(label) for label in labels)]
    rows = [
        [text(src), *(_heat_cell(src, dst, values, most, write) for dst in labels)]
        for src in labels
    ]
    return table(esc(title), header, rows, look="heat")


def _heat_cell(
    src: str, dst: str, values: Matrix, most: float, write: Callable[[float], str]
) -> Cell:
    value = values.get((src, dst))
    if value is None:
        return number("-") if src == dst else number("not measured", "absent")
    shade = min(SHADES - 1, int(SHADES * value / most)) if most > 0 else 0
    return number(write(value), f"h{shade}")


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
