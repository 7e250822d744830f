"""Simulated figures beside measured ones of the same cell (E3)."""

from collections.abc import Sequence
from statistics import median

from linkbound.predict.effects import range_error
from linkbound.predict.simulate.types import Simulation
from linkbound.predict.types import Estimate
from linkbound.serve.compare_runs import Row
from linkbound.values import Value


class LoadScoreRow(Value, frozen=True, kw_only=True):
    """One figure of one contender in one cell."""

    contender: str
    cell: str
    figure: str
    """As `serve.compare_runs` names them: `ttft_p99_s`, `output_tokens_per_s`, ..."""
    measured: float
    """Median of the repeats."""
    measured_low: float
    measured_high: float
    n: int
    """Repeats."""
    predicted: Estimate
    error: float
    """0 inside the repeats' range, else the distance to its nearer end over that end."""
    record_ids: tuple[str, ...]


class LoadScoreSummary(Value, frozen=True, kw_only=True):
    """All rows of one figure."""

    figure: str
    rows: int
    median: float
    worst: float
    coverage: float
    """Share of rows whose interval meets the repeats' range."""


class LoadScore(Value, frozen=True, kw_only=True):
    """Every figure that both have."""

    rows: tuple[LoadScoreRow, ...]
    summaries: tuple[LoadScoreSummary, ...]
    skipped: tuple[str, ...]
    """Cells that are not compared, each with why."""


def score_cell(measured: Row, simulated: Simulation) -> tuple[LoadScoreRow, ...]:
    """Figures that both have; those of a load that somebody stated a target for are not compared.

    A measured cell does not say its target.
    """
    found = []
    for name, figure in measured.figures.items():
        outlook = simulated.figures.get(name)
        if outlook is None or name == "goodput":
            continue
        whole = outlook.whole
        found.append(
            LoadScoreRow(
                contender=measured.contender,
                cell=measured.cell,
                figure=name,
                measured=figure.median,
                measured_low=figure.low,
                measured_high=figure.high,
                n=figure.n,
                predicted=whole,
                error=range_error(whole.value, figure.low, figure.high),
                record_ids=measured.record_ids,
            )
        )
    return tuple(found)


def summaries(rows: Sequence[LoadScoreRow]) -> tuple[LoadScoreSummary, ...]:
    """Median and worst error and coverage of every figure, in order of appearance."""
    found = []
    for figure in dict.fromkeys(row.figure for row in rows):
        mine = [row for row in rows if row.figure == figure]
        met = [
            row.predicted.low <= row.measured_high and row.predicted.high >= row.measured_low
            for row in mine
        ]
        errors = [row.error for row in mine]
        found.append(
            LoadScoreSummary(
                figure=figure,
                rows=len(mine),
                median=median(errors),
                worst=max(errors),
                coverage=sum(met) / len(met),
            )
        )
    return tuple(found)
