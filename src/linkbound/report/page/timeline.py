"""Traced steps as rows over time: what each rank was busy with (P1).

A row is cut into columns of two pixels; in each the parts are stacked by their share of its time,
and what stays empty is a gap. Equal neighbours are one stroke, so a row is a few kilobytes at most.
"""

from collections.abc import Iterable, Sequence

from linkbound.profile.pieces import PieceKind, RankPieces
from linkbound.report.page.markup import esc
from linkbound.report.page.plot import grid_path, label, round_steps, svg
from linkbound.values import Value

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 900, 150, 70, 8, 40
ROW, NEXT_RANK, NEXT_GROUP = 22, 26, 36
COLUMN = 2
LOOKS = {
    PieceKind.COMPUTE: "t-matrix",
    PieceKind.WIRE: "t-crossings",
    PieceKind.WAITING: "t-waiting",
    PieceKind.UNDIVIDED: "t-overhead",
    PieceKind.HOST_COPY: "t-host",
}


class Group(Value, frozen=True, kw_only=True):
    """The ranks of one split: a row each, from `start_s` on."""

    name: str
    ranks: tuple[RankPieces, ...]
    start_s: float
    span_s: float
    label: str


def timeline(title: str, groups: Sequence[Group], unit_s: float, unit: str) -> str:
    """Every rank of every group on one scale of `unit`s of `unit_s` seconds."""
    most_s = max(one.span_s for one in groups)
    height = TOP + sum(_height(one) for one in groups) + BOTTOM
    body = _grid(most_s / unit_s, height, unit)
    y = TOP
    for group in groups:
        body += _group(group, y, most_s)
        y += _height(group)
    return svg(title, WIDTH, height, body)


def _height(group: Group) -> int:
    return NEXT_RANK * (len(group.ranks) - 1) + NEXT_GROUP


def _grid(most: float, height: int, unit: str) -> list[str]:
    strokes, words = [], []
    for value in round_steps(most):
        at = LEFT + value / most * (WIDTH - LEFT - RIGHT)
        strokes.append(f"M{at:.1f} {TOP}V{height - BOTTOM + 4}")
        words.append(label(at, height - BOTTOM + 18, f"{value:,.6g}", "c"))
    words.append(label(LEFT, height - 4, unit, "dim"))
    return [grid_path(strokes), *words]


def _group(group: Group, y: int, most_s: float) -> list[str]:
    width = group.span_s / most_s * (WIDTH - LEFT - RIGHT)
    found = []
    for number, one in enumerate(group.ranks):
        top = y + number * NEXT_RANK
        name = group.name if len(group.ranks) == 1 else f"{group.name} rank {one.rank}"
        found.append(label(LEFT - 8, top + 15, name, "e"))
        found.append(
            f'<rect class="idle" x="{LEFT}" y="{top}" width="{width:.1f}" height="{ROW}"/>'
        )
        found += _row(one, group, top, width)
    found.append(label(LEFT + width + 6, y + 15, group.label, "tn"))
    return found


def _row(rank: RankPieces, group: Group, top: int, width: float) -> list[str]:
    """A path for each kind of piece, its columns stacked on those of the kinds before."""
    columns = max(1, round(width / COLUMN))
    column_s = group.span_s / columns
    floor = [0] * columns
    found = []
    for kind, look in LOOKS.items():
        shares = _shares(rank, kind, group.start_s, column_s, columns)
        heights = [round(one * ROW) for one in shares]
        if any(heights):
            path = _path(floor, heights, top)
            found.append(f'<path class="{look}" d="{path}"><title>{esc(kind.value)}</title></path>')
        floor = [min(ROW, one + other) for one, other in zip(floor, heights, strict=True)]
    return found


def _shares(
    rank: RankPieces, kind: PieceKind, start_s: float, column_s: float, columns: int
) -> list[float]:
    """Of each column, the share of its time that pieces of this kind take."""
    taken = [0.0] * columns
    for one in rank.pieces:
        if one.kind is kind:
            from_, to = (one.start_s - start_s) / column_s, (one.end_s - start_s) / column_s
            for at in range(max(0, int(from_)), min(columns, int(to) + 1)):
                taken[at] += max(0.0, min(to, at + 1) - max(from_, at))
    return taken


def _path(floor: Sequence[int], heights: Sequence[int], top: int) -> str:
    strokes = []
    for first, last in _runs(list(zip(floor, heights, strict=True))):
        height = min(heights[first], ROW - floor[first])
        if height > 0:
            x, y = LEFT + first * COLUMN, top + ROW - floor[first] - height
            strokes.append(f"M{x} {y}h{(last - first) * COLUMN}v{height}H{x}z")
    return "".join(strokes)


def _runs(columns: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Stretches of equal columns: index of the first, and of the one after the last."""
    first = 0
    for at in range(1, len(columns) + 1):
        if at == len(columns) or columns[at] != columns[first]:
            yield first, at
            first = at
