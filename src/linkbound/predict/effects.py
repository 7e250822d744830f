"""What another arm or a second GPU changes, measured against predicted (E3)."""

from collections.abc import Sequence

from linkbound.links.types import Arm
from linkbound.predict.calibrate import split_of
from linkbound.predict.score_types import EffectRow, ScoreRow, SignRow

# An effect counts where it exceeds this many times the spread of the repeats it is made of.
EFFECT_OVER_SPREAD = 3.0


def range_error(value: float, low: float, high: float) -> float:
    """0 inside low .. high, else the distance to the nearer end over that end's size.

    An end of exactly zero has no size: what misses it misses by the whole of itself, 1.
    """
    if low <= value <= high:
        return 0.0
    end = low if value < low else high
    return abs(value - end) / (abs(end) or abs(value))


def effects(rows: Sequence[ScoreRow]) -> tuple[EffectRow, ...]:
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


def _partner(rows: Sequence[ScoreRow], row: ScoreRow, arm: Arm | None) -> ScoreRow | None:
    """The row of the same point in another arm, or on one GPU where `arm` is None."""
    for other in rows:
        same = (
            other.metric is row.metric
            and other.spec.engine == row.spec.engine
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


def signs(rows: Sequence[ScoreRow]) -> tuple[SignRow, ...]:
    """Whether each split is faster than one GPU, where both were measured and lie apart."""
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
