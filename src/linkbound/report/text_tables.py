"""The tables of the terminal text and of Markdown as rows of words, header first (D1, S2, S3)."""

from linkbound.report.score_text import DEFINITION
from linkbound.report.table import Row
from linkbound.report.types import LoadShown, Report
from linkbound.report.words import (
    crossing_share,
    fits_word,
    plan_answer,
    predicted,
    share_words,
    waiting_share,
)
from linkbound.splits.memory import CACHE, WEIGHTS
from linkbound.splits.types import Fit, RankMemory
from linkbound.units import GIB


def plan_rows(report: Report, load: LoadShown) -> list[Row]:
    """Each plan under a load; ~ marks what is predicted, brackets hold its interval."""
    rows: list[Row] = [
        ("plan", "fits", "TTFT ms", "TPOT ms", "tok/s", "link %", "wait %", "verdict")
    ]
    for one in load.forecasts:
        split = one.plan.arm is not None
        rows.append(
            (
                one.plan.name,
                fits_word(report, one.plan),
                predicted(one.ttft_s, 1e3),
                predicted(one.tpot_s, 1e3),
                predicted(one.tokens_per_s),
                share_words(crossing_share(one)) if split else "-",
                share_words(waiting_share(one)) if split else "-",
                plan_answer(load, one.plan),
            )
        )
    return rows


def memory_rows(report: Report) -> list[Row]:
    """Each GPU of each split by itself, and why a split does not fit."""
    rows: list[Row] = [
        ("split", "GPU", "fits", "total", "usable", "weights", "~beside", "~KV cache", "~KV tokens")
    ]
    for fit in report.fits:
        if not fit.ranks:
            rows.append((fit.split.name, "-", "no", *["-"] * 6))
        rows += [_memory_row(fit, rank) for rank in fit.ranks]
    return rows


def _memory_row(fit: Fit, rank: RankMemory) -> Row:
    parts = {part.name: part.size_bytes for part in rank.parts}
    beside = sum(size for name, size in parts.items() if name not in (WEIGHTS, CACHE))
    return (
        fit.split.name,
        rank.gpu,
        "yes" if fit.fits else "no",
        _gib(rank.capacity_bytes),
        _gib(rank.usable_bytes),
        _gib(parts[WEIGHTS]) if WEIGHTS in parts else "none",
        _gib(beside),
        _gib(parts[CACHE]) if CACHE in parts else "none",
        "any" if rank.kv_tokens is None else f"{rank.kv_tokens:,}",
    )


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:,.2f}"


def crossing_rows(report: Report) -> list[Row]:
    """Each transfer of each split in one step."""
    rows: list[Row] = [
        ("split", "phase", "kind", "operation", "ranks", "bytes a call", "calls a step")
    ]
    for shown in report.splits:
        if not shown.crossings:
            rows.append((shown.split.name, "-", "nothing crosses", "-", "-", "-", "-"))
        for one in shown.crossings:
            ranks = ",".join(str(rank) for rank in one.ranks)
            words = (one.phase.value, one.kind.value, one.operation.value, ranks)
            rows.append((shown.split.name, *words, f"{one.size_bytes:,}", f"{one.count:,}"))
    return rows


SCORE_READING = (
    f"{DEFINITION} Medians and worsts of all rows. Interval meets: rows whose predicted interval "
    "meets the repeats' range."
)


def score_rows(report: Report) -> list[Row]:
    """Medians and worsts of the rows that calibration has not seen; SCORE_READING says of what."""
    rows: list[Row] = [
        ("figure", "rows", "error %", "worst", "to median %", "worst", "interval meets %")
    ]
    for one in () if report.score is None else report.score.summaries:
        shares = (one.median, one.worst, one.to_median, one.to_median_worst, one.coverage)
        words = ("none" if share is None else f"{100 * share:.1f}" for share in shares)
        rows.append((one.metric, str(one.rows), *words))
    return rows
