"""Predictions against measurements: errors, coverage, effects and signs (E3).

A prediction is right where it lies inside the repeats' range; else its error is the distance to the
nearer end, relative to that end. Beside it stands the ordinary error, against the repeats' median.
Points that calibration has seen are marked and not scored, nor are those of a frozen set that was
not there before they were measured.
"""

from collections.abc import Sequence
from statistics import median

from linkbound.predict.effects import effects, range_error, signs
from linkbound.predict.points import Measurement, Metric, Observation, Prediction
from linkbound.predict.score_types import (
    EffectRow,
    FrozenSet,
    Score,
    ScoreRow,
    Summary,
    Timing,
)
from linkbound.predict.types import Estimate

# Both stand in every score, so that a reader of it finds the word that there is none.
_ALWAYS = (Metric.TPOT, Metric.PREFILL)


def score(
    pairs: Sequence[tuple[Prediction, Observation]],
    skipped: tuple[str, ...] = (),
    *,
    frozen: FrozenSet | None = None,
    timing: Sequence[Timing] = (),
) -> Score:
    """Set fixed predictions beside the measurements of the same points.

    `timing` says for each pair of a frozen set whether it was there before.
    """
    rows = [
        _row(prediction, seen, metric, measured, when)
        for (prediction, seen), when in zip(pairs, timing or (None,) * len(pairs), strict=True)
        for metric, measured in seen.metrics.items()
        if metric in prediction.estimates
    ]
    timely = [row for row in rows if row.timely]
    found = effects(timely)
    return Score(
        rows=tuple(rows),
        effects=found,
        signs=signs(timely),
        summaries=_summaries(rows, found),
        skipped=skipped,
        frozen=frozen,
    )


def _row(
    prediction: Prediction,
    observed: Observation,
    metric: Metric,
    measured: Measurement,
    timing: Timing | None,
) -> ScoreRow:
    predicted: Estimate = prediction.estimates[metric]
    return ScoreRow(
        tag=observed.tag,
        batch=observed.spec.batch,
        input=observed.spec.prompt_tokens,
        metric=metric,
        measured=measured.middle,
        measured_low=measured.low,
        measured_high=measured.high,
        predicted=predicted.value,
        low=predicted.low,
        high=predicted.high,
        error=range_error(predicted.value, measured.low, measured.high),
        seen=prediction.seen,
        spec=observed.spec,
        timing=timing,
        unseen=prediction.unseen,
    )


def _summaries(rows: Sequence[ScoreRow], found: Sequence[EffectRow]) -> tuple[Summary, ...]:
    measured = {row.metric for row in rows}
    summaries = [
        _of_metric(metric, [row for row in rows if row.metric is metric and row.counts])
        for metric in Metric
        if metric in _ALWAYS or metric in measured
    ]
    scored = [row for row in found if row.scored]
    return (*summaries, _summary("staged minus nccl", scored, None))


def _of_metric(metric: Metric, rows: Sequence[ScoreRow]) -> Summary:
    met = [row.low <= row.measured_high and row.high >= row.measured_low for row in rows]
    coverage = sum(met) / len(met) if met else None
    return _summary(metric.value, rows, coverage)


def _summary(metric: str, rows: Sequence[ScoreRow | EffectRow], coverage: float | None) -> Summary:
    errors = [row.error for row in rows]
    to_medians = [row.median_error for row in rows if row.measured]
    return Summary(
        metric=metric,
        rows=len(errors),
        median=median(errors) if errors else None,
        worst=max(errors) if errors else None,
        to_median=median(to_medians) if to_medians else None,
        to_median_worst=max(to_medians) if to_medians else None,
        coverage=coverage,
    )
