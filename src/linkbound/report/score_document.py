"""The score as JSON: keys that stay (`rows`, `summary`), seconds, shares as numbers (E3)."""

from typing import Any

import msgspec

from linkbound.predict.score_types import Score, ScoreRow, Summary

SCHEMA, VERSION = "linkbound.score", 1


def render_score_json(score: Score, machine: str) -> str:
    """One JSON document; a metric without rows has null and a reason."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": machine,
        "frozen": msgspec.to_builtins(score.frozen),
        "rows": [_row(row) for row in score.rows],
        "effects": msgspec.to_builtins(score.effects),
        "signs": msgspec.to_builtins(score.signs),
        "skipped": list(score.skipped),
        "summary": {one.metric.replace(" ", "_"): _summary(one) for one in score.summaries},
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _row(row: ScoreRow) -> dict[str, Any]:
    return {
        "tag": row.tag,
        "model": row.spec.model,
        "tp": row.spec.tp,
        "pp": row.spec.pp,
        "arm": None if row.spec.arm is None else row.spec.arm.value,
        "batch": row.batch,
        "input": row.input,
        "output": row.spec.output_tokens,
        "metric": row.metric.value,
        "measured": row.measured,
        "measured_low": row.measured_low,
        "measured_high": row.measured_high,
        "predicted": row.predicted,
        "low": row.low,
        "high": row.high,
        "error": row.error,
        "to_median": row.median_error if row.measured else None,
        "seen": row.seen,
        "timing": None if row.timing is None else row.timing.value,
    }


def _summary(one: Summary) -> dict[str, Any]:
    reason = {"code": "no-rows", "text": "No row was predicted first and not seen by calibration."}
    return {
        "rows": one.rows,
        "median_error": one.median,
        "worst_error": one.worst,
        "median_to_median": one.to_median,
        "worst_to_median": one.to_median_worst,
        "coverage": one.coverage,
        "reason": reason if one.median is None else None,
    }
