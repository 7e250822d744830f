"""What the counters saw of each contender in each cell, beside what was to cross (P3)."""

from collections.abc import Iterable, Sequence

import msgspec

from linkbound.evidence.stats import median
from linkbound.evidence.types import Measured, Record
from linkbound.serve.contenders import cell_key
from linkbound.serve.traffic_check import TrafficCheck
from linkbound.values import Value


class TrafficRow(Value, frozen=True, kw_only=True):
    """One contender in one cell: medians over its repeats; None where no repeat has the figure."""

    contender: str
    cell: str
    n: int
    nvlink_bytes: float | None
    host_bytes: float | None
    over: str | None
    """The path of the arm, which is compared; None where nothing is to cross."""
    low_bytes: float | None
    high_bytes: float | None
    deviation: float | None
    """Of the repeat that is farthest off."""
    agrees: bool | None
    """Whether every repeat does; None where none can be compared."""
    reasons: tuple[str, ...]
    """Why repeats cannot be compared, or were not counted."""
    record_ids: tuple[str, ...]


def traffic_rows(records: Iterable[Record]) -> tuple[TrafficRow, ...]:
    """A row for each contender and cell among `serve.traffic` records, in order of appearance."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        key = (str(record.subject["contender"]), cell_key(record.subject))
        groups.setdefault(key, []).append(record)
    return tuple(_row(contender, cell, group) for (contender, cell), group in groups.items())


def _row(contender: str, cell: str, records: Sequence[Record]) -> TrafficRow:
    checks, reasons = [], []
    for record in records:
        match record.outcome:
            case Measured(values=values):
                check = msgspec.convert(values["check"], TrafficCheck)
                checks.append(check)
                if check.unknown is not None:
                    reasons.append(check.unknown.text)
            case other:
                reason = getattr(other, "reason", None)
                reasons.append("not counted" if reason is None else reason.text)
    deviations = [one.deviation for one in checks if one.deviation is not None]
    agreed = [one.agrees for one in checks if one.agrees is not None]
    return TrafficRow(
        contender=contender,
        cell=cell,
        n=len(checks),
        nvlink_bytes=_median(one.nvlink_bytes for one in checks),
        host_bytes=_median(one.host_bytes for one in checks),
        over=next((one.over for one in checks if one.over is not None), None),
        low_bytes=_median(one.low_bytes for one in checks),
        high_bytes=_median(one.high_bytes for one in checks),
        deviation=max(deviations, key=abs) if deviations else None,
        agrees=all(agreed) if agreed else None,
        reasons=tuple(dict.fromkeys(reasons)),
        record_ids=tuple(record.id for record in records),
    )


def _median(values: Iterable[float | None]) -> float | None:
    return median([value for value in values if value is not None])
