"""Simulated figures beside measured ones of the same cell (E3)."""

from collections.abc import Mapping, Sequence
from statistics import median

from linkbound.predict.effects import range_error
from linkbound.predict.score_types import FrozenSet, Timing
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
    timing: Timing | None = None
    """None where it was simulated when the cell was scored, its times unread."""
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
    frozen: FrozenSet | None = None
    """None where cells were simulated when they were scored."""


def comparable(simulated: Simulation) -> dict[str, Estimate]:
    """Figures that a measured cell can have too: it does not say what goodput was aimed at."""
    return {name: outlook.whole for name, outlook in simulated.figures.items() if name != "goodput"}


def score_cell(
    measured: Row, figures: Mapping[str, Estimate], timing: Timing | None = None
) -> tuple[LoadScoreRow, ...]:
    """Figures that both have."""
    found = []
    for name, figure in measured.figures.items():
        whole = figures.get(name)
        if whole is None:
            continue
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
                timing=timing,
                record_ids=measured.record_ids,
            )
        )
    return tuple(found)


def summaries(rows: Sequence[LoadScoreRow]) -> tuple[LoadScoreSummary, ...]:
    """Median and worst error and coverage of every figure, in order of appearance.

    Of a frozen set only rows count that were measured after it.
    """
    found = []
    timely = [row for row in rows if row.timing in (None, Timing.BEFORE)]
    for figure in dict.fromkeys(row.figure for row in timely):
        mine = [row for row in timely if row.figure == figure]
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
