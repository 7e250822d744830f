"""Curves: time and bandwidth against size, every arm of an operation in one plot (L2, L4)."""

from collections.abc import Callable, Sequence

from linkbound.evidence.types import Provenance
from linkbound.links.types import Arm, CurvePoint, Launch
from linkbound.report.page.markup import (
    Cell,
    Citations,
    esc,
    figure,
    how,
    number,
    section,
    table,
    text,
)
from linkbound.report.page.plot import MARKERS, Axis, Point, Series, lines, marker
from linkbound.report.types import CurveShown, Report
from linkbound.report.words import curve_words, or_word, unique, visible
from linkbound.units import format_rate, format_significant, format_size, format_time

# An operation of many groups (56 pairs of eight GPUs) is plotted for the first one only; the table
# has all of them.
PLOTTED_GROUPS = 1
NOT_REACHED = "not reached"
_LOOKS = {Arm.P2P: "p2p", Arm.NCCL: "nccl", Arm.STAGED: "staged", Arm.NET: "net", None: "plain"}
_FIRST_MARKER = {Arm.P2P: 0, Arm.NCCL: 1, Arm.STAGED: 2, Arm.NET: 3, None: 0}
_READING = (
    "Logarithmic axes: left, lower is better; right, higher (bytes of one call over its time). "
    "Solid with marks is measured, dashed is not; bands span repeats, of dashed ones what is "
    "assumed; hollow marks are CUDA graphs."
)
Group = tuple[str, tuple[str, ...]]


def curves(report: Report, cite: Citations) -> str:
    """Two plots for each operation and group, then the two regimes of every curve as a table."""
    groups: dict[Group, list[CurveShown]] = {}
    for one in report.curves:
        if len(one.curve.points) > 1:
            groups.setdefault((one.curve.key.operation.value, one.curve.key.group), []).append(one)
    plotted, left_out = _chosen(groups)
    notes = [how(f"{left_out} more groups are in the table only.")] if left_out else []
    return section(
        "curves",
        "What a transfer takes",
        *(_plots(group, groups[group], cite) for group in plotted),
        *notes,
        _regimes(report.curves, cite),
    )


def _chosen(groups: dict[Group, list[CurveShown]]) -> tuple[list[Group], int]:
    counts: dict[str, int] = {}
    plotted = []
    for group in groups:
        counts[group[0]] = counts.get(group[0], 0) + 1
        if counts[group[0]] <= PLOTTED_GROUPS:
            plotted.append(group)
    return plotted, len(groups) - len(plotted)


def _one_of_a_kind(shown: Sequence[CurveShown]) -> list[CurveShown]:
    """The fullest curve of each implementation, arm and launch: more of them hide each other."""
    best: dict[tuple[str, Arm | None, Launch], CurveShown] = {}
    for one in shown:
        kind = (one.curve.key.implementation, one.curve.key.arm, one.curve.key.launch)
        if kind not in best or len(one.curve.points) > len(best[kind].curve.points):
            best[kind] = one
    return list(best.values())


def _plots(group: Group, every: Sequence[CurveShown], cite: Citations) -> str:
    operation, members = group
    shown = _one_of_a_kind(every)
    title = f"{operation.replace('_', ' ')}, {' -> '.join(members)}"
    sizes = [point.size_bytes for one in shown for point in one.curve.points]
    x = Axis(name="bytes of one call", low=min(sizes) / 1.4, high=max(sizes) * 1.4)
    pictures = (
        _time_plot(title, shown, x),
        _rate_plot(title, shown, x),
    )
    ids = unique(record for one in shown for record in one.record_ids)
    legend = "".join(_legend(one) for one in _series(shown, _timed))
    picture = f'<div class="pair">{"".join(pictures)}</div><ul class="legend">{legend}</ul>'
    more = len(every) - len(shown)
    reading = f"{_READING} {more} more curves are in the table." if more else _READING
    return figure(title, picture, reading, cite(ids))


def _time_plot(title: str, shown: Sequence[CurveShown], x: Axis) -> str:
    series = _series(shown, _timed)
    y = _axis("time", series)
    return lines(f"{title}: time against size", series, x, y, (_size, format_time))


def _rate_plot(title: str, shown: Sequence[CurveShown], x: Axis) -> str:
    series = _series(shown, _rated)
    y = _axis("GB/s", series)
    ticks = (_size, lambda value: format_significant(value / 1e9, 1))
    return lines(f"{title}: bandwidth against size", series, x, y, ticks)


def _size(size_bytes: float) -> str:
    return format_size(round(size_bytes))


def _axis(name: str, series: Sequence[Series]) -> Axis:
    ends = [
        end
        for one in series
        for point in one.points
        for end in (point.low, point.y, point.high)
        if end is not None
    ]
    low, high = min(ends), max(ends)
    return Axis(name=name, low=low / 1.3, high=high * 1.3)


def _series(shown: Sequence[CurveShown], place: Callable[[CurvePoint], Point]) -> list[Series]:
    """Curves of one colour differ in their marker, and in how it is filled."""
    found: list[Series] = []
    for one in shown:
        key = one.curve.key
        look = _LOOKS[key.arm] + (" hollow" if key.launch is Launch.GRAPH else "")
        alike = sum(other.look == look for other in found)
        found.append(
            Series(
                name=f"{curve_words(one)} {visible(key.method)}".strip(),
                look=look,
                marker=MARKERS[(_FIRST_MARKER[key.arm] + alike) % len(MARKERS)],
                points=tuple(place(point) for point in one.curve.points),
                dashed=one.curve.provenance is not Provenance.MEASURED,
            )
        )
    return found


def _timed(point: CurvePoint) -> Point:
    return Point(
        x=point.size_bytes,
        y=point.time_s,
        low=point.low_s,
        high=point.high_s,
        title=f"{format_size(point.size_bytes)}, {format_time(point.time_s)}",
    )


def _rated(point: CurvePoint) -> Point:
    rate = point.size_bytes / point.time_s
    return Point(
        x=point.size_bytes,
        y=rate,
        low=None if point.high_s is None else point.size_bytes / point.high_s,
        high=None if point.low_s is None else point.size_bytes / point.low_s,
        title=f"{format_size(point.size_bytes)}, {format_rate(rate)}",
    )


def _legend(series: Series) -> str:
    dashed = " dashed" if series.dashed else ""
    line = f'<line class="curve {series.look}{dashed}" x1="0" x2="28" y1="7" y2="7"/>'
    mark = (
        "" if series.dashed else f'<g class="mark {series.look}">{marker(series.marker, 14, 7)}</g>'
    )
    picture = f'<svg width="28" height="14" aria-hidden="true">{line}{mark}</svg>'
    return f"<li>{picture} {esc(series.name)}</li>"


def _regimes(shown: Sequence[CurveShown], cite: Citations) -> str:
    if not shown:
        return ""
    header = [text(one) for one in ("curve", "operation", "group", "method")]
    header += [number(one) for one in ("points", "latency", "bandwidth", "half at")]
    header += [text("source"), text("records")]
    reading = (
        "Latency is the flat part at small sizes, bandwidth the slope of the largest decade; half "
        "at is the size where half of that bandwidth is reached. "
        f"'{NOT_REACHED}': the sizes that were timed do not show it."
    )
    return table("The two regimes of each curve", header, [_row(one, cite) for one in shown]) + how(
        reading
    )


def _row(shown: CurveShown, cite: Citations) -> list[Cell]:
    key, found = shown.curve.key, shown.fit
    return [
        text(curve_words(shown)),
        text(key.operation.value.replace("_", " ")),
        text(", ".join(key.group)),
        text(key.method),
        number(len(shown.curve.points)),
        number(or_word(found.latency_s, format_time, NOT_REACHED)),
        number(or_word(found.bytes_per_s, format_rate, NOT_REACHED)),
        number(or_word(found.half_size_bytes, _about_size, NOT_REACHED)),
        text(f"{shown.curve.source} ({shown.curve.provenance.value})"),
        Cell(cite(shown.record_ids)),
    ]


def _about_size(size_bytes: float) -> str:
    """A size that was read off a curve: three digits of KiB or MiB."""
    if size_bytes < 1024**2:
        return f"{format_significant(size_bytes / 1024)} KiB"
    return f"{format_significant(size_bytes / 1024**2)} MiB"
