"""What fits as text: a row for each unlike GPU of each split, then the reasons (S3)."""

from collections.abc import Iterable, Sequence

from linkbound.model.types import Load, ModelShape
from linkbound.report.model_text import gib, render_head
from linkbound.report.table import Row, render_table
from linkbound.splits.memory import CACHE, WEIGHTS
from linkbound.splits.types import Fit, RankMemory
from linkbound.topology.types import Machine


def render_fit(
    shape: ModelShape, title: str, machine: Machine, load: Load, fits: Sequence[Fit]
) -> str:
    """The answer as text: a head, a row for each unlike GPU of each split, the reasons."""
    lines = [*render_head(shape, title, machine), _load_line(load), ""]
    lines += render_table(_HEADER, [row for fit in fits for row in _rows(fit)], left=3)
    lines.append("")
    lines += [f"{fit.split.name}: {fit.reason}" for fit in fits]
    lines += ["", *_priors(fits)]
    return "\n".join(lines).rstrip() + "\n"


_HEADER = (
    "split", "fits", "GPU", "total", "usable", "weights", "~beside", "~KV cache", "~KV tokens",
    "~context", "~batch",
)  # fmt: skip


def _load_line(load: Load) -> str:
    return (
        f"load     {load.prompt_tokens:,} tokens in, {load.output_tokens:,} out, "
        f"{load.concurrency:,} at once"
    )


def _rows(fit: Fit) -> list[Row]:
    """One row for each run of GPUs that hold the same; GPUs 0 to 3 are one row if alike."""
    fits = "yes" if fit.fits else "no"
    if not fit.ranks:
        return [(fit.split.name, fits, *["-"] * 9)]
    runs: list[list[RankMemory]] = []
    for rank in fit.ranks:
        if (
            runs
            and runs[-1][0].parts == rank.parts
            and runs[-1][0].capacity_bytes == rank.capacity_bytes
        ):
            runs[-1].append(rank)
        else:
            runs.append([rank])
    rows: list[Row] = []
    for run in runs:
        head = ("", "", "", "") if rows else (fit.split.name, fits, *_limits(fit))
        rows.append((head[0], head[1], _names(run), *_cells(run[0]), head[2], head[3]))
    return rows


def _limits(fit: Fit) -> tuple[str, str]:
    return _count(fit.longest_context, fit.fits), _count(fit.largest_batch, fit.fits)


def _count(count: int | None, fits: bool) -> str:
    if count is not None:
        return f"{count:,}"
    return "unbounded" if fits else "-"


def _names(run: Sequence[RankMemory]) -> str:
    return run[0].gpu if len(run) == 1 else f"{run[0].gpu} .. {run[-1].gpu}"


def _cells(rank: RankMemory) -> Row:
    beside = [part for part in rank.parts if part.name not in (WEIGHTS, CACHE)]
    low, high = sum(part.low_bytes for part in beside), sum(part.high_bytes for part in beside)
    middle = sum(part.size_bytes for part in beside)
    cache = _part_bytes(rank, CACHE)
    return (
        gib(rank.capacity_bytes),
        gib(rank.usable_bytes),
        gib(_part_bytes(rank, WEIGHTS) or 0),
        f"{gib(middle)} ({gib(low)}-{gib(high)})",
        "none" if cache is None else _cache_words(cache, low - middle, high - middle),
        "any" if rank.kv_tokens is None else f"{rank.kv_tokens:,}",
    )


def _cache_words(cache: float, less: float, more: float) -> str:
    """What is left for the cache, and what would be at most and least beside it."""
    if cache <= 0:
        return gib(cache)
    return f"{gib(cache)} ({gib(max(0.0, cache - more))}-{gib(cache - less)})"


def _priors(fits: Iterable[Fit]) -> list[str]:
    """What the columns mean, and every basis that is not the model's own file."""
    bases = {
        f"  {part.name}: {part.basis}"
        for fit in fits
        for rank in fit.ranks
        for part in rank.parts
        if part.basis.startswith("prior")
    }
    if not bases:
        return []
    return [
        "total to KV cache in GiB; context and batch in tokens and sequences of the load's length.",
        "~beside is not measured here, and columns with ~ after it rest on it:",
        *sorted(bases),
    ]


def _part_bytes(rank: RankMemory, name: str) -> float | None:
    return next((part.size_bytes for part in rank.parts if part.name == name), None)
