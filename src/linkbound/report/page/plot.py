"""Plots as our own SVG: curves on log axes, ranges on one scale, stacked bars (E2, E3).

Coordinates have at most one decimal, so that equal input gives equal bytes. What was not measured
is dashed or hatched; colour never stands alone: series have markers, bars have hatches and numbers.
"""

import math
from collections.abc import Callable, Sequence

from linkbound.report.page.markup import esc
from linkbound.values import Value

LINE_WIDTH, LINE_HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 26, 40
BAR_WIDTH, BAR_LEFT, BAR_RIGHT = 900, 170, 150
ROW = 30
CHAR = 6.6
"""Pixels of a character at 12 px, an upper estimate."""
# Below this width a number would run out of its segment: it stays in the title.
LEAST_LABEL = 34
# An interval that is nowhere as high as its line is hidden by it.
LEAST_BAND = 2.0
MARKERS = ("circle", "square", "triangle", "diamond")


class Point(Value, frozen=True, kw_only=True):
    """A point of a series; low and high where it has an interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    title: str


class Series(Value, frozen=True, kw_only=True):
    """A line: `look` is its colour class, `marker` its shape, dashed where not measured."""

    name: str
    look: str
    marker: str
    points: tuple[Point, ...]
    dashed: bool = False


class Axis(Value, frozen=True, kw_only=True):
    """A logarithmic axis over low .. high, both above 0."""

    name: str
    low: float
    high: float

    def place(self, value: float) -> float:
        """Where a value stands between the ends: 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)


class Interval(Value, frozen=True, kw_only=True):
    """A row of ranges on one scale."""

    name: str
    look: str
    value: float
    low: float
    high: float
    label: str


class Segment(Value, frozen=True, kw_only=True):
    """A part of a stacked bar."""

    look: str
    value: float
    label: str
    title: str


class Bar(Value, frozen=True, kw_only=True):
    """A row of stacked segments; `marks` are lines across it with their titles."""

    name: str
    segments: tuple[Segment, ...]
    label: str
    marks: tuple[tuple[float, str, str], ...] = ()
    """Position, look and title."""


def lines(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    ticks: tuple[Callable[[float], str], Callable[[float], str]],
    *,
    powers_of_two: bool = True,
) -> str:
    """Series on two log axes, with a grid, bands for intervals and a marker at each point."""
    body = [*_grid(x, y, ticks, powers_of_two)]
    for one in series:
        body += _series(one, x, y)
    return svg(title, LINE_WIDTH, LINE_HEIGHT, body)


def _grid(
    x: Axis,
    y: Axis,
    ticks: tuple[Callable[[float], str], Callable[[float], str]],
    powers_of_two: bool,
) -> list[str]:
    rules, words = [], []
    bottom, right = LINE_HEIGHT - BOTTOM, LINE_WIDTH - RIGHT
    for value in _thinned(_powers(x, 2 if powers_of_two else 10), 7):
        at = _x(x, value)
        rules.append(f"M{_at(at)} {TOP}V{bottom}")
        words.append(label(at, bottom + 16, ticks[0](value), "c"))
    for value in _thinned(_powers(y, 10), 7):
        at = _y(y, value)
        rules.append(f"M{LEFT} {_at(at)}H{right}")
        words.append(label(LEFT - 6, at + 4, ticks[1](value), "e"))
    words.append(label((LEFT + right) / 2, LINE_HEIGHT - 6, x.name, "c dim"))
    words.append(label(4, 14, y.name, "dim"))
    return [grid_path(rules), *words]


def grid_path(strokes: list[str]) -> str:
    """The lines of a grid."""
    return f'<path class="grid" d="{"".join(strokes)}"/>'


def _at(value: float) -> str:
    """A coordinate: one decimal, none where it is zero."""
    return f"{value:.1f}".removesuffix(".0")


def _powers(axis: Axis, base: int) -> list[float]:
    first = math.ceil(math.log(axis.low, base) - 1e-9)
    last = math.floor(math.log(axis.high, base) + 1e-9)
    return [float(base) ** power for power in range(first, last + 1)]


def _thinned(values: list[float], most: int) -> list[float]:
    return values[:: max(1, math.ceil(len(values) / most))]


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (LINE_WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return LINE_HEIGHT - BOTTOM - axis.place(value) * (LINE_HEIGHT - TOP - BOTTOM)


def _series(series: Series, x: Axis, y: Axis) -> list[str]:
    found = []
    band = [
        (_x(x, one.x), _y(y, one.low), _y(y, one.high))
        for one in series.points
        if one.low is not None and one.high is not None
    ]
    if len(band) > 1 and any(low - high >= LEAST_BAND for _, low, high in band):
        upper = " ".join(f"{_at(at)},{_at(high)}" for at, _, high in band)
        lower = " ".join(f"{_at(at)},{_at(low)}" for at, low, _ in reversed(band))
        found.append(f'<polygon class="band {series.look}" points="{upper} {lower}"/>')
    path = " ".join(f"{_at(_x(x, one.x))},{_at(_y(y, one.y))}" for one in series.points)
    dashed = " dashed" if series.dashed else ""
    found.append(f'<polyline class="curve {series.look}{dashed}" points="{path}"/>')
    if not series.dashed:
        marks = (
            marker(series.marker, _x(x, one.x), _y(y, one.y), one.title) for one in series.points
        )
        found.append(f'<g class="mark {series.look}">{"".join(marks)}</g>')
    return [f"<g><title>{esc(series.name)}</title>{''.join(found)}</g>"]


def marker(shape: str, x: float, y: float, title: str = "") -> str:
    """A circle, square, triangle or diamond around a place."""
    named = f"<title>{esc(title)}</title>" if title else ""
    match shape:
        case "square":
            form = f'path d="M{_at(x - 3)} {_at(y - 3)}h6v6h-6z"'
        case "triangle":
            form = f'path d="M{_at(x)} {_at(y - 4)}l4 7h-8z"'
        case "diamond":
            form = f'path d="M{_at(x)} {_at(y - 4)}l4 4-4 4-4-4z"'
        case _:
            form = f'circle cx="{_at(x)}" cy="{_at(y)}"'
    return f"<{form}>{named}</{form.split(' ')[0]}>"


def ranges(
    title: str, rows: Sequence[Interval], unit: str, baseline: tuple[float, str] | None
) -> str:
    """One interval a row from 0 on one scale, and a line through the plan to beat."""
    most = max(one.high for one in rows) * 1.02
    height = TOP + len(rows) * ROW + BOTTOM
    body = _bar_grid(most, height, unit)
    for number, one in enumerate(rows):
        y = TOP + number * ROW + ROW / 2
        low, value, high = (_bar_x(edge, most) for edge in (one.low, one.value, one.high))
        body += [
            label(BAR_LEFT - 10, y + 4, _row_name(one.name), "e"),
            f"<g><title>{esc(one.name)}: {esc(one.label)}</title>"
            f'<rect class="reach {one.look}" x="{_at(low)}" y="{_at(y - 7)}" '
            f'width="{_at(max(high - low, 1))}" height="14" rx="2"/>'
            f'<line class="middle {one.look}" x1="{_at(value)}" x2="{_at(value)}" '
            f'y1="{_at(y - 9)}" y2="{_at(y + 9)}"/></g>',
            label(BAR_WIDTH - BAR_RIGHT + 8, y + 4, one.label, "tn"),
        ]
    if baseline is not None:
        at = _bar_x(baseline[0], most)
        body.append(
            f'<g><title>{esc(baseline[1])}</title><line class="baseline" x1="{_at(at)}" '
            f'x2="{_at(at)}" y1="{TOP - 6}" y2="{height - BOTTOM + 4}"/></g>'
        )
        body.append(label(at, TOP - 12, baseline[1], "c dim"))
    return svg(title, BAR_WIDTH, height, body)


def bars(title: str, rows: Sequence[Bar], unit: str) -> str:
    """Stacked bars on one scale; a segment that is wide enough carries its number."""
    ends = [sum(part.value for part in one.segments) for one in rows]
    most = max(*ends, *(at for one in rows for at, _, _ in one.marks), 1e-12) * 1.02
    height = TOP + len(rows) * ROW + BOTTOM
    body = _bar_grid(most, height, unit)
    for number, one in enumerate(rows):
        y = TOP + number * ROW + 5
        body.append(label(BAR_LEFT - 10, y + 14, _row_name(one.name), "e"))
        body += _segments(one, y, most)
        for at, look, title_of in one.marks:
            x = _bar_x(at, most)
            body.append(
                f'<g><title>{esc(title_of)}</title><line class="{look}" x1="{_at(x)}" '
                f'x2="{_at(x)}" y1="{y - 4}" y2="{y + 24}"/></g>'
            )
        body.append(label(BAR_WIDTH - BAR_RIGHT + 8, y + 14, one.label, "tn"))
    return svg(title, BAR_WIDTH, height, body)


def _row_name(name: str) -> str:
    """A name that stays left of its bar; the table below has it whole."""
    most = int((BAR_LEFT - 10) / CHAR)
    return name if len(name) <= most else name[: most - 3] + "..."


def _segments(bar: Bar, y: float, most: float) -> list[str]:
    found = []
    start = 0.0
    for part in bar.segments:
        left, right = _bar_x(start, most), _bar_x(start + part.value, most)
        start += part.value
        found.append(
            f'<rect class="part {part.look}" x="{_at(left)}" y="{_at(y)}" '
            f'width="{_at(right - left)}" height="20"><title>{esc(part.title)}</title></rect>'
        )
        if right - left > max(LEAST_LABEL, len(part.label) * CHAR + 6):
            found.append(label((left + right) / 2, y + 14, part.label, f"c in {part.look}"))
    return found


def _bar_grid(most: float, height: float, unit: str) -> list[str]:
    rules, words = [], []
    for value in round_steps(most):
        at = _bar_x(value, most)
        rules.append(f"M{_at(at)} {TOP}V{_at(height - BOTTOM + 4)}")
        words.append(label(at, height - BOTTOM + 18, f"{value:,.6g}", "c"))
    words.append(label(BAR_LEFT, height - 4, unit, "dim"))
    return [grid_path(rules), *words]


def round_steps(most: float) -> list[float]:
    """Round steps from 0 on, about six of them."""
    raw = most / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(one * power for one in (1, 2, 5, 10) if one * power >= raw)
    return [step * number for number in range(int(most / step) + 1)]


def _bar_x(value: float, most: float) -> float:
    return BAR_LEFT + value / most * (BAR_WIDTH - BAR_LEFT - BAR_RIGHT)


def label(x: float, y: float, words: str, look: str = "") -> str:
    """Words at a place; `c` and `e` in the look centre them or end them there."""
    named = f' class="{look}"' if look else ""
    return f'<text{named} x="{_at(x)}" y="{_at(y)}">{esc(words)}</text>'


def svg(title: str, width: float, height: float, body: Sequence[str]) -> str:
    """A picture that has its title and grows with the page."""
    return (
        f'<svg class="plot" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'role="img" aria-label="{esc(title)}">'
        f"<title>{esc(title)}</title>{''.join(body)}</svg>"
    )
