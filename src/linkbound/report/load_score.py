"""Measured loads beside simulated ones, as text and as JSON (E3)."""

from collections.abc import Iterable

import msgspec

from linkbound.predict.score_types import Timing
from linkbound.predict.simulate import CALIBRATED, HostPace
from linkbound.predict.simulate.score import LoadScore, LoadScoreRow
from linkbound.report.host_pace import host_pace_document
from linkbound.report.score_text import TIMING_WORDS
from linkbound.report.table import render_table
from linkbound.report.words import predicted
from linkbound.units import format_significant

SCHEMA, VERSION = "linkbound.load-score", 1
_HEADER = ("cell", "contender", "figure", "measured (range of repeats)", "simulated", "error_%", "")


def render_load_score(score: LoadScore, head: Iterable[str]) -> str:
    """`head`, then a row for each figure, and last one line a figure."""
    lines = [*head, *_frozen(score), "Times in ms, rates a second."]
    if score.rows:
        lines += render_table(_HEADER, [_row(row) for row in score.rows], left=3)
    lines += [f"Not compared: {one}" for one in score.skipped]
    lines.append("Error: 0 inside the repeats' range, else the distance to its nearer end.")
    lines += [
        f"{one.figure:<20} {one.rows} rows: median {one.median:.1%}, worst {one.worst:.1%}, "
        f"interval meets the repeats in {one.coverage:.0%}"
        for one in score.summaries
    ]
    return "\n".join(lines)


def _frozen(score: LoadScore) -> list[str]:
    """Which set, and how much of it was there before it was measured."""
    if score.frozen is None:
        return []
    first = sum(row.timing is Timing.BEFORE for row in score.rows)
    return [
        f"Frozen {score.frozen.frozen}, id {score.frozen.id}.",
        f"Measured after that: {first} of {len(score.rows)} rows. Only these count.",
    ]


def _row(row: LoadScoreRow) -> tuple[str, ...]:
    scale = 1e3 if row.figure.endswith("_s") and not row.figure.endswith("_per_s") else 1.0
    middle, low, high = (
        format_significant(one * scale)
        for one in (row.measured, row.measured_low, row.measured_high)
    )
    return (
        row.cell,
        row.contender,
        row.figure,
        f"{middle} ({low}-{high}), n {row.n}",
        predicted(row.predicted, scale),
        f"{row.error * 100:.1f}",
        TIMING_WORDS.get(row.timing, ""),
    )


def render_load_score_json(
    score: LoadScore, machine: str, model: str, host: HostPace = CALIBRATED
) -> str:
    """One JSON document; times in seconds."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": machine,
        "model": model,
        **host_pace_document(host),
        **msgspec.to_builtins(score),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()
