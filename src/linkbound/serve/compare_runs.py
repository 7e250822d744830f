"""Contenders side by side: medians over repeats, their spread, the drift from first to last (P2).

Two contenders are told apart only where their repeats do not overlap, by a margin.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from linkbound.evidence.stats import median
from linkbound.evidence.types import Derived, Finding, Level, Measured, Record, Severity
from linkbound.serve.contenders import cell_key
from linkbound.serve.latency import LEAST_SAMPLES, LoadSummary, Spread
from linkbound.serve.traffic_rows import TrafficRow
from linkbound.values import Value


class Repeated(Value, frozen=True, kw_only=True):
    """A figure over the repeats of one contender in one cell, in the order they ran."""

    median: float
    low: float
    high: float
    n: int
    drift: float | None
    """Last repeat over first, minus 1; None of a single one."""


class Row(Value, frozen=True, kw_only=True):
    """One contender in one cell."""

    contender: str
    gpus: int | None
    """None for a server that somebody else started."""
    cell: str
    figures: Mapping[str, Repeated]
    """By name: `output_tokens_per_s`, `ttft_p50_s`, ...; absent where no repeat has it."""
    failed: int
    requests: int
    problems: tuple[str, ...]
    """Codes of repeats without figures."""
    record_ids: tuple[str, ...]


class Difference(Value, frozen=True, kw_only=True):
    """One figure of a contender over that of the first contender in the same cell."""

    contender: str
    baseline: str
    cell: str
    figure: str
    ratio: float
    low: float
    high: float
    """Ratios of the extremes of both sides' repeats."""
    told_apart: bool
    """Two repeats or more on both sides, and at least `LEAST_APART` between them."""


LEAST_APART = 0.01
"""An open loop that keeps up has the rate that was asked, to a thousandth: no difference."""


def _p99(one: Spread) -> float | None:
    """Records of earlier versions have it of a hundred requests; it is not shown of so few."""
    return one.at(0.99) if one.n >= LEAST_SAMPLES[0.99] else None


_FIGURES: Mapping[str, Callable[[LoadSummary], float | None]] = {
    "output_tokens_per_s": lambda one: one.output_tokens_per_s,
    "requests_per_s": lambda one: one.requests_per_s,
    "ttft_p50_s": lambda one: one.ttft_from_schedule_s.at(0.5),
    "ttft_p99_s": lambda one: _p99(one.ttft_from_schedule_s),
    "tpot_p50_s": lambda one: one.tpot_s.at(0.5),
    "tpot_p99_s": lambda one: _p99(one.tpot_s),
    "e2e_p50_s": lambda one: one.e2e_s.at(0.5),
    "e2e_p99_s": lambda one: _p99(one.e2e_s),
    "goodput": lambda one: one.goodput,
}


def rows_of(records: Iterable[Record]) -> tuple[Row, ...]:
    """A row for each contender and cell among `serve.load` records, in order of appearance."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        key = (str(record.subject["contender"]), cell_key(record.subject))
        groups.setdefault(key, []).append(record)
    return tuple(_row(contender, cell, group) for (contender, cell), group in groups.items())


def _row(contender: str, cell: str, records: Sequence[Record]) -> Row:
    summaries = []
    problems = []
    for record in records:
        match record.outcome:
            case Measured(values=values):
                summaries.append(msgspec.convert(values, LoadSummary))
            case other:
                reason = getattr(other, "reason", None)
                problems.append(reason.code if reason is not None else "no-figures")
    return Row(
        contender=contender,
        gpus=records[0].subject.get("gpus"),
        cell=cell,
        figures={
            name: repeated
            for name, figure in _FIGURES.items()
            if (repeated := _repeated([figure(one) for one in summaries])) is not None
        },
        failed=sum(one.failed for one in summaries),
        requests=sum(one.requests for one in summaries),
        problems=tuple(problems),
        record_ids=tuple(record.id for record in records),
    )


def _repeated(values: Sequence[float | None]) -> Repeated | None:
    present = [value for value in values if value is not None]
    middle = median(present)
    if middle is None:
        return None
    first, last = present[0], present[-1]
    return Repeated(
        median=middle,
        low=min(present),
        high=max(present),
        n=len(present),
        drift=last / first - 1 if len(present) > 1 and first else None,
    )


def differences_of(rows: Sequence[Row]) -> tuple[Difference, ...]:
    """Every later contender of a cell against the first that has the figure."""
    found = []
    for cell in dict.fromkeys(row.cell for row in rows):
        baseline, *others = (row for row in rows if row.cell == cell)
        for other in others:
            found += [
                _difference(other, baseline, figure)
                for figure in other.figures
                if figure in baseline.figures and baseline.figures[figure].low > 0
            ]
    return tuple(found)


def _difference(row: Row, baseline: Row, figure: str) -> Difference:
    mine, theirs = row.figures[figure], baseline.figures[figure]
    low, high = mine.low / theirs.high, mine.high / theirs.low
    apart = low > 1 + LEAST_APART or high < 1 - LEAST_APART
    return Difference(
        contender=row.contender,
        baseline=baseline.contender,
        cell=row.cell,
        figure=figure,
        ratio=mine.median / theirs.median,
        low=low,
        high=high,
        told_apart=apart and min(mine.n, theirs.n) > 1,
    )


def slower_findings(rows: Sequence[Row]) -> tuple[Finding, ...]:
    """Where more GPUs made requests slower than fewer did, beyond the spread of repeats (D2)."""
    return tuple(
        _slower(more, fewer, found)
        for more in rows
        for fewer in rows
        if more.cell == fewer.cell and (more.gpus or 0) > (fewer.gpus or 0) > 0
        for found in (_against(more, fewer, "e2e_p50_s"),)
        if found is not None and found.told_apart and found.ratio > 1
    )


def _against(row: Row, baseline: Row, figure: str) -> Difference | None:
    held = figure in row.figures and figure in baseline.figures
    return _difference(row, baseline, figure) if held else None


def _slower(more: Row, fewer: Row, found: Difference) -> Finding:
    return Finding(
        code="more-gpus-slower",
        level=Level.SEEN,
        severity=Severity.WARNING,
        seen=f"{more.cell}: {more.contender} takes {found.ratio:.2f} times as long as "
        f"{fewer.contender} ({found.low:.2f} to {found.high:.2f}), with {more.gpus} GPUs "
        f"instead of {fewer.gpus}.",
        why="Compute grew, and what crosses between the GPUs cost more than it saved.",
        remedy=f"Run {fewer.contender}, or look for the crossing: linkbound splits MODEL.",
        record_ids=tuple(dict.fromkeys((*more.record_ids, *fewer.record_ids))),
    )


def comparison_record(
    rows: Sequence[Row],
    differences: Sequence[Difference],
    findings: Sequence[Finding],
    subject: Mapping[str, Any],
    traffic: Sequence[TrafficRow] = (),
) -> Record:
    """The whole comparison, resting on the records of its cells."""
    ids = [row.record_ids for row in rows] + [row.record_ids for row in traffic]
    parents = tuple(dict.fromkeys(one for group in ids for one in group))
    return Record(
        kind="serve.comparison",
        subject=subject,
        outcome=Derived(
            values={
                "rows": msgspec.to_builtins(tuple(rows)),
                "differences": msgspec.to_builtins(tuple(differences)),
                "findings": msgspec.to_builtins(tuple(findings)),
                "traffic": msgspec.to_builtins(tuple(traffic)),
            }
        ),
        method="linkbound.serve.compare_runs",
        parents=parents,
    )
