"""Predictions against measurements as a table; the last lines are medians and worsts (E3)."""

from linkbound.predict.score import EffectRow, Score, ScoreRow, SignRow, Summary

_HEAD = (
    f"{'tag':<22} {'batch x input':>13} {'metric':<9} {'measured_ms (range)':>27} "
    f"{'~predicted_ms (interval)':>27} {'error_%':>8}"
)


def render_score(score: Score, machine: str) -> str:
    """Whose figures, then rows, effects, signs, and last one line a metric."""
    lines = [f"Predicted on {machine}; times in ms.", _HEAD, *(_row(row) for row in score.rows), ""]
    if score.effects:
        lines.append("staged minus nccl: what host staging costs")
        lines += [_effect(row) for row in score.effects]
        lines.append("")
    if score.signs:
        lines += [_sign_line(score.signs), *(_wrong(row) for row in score.signs if _is_wrong(row))]
        lines.append("")
    if score.skipped:
        lines += ["Not predicted:", *(f"  {one}" for one in score.skipped), ""]
    lines.append("Error: 0 inside the repeats' range, else the distance to its nearer end.")
    lines += [_summary(one) for one in score.summaries]
    return "\n".join(lines)


def _row(row: ScoreRow) -> str:
    measured = f"{_ms(row.measured)} ({_ms(row.measured_low)}-{_ms(row.measured_high)})"
    predicted = f"~{_ms(row.predicted)} ({_ms(row.low)}-{_ms(row.high)})"
    seen = "  seen" if row.seen else ""
    return (
        f"{row.tag[:22]:<22} {row.batch:>5} x {row.input:>5} {row.metric.value:<9} "
        f"{measured:>27} {predicted:>27} {row.error * 100:>8.1f}{seen}"
    )


def _effect(row: EffectRow) -> str:
    measured = f"{_ms(row.measured)} ({_ms(row.measured_low)}-{_ms(row.measured_high)})"
    note = f"{row.error * 100:>8.1f}" if row.scored else "  not scored: inside three spreads"
    return (
        f"{row.model[:22]:<22} {row.batch:>5} x {row.input:>5} {row.metric.value:<9} "
        f"{measured:>27} {'~' + _ms(row.predicted):>27} {note}"
    )


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
        return f"{one.metric:<18} no row that was not seen"
    kept = "" if one.coverage is None else f", interval meets the repeats in {one.coverage:.0%}"
    return (
        f"{one.metric:<18} {one.rows} rows: median {one.median * 100:.1f} %, "
        f"worst {one.worst * 100:.1f} %{kept}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"
