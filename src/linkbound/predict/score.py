"""Predictions against measurements: errors, coverage, effects and signs (E3).

A prediction is right where it lies inside the repeats' range; else its error is the distance to the
nearer end, relative to that end. Points that calibration has seen are marked and not scored.
"""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from statistics import median

from linkbound.links.types import Arm
from linkbound.model.types import ModelShape
from linkbound.predict.calibrate import load_of, split_of
from linkbound.predict.forecast import forecast, plan_on
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate
from linkbound.serve.types import EngineRun, RunSpec
from linkbound.values import Value

# An effect counts where it exceeds this many times the spread of the repeats it is made of.
EFFECT_OVER_SPREAD = 3.0


class Metric(StrEnum):
    TPOT = "tpot_s"
    PREFILL = "prefill_s"


class ScoreRow(Value, frozen=True, kw_only=True):
    """One metric of one run, in seconds."""

    tag: str
    batch: int
    input: int
    metric: Metric
    measured: float
    measured_low: float
    measured_high: float
    predicted: float
    low: float
    high: float
    error: float
    seen: bool
    spec: RunSpec


class EffectRow(Value, frozen=True, kw_only=True):
    """What another arm or another GPU changes: measured and predicted, in seconds."""

    name: str
    model: str
    batch: int
    input: int
    metric: Metric
    measured: float
    measured_low: float
    measured_high: float
    predicted: float
    error: float
    scored: bool
    """Beyond three times the repeats' spread."""


class SignRow(Value, frozen=True, kw_only=True):
    """Whether the split is faster than one GPU, where the repeats' ranges do not overlap."""

    model: str
    split: str
    arm: Arm
    batch: int
    input: int
    metric: Metric
    helps: bool
    predicted_helps: bool


class Summary(Value, frozen=True, kw_only=True):
    """Medians and worsts of the rows that were not seen; None where there is none."""

    metric: str
    rows: int
    median: float | None
    worst: float | None
    coverage: float | None = None
    """Share of rows whose prediction interval meets the repeats' range."""


class Score(Value, frozen=True, kw_only=True):
    rows: tuple[ScoreRow, ...]
    effects: tuple[EffectRow, ...]
    signs: tuple[SignRow, ...]
    summaries: tuple[Summary, ...]
    skipped: tuple[str, ...] = ()
    """Points that this machine or model cannot have, each with its line and why."""


class Prediction(Value, frozen=True, kw_only=True):
    """What is fixed before any measured field is read."""

    spec: RunSpec
    prefill: Estimate
    tpot: Estimate | None


def predict_specs(
    specs: tuple[RunSpec, ...],
    engine_of: Callable[[str], Engine],
    excluded: Collection[str] = (),
) -> tuple[Prediction, ...]:
    """Predictions for points of a runs file; `engine_of` gives the engine for a model's name.

    GPUs with a label in `excluded` are not used.
    """
    return tuple(_predict(spec, engine_of(spec.model), excluded) for spec in specs)


def _predict(spec: RunSpec, engine: Engine, excluded: Collection[str]) -> Prediction:
    plan = plan_on(engine.book.machine, split_of(spec), spec.arm, excluded)
    found = forecast(engine, plan, load_of(spec))
    return Prediction(spec=spec, prefill=found.ttft_s, tpot=found.tpot_s)


def score(
    predictions: tuple[Prediction, ...],
    runs: tuple[EngineRun, ...],
    shapes: Mapping[str, ModelShape],
    seen: Callable[[RunSpec, ModelShape], bool],
) -> Score:
    """Compare fixed predictions with the runs of the same points, in the same order."""
    rows: list[ScoreRow] = []
    for prediction, run in zip(predictions, runs, strict=True):
        known = seen(run.spec, shapes[run.spec.model])
        rows.append(_row(run, Metric.PREFILL, prediction.prefill, _prefill_range(run), known))
        token = _token_range(run)
        if prediction.tpot is not None and token is not None:
            rows.append(_row(run, Metric.TPOT, prediction.tpot, token, known))
    effects = _effects(rows)
    return Score(
        rows=tuple(rows),
        effects=effects,
        signs=_signs(rows),
        summaries=_summaries(rows, effects),
    )


def _row(
    run: EngineRun,
    metric: Metric,
    predicted: Estimate,
    measured: tuple[float, float, float],
    seen: bool,
) -> ScoreRow:
    middle, low, high = measured
    return ScoreRow(
        tag=run.tag,
        batch=run.spec.batch,
        input=run.spec.prompt_tokens,
        metric=metric,
        measured=middle,
        measured_low=low,
        measured_high=high,
        predicted=predicted.value,
        low=predicted.low,
        high=predicted.high,
        error=range_error(predicted.value, low, high),
        seen=seen,
        spec=run.spec,
    )


def range_error(value: float, low: float, high: float) -> float:
    """0 inside low .. high, else the distance to the nearer end over that end's size.

    An end of exactly zero has no size: what misses it misses by the whole of itself, 1.
    """
    if low <= value <= high:
        return 0.0
    end = low if value < low else high
    return abs(value - end) / (abs(end) or abs(value))


def _prefill_range(run: EngineRun) -> tuple[float, float, float]:
    times = run.times.prefill_s
    return times[len(times) // 2], times[0], times[-1]


def _token_range(run: EngineRun) -> tuple[float, float, float] | None:
    """TPOT as the runs file defines it, and its range over all pairs of repeats."""
    total, prefill = run.times.total_s, run.times.prefill_s
    if not total or run.spec.output_tokens < 2:
        return None
    count = run.spec.output_tokens - 1
    middle = total[len(total) // 2] - prefill[len(prefill) // 2]
    return middle / count, (total[0] - prefill[-1]) / count, (total[-1] - prefill[0]) / count


def _effects(rows: list[ScoreRow]) -> tuple[EffectRow, ...]:
    """Staged minus NCCL peer-to-peer, for each point measured in both arms."""
    found = []
    for row in rows:
        if row.spec.arm is not Arm.STAGED:
            continue
        other = _partner(rows, row, Arm.NCCL)
        if other is not None:
            found.append(_effect(row, other))
    return tuple(found)


def _effect(row: ScoreRow, other: ScoreRow) -> EffectRow:
    measured = row.measured - other.measured
    low = row.measured_low - other.measured_high
    high = row.measured_high - other.measured_low
    predicted = row.predicted - other.predicted
    return EffectRow(
        name="staged minus nccl",
        model=row.spec.model,
        batch=row.batch,
        input=row.input,
        metric=row.metric,
        measured=measured,
        measured_low=low,
        measured_high=high,
        predicted=predicted,
        error=range_error(predicted, low, high),
        scored=abs(measured) > EFFECT_OVER_SPREAD * max(_spread(row), _spread(other)),
    )


def _spread(row: ScoreRow) -> float:
    return row.measured_high - row.measured_low


def _partner(rows: list[ScoreRow], row: ScoreRow, arm: Arm | None) -> ScoreRow | None:
    """The row of the same point in another arm, or on one GPU where `arm` is None."""
    for other in rows:
        same = (
            other.metric is row.metric
            and other.spec.model == row.spec.model
            and other.spec.batch == row.spec.batch
            and other.spec.prompt_tokens == row.spec.prompt_tokens
            and other.spec.output_tokens == row.spec.output_tokens
            and other.spec.arm is arm
        )
        degrees = (other.spec.tp, other.spec.pp, other.spec.expert_parallel)
        if same and (
            arm is None or degrees == (row.spec.tp, row.spec.pp, row.spec.expert_parallel)
        ):
            return other
    return None


def _signs(rows: list[ScoreRow]) -> tuple[SignRow, ...]:
    found = []
    for row in rows:
        if row.spec.arm is None:
            continue
        one = _partner(rows, row, None)
        if one is None:
            continue
        apart = row.measured_high < one.measured_low or row.measured_low > one.measured_high
        if apart:
            found.append(
                SignRow(
                    model=row.spec.model,
                    split=split_of(row.spec).name,
                    arm=row.spec.arm,
                    batch=row.batch,
                    input=row.input,
                    metric=row.metric,
                    helps=row.measured < one.measured,
                    predicted_helps=row.predicted < one.predicted,
                )
            )
    return tuple(found)


def _summaries(rows: list[ScoreRow], effects: tuple[EffectRow, ...]) -> tuple[Summary, ...]:
    found = []
    for metric in Metric:
        mine = [row for row in rows if row.metric is metric and not row.seen]
        met = [row.low <= row.measured_high and row.high >= row.measured_low for row in mine]
        found.append(
            _summary(
                metric.value,
                [row.error for row in mine],
                sum(met) / len(met) if met else None,
            )
        )
    scored = [row.error for row in effects if row.scored]
    found.append(_summary("staged minus nccl", scored, None))
    return tuple(found)


def _summary(metric: str, errors: list[float], coverage: float | None) -> Summary:
    return Summary(
        metric=metric,
        rows=len(errors),
        median=median(errors) if errors else None,
        worst=max(errors) if errors else None,
        coverage=coverage,
    )
