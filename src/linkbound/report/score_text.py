"""Predictions against measurements as a table; the last lines are medians and worsts (E3)."""

from collections.abc import Mapping

from linkbound.predict.score_types import (
    EffectRow,
    Score,
    ScoreRow,
    SignRow,
    Summary,
    Timing,
)

TIMING_WORDS: Mapping[Timing | None, str] = {
    Timing.LATER: "not frozen before",
    Timing.UNKNOWN: "measured at an unknown time",
}
"""Why a row of a frozen set does not count; nothing of one that does."""
DEFINITION = (
    "Error: 0 inside the repeats' range, else the distance to its nearer end over that end. "
    "To median: the distance to the repeats' median over that median."
)


def render_score(score: Score, machine: str) -> str:
    """Whose figures, then rows, effects, signs, and last one line a metric."""
    lines = [f"Predicted on {machine}; times in ms.", *_frozen(score)]
    width = max((len(row.metric.value) for row in score.rows), default=0)
    lines += [_head(width), *(_row(row, width) for row in score.rows), ""]
    if score.effects:
        lines.append("staged minus nccl: what host staging costs")
        lines += [_effect(row, width) for row in score.effects]
        lines.append("")
    if score.signs:
        lines += [_sign_line(score.signs), *(_wrong(row) for row in score.signs if _is_wrong(row))]
        lines.append("")
    if score.skipped:
        lines += [
            "Not scored:" if score.frozen else "Not predicted:",
            *(f"  {one}" for one in score.skipped),
            "",
        ]
    lines.append(DEFINITION)
    lines += [_summary(one) for one in score.summaries]
    return "\n".join(lines)


def _frozen(score: Score) -> list[str]:
    """Which set, and how much of it was there before it was measured."""
    if score.frozen is None:
        return []
    first = sum(row.timely for row in score.rows)
    return [
        f"Frozen {score.frozen.frozen}, id {score.frozen.id}.",
        f"Measured after that: {first} of {len(score.rows)} rows. Only these count.",
    ]


def _mark(row: ScoreRow) -> str:
    """Why a row does not count; nothing where it does."""
    if row.seen:
        return "  seen"
    word = TIMING_WORDS.get(row.timing, "")
    return f"  {word}" if word else ""


def _head(width: int) -> str:
    return (
        f"{'tag':<22} {'batch x input':>13} {'metric':<{width}} {'measured_ms (range)':>27} "
        f"{'~predicted_ms (interval)':>27} {'error_%':>8} {'to_median_%':>11}"
    )


def _row(row: ScoreRow, width: int) -> str:
    measured = f"{_ms(row.measured)} ({_ms(row.measured_low)}-{_ms(row.measured_high)})"
    predicted = f"~{_ms(row.predicted)} ({_ms(row.low)}-{_ms(row.high)})"
    return (
        f"{row.tag[:22]:<22} {row.batch:>5} x {row.input:>5} {row.metric.value:<{width}} "
        f"{measured:>27} {predicted:>27} {row.error * 100:>8.1f} "
        f"{_to_median(row):>11}{_mark(row)}"
    )


def _effect(row: EffectRow, width: int) -> str:
    measured = f"{_ms(row.measured)} ({_ms(row.measured_low)}-{_ms(row.measured_high)})"
    note = (
        f"{row.error * 100:>8.1f} {_to_median(row):>11}"
        if row.scored
        else "  not scored: inside three spreads"
    )
    return (
        f"{row.model[:22]:<22} {row.batch:>5} x {row.input:>5} {row.metric.value:<{width}} "
        f"{measured:>27} {'~' + _ms(row.predicted):>27} {note}"
    )


def _to_median(row: ScoreRow | EffectRow) -> str:
    return f"{row.median_error * 100:.1f}" if row.measured else "none"


def _sign_line(signs: tuple[SignRow, ...]) -> str:
    right = sum(not _is_wrong(row) for row in signs)
    return f"Sign of 'the second GPU helps', where ranges do not overlap: {right} of {len(signs)}"


def _is_wrong(row: SignRow) -> bool:
    return row.helps is not row.predicted_helps


def _wrong(row: SignRow) -> str:
    return (
        f"  wrong: {row.model} {row.split} {row.arm.value} {row.batch} x {row.input} "
        f"{row.metric.value}: it {'helps' if row.helps else 'does not help'}"
    )


def _summary(one: Summary) -> str:
    if one.median is None or one.worst is None:
        return f"{one.metric:<18} no row that counts"
    kept = "" if one.coverage is None else f", interval meets the repeats in {one.coverage:.0%}"
    ordinary = ""
    if one.to_median is not None and one.to_median_worst is not None:
        ordinary = (
            f"; to median: median {one.to_median * 100:.1f} %, "
            f"worst {one.to_median_worst * 100:.1f} %"
        )
    return (
        f"{one.metric:<18} {one.rows} rows: error: median {one.median * 100:.1f} %, "
        f"worst {one.worst * 100:.1f} %{ordinary}{kept}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"
