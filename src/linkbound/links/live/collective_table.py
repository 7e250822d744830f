"""Collectives as text: the arms side by side, with the path of each and the count of wrong
elements in the row (L4; sizes, times and bus bandwidth as in nccl-tests).
"""

from collections.abc import Iterable, Sequence

from linkbound.links.live.collective_rows import busbw_bytes_per_s
from linkbound.links.live.rows import LinkRow
from linkbound.links.types import Arm
from linkbound.units import format_significant

_WORDS = {
    "wrong-values": "corrupt",
    "transport-contradicts-arm": "other path",
    "transport-unproven": "unproven",
}
_Kind = tuple[str, tuple[str, ...], str, str, str]


def render_collectives(rows: Iterable[LinkRow]) -> str:
    """One table for each operation, method, group, launch and work beside; empty without rows."""
    tables: dict[_Kind, list[LinkRow]] = {}
    for row in rows:
        kind = (row.method, row.group, row.launch.value, row.operation.value, row.concurrency)
        tables.setdefault(kind, []).append(row)
    return "\n".join(_table(members) for members in tables.values())


def _table(rows: Sequence[LinkRow]) -> str:
    arms = list(dict.fromkeys(row.arm for row in rows if row.arm is not None))
    notes: list[str] = []
    lines = [_cells_of_size(rows, arms, size, notes) for size in sorted(_sizes(rows))]
    head = ["size_bytes"]
    for arm in arms:
        head += [f"{arm}_us", f"{arm}_busbw_GBps"]
    head += [f"{arm}/{arms[0]}" for arm in arms[1:]]
    head.append("#wrong")
    aligned = _aligned([head, *lines])
    footnotes = [f"[{number}] {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join([_title(rows, arms), *aligned, *footnotes, ""])


def _title(rows: Sequence[LinkRow], arms: Sequence[Arm]) -> str:
    first = rows[0]
    paths = [f"{arm}: via {_transport(rows, arm)}" for arm in arms]
    beside = "" if first.concurrency == "alone" else f"  {first.concurrency}"
    return f"{first.method}  {','.join(first.group)}  {first.launch}{beside}   {'   '.join(paths)}"


def _transport(rows: Sequence[LinkRow], arm: Arm) -> str:
    """The first pair's channels: the row's facts have them all."""
    shown = [row.facts["transport"] for row in rows if row.arm is arm and "transport" in row.facts]
    return shown[0].split("; ")[0] if shown else "a path that is not known"


def _sizes(rows: Sequence[LinkRow]) -> set[int]:
    return {row.size_bytes for row in rows}


def _cells_of_size(
    rows: Sequence[LinkRow], arms: Sequence[Arm], size: int, notes: list[str]
) -> list[str]:
    by_arm = {row.arm: row for row in rows if row.size_bytes == size}
    cells = [f"{size:,}"]
    for arm in arms:
        cells += _time_and_rate(by_arm.get(arm), notes)
    base = by_arm.get(arms[0])
    cells += [_ratio(by_arm.get(arm), base) for arm in arms[1:]]
    checked = [row.wrong for row in by_arm.values() if row.wrong is not None]
    cells.append(f"{sum(checked):,}" if checked else "unchecked")
    return cells


def _time_and_rate(row: LinkRow | None, notes: list[str]) -> tuple[str, str]:
    if row is None:
        return "not run", "not run"
    if row.time_s is None:
        return (_word(row, notes),) * 2
    rate = busbw_bytes_per_s(row.operation, len(row.group), row.size_bytes, row.time_s) / 1e9
    return format_significant(row.time_s * 1e6), _rate_text(rate)


def _rate_text(rate: float) -> str:
    """Two decimals below 100, and three digits where those would be zeros."""
    return f"{rate:,.2f}" if 1 <= rate < 100 else format_significant(rate)


def _word(row: LinkRow, notes: list[str]) -> str:
    """What stands for a number that does not exist, with the footnote that says why."""
    if row.reason is None:
        return "no samples"
    if row.reason.text not in notes:
        notes.append(row.reason.text)
    return f"{_WORDS.get(row.reason.code, row.reason.code)}[{notes.index(row.reason.text) + 1}]"


def _ratio(row: LinkRow | None, base: LinkRow | None) -> str:
    if row is None or base is None or row.time_s is None or base.time_s is None:
        return "unknown"
    return format_significant(row.time_s / base.time_s)


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
