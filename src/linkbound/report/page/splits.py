"""What each GPU holds, with its capacity, and what a split makes cross (S2, S3)."""

from linkbound.predict.types import Estimate
from linkbound.report.page.markup import (
    Cell,
    Citations,
    esc,
    figure,
    how,
    items,
    number,
    section,
    table,
    text,
)
from linkbound.report.page.plot import Bar, Segment, bars
from linkbound.report.types import Report, SplitShown
from linkbound.report.words import predicted
from linkbound.splits.memory import CACHE, WEIGHTS
from linkbound.splits.types import Crossing, Fit, MemoryPart, RankMemory
from linkbound.units import GIB, format_capacity, format_significant

_BESIDE_LOOKS = ("m-beside-1", "m-beside-2", "m-beside-3")


def memory(report: Report, cite: Citations) -> str:
    """A bar for each GPU of each split, its parts named, with the lines it must stay under."""
    rows = [_bar(fit, alike, report) for fit in report.fits for alike in _alike(fit)]
    if not rows:
        return ""
    names = list(
        dict.fromkeys(part.name for fit in report.fits for rank in fit.ranks for part in rank.parts)
    )
    looks = _looks(report)
    legend = "".join(
        f'<li><span class="swatch {looks[one]}"></span> {esc(one)}</li>' for one in names
    )
    picture = bars("Memory per GPU", rows, "GiB")
    reading = (
        "Each GPU by itself: memories never add up; alike ones share a bar. The solid line is what "
        "the card has, the dashed one what the engine may use; the cache fills what is left. Point "
        "at a part for its interval and source."
    )
    return section(
        "memory",
        "Memory of each GPU",
        figure(
            "Memory per GPU",
            f'{picture}<ul class="legend">{legend}</ul>',
            reading,
            cite(report.fit_record_ids),
        ),
        _fits(report, cite),
        _bases(report),
    )


def _looks(report: Report) -> dict[str, str]:
    looks = {WEIGHTS: "m-weights", CACHE: "m-cache"}
    for fit in report.fits:
        for part in (part for rank in fit.ranks for part in rank.parts):
            if part.name not in looks:
                looks[part.name] = _BESIDE_LOOKS[(len(looks) - 2) % len(_BESIDE_LOOKS)]
    return looks


def _alike(fit: Fit) -> list[list[RankMemory]]:
    """GPUs next to each other that hold the same: one bar for all of them."""
    runs: list[list[RankMemory]] = []
    for rank in fit.ranks:
        last = runs[-1][0] if runs else None
        if last is not None and _held(last) == _held(rank):
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return runs


def _held(rank: RankMemory) -> tuple[object, ...]:
    return rank.parts, rank.capacity_bytes, rank.usable_bytes


def _bar(fit: Fit, alike: list[RankMemory], report: Report) -> Bar:
    looks = _looks(report)
    rank = alike[0]
    names = rank.gpu if len(alike) == 1 else f"{rank.gpu} to {alike[-1].gpu}"
    return Bar(
        name=f"{fit.split.name}, {names}",
        segments=tuple(_segment(part, looks[part.name]) for part in rank.parts),
        label="fits" if fit.fits else "does not fit",
        marks=(
            (rank.usable_bytes / GIB, "usable", f"usable {format_capacity(rank.usable_bytes)}"),
            (
                rank.capacity_bytes / GIB,
                "capacity",
                f"capacity {format_capacity(rank.capacity_bytes)}",
            ),
        ),
    )


def _segment(part: MemoryPart, look: str) -> Segment:
    size = Estimate(
        value=part.size_bytes,
        low=min(part.low_bytes, part.size_bytes),
        high=max(part.high_bytes, part.size_bytes),
    )
    return Segment(
        look=look,
        value=part.size_bytes / GIB,
        label=format_significant(part.size_bytes / GIB),
        title=f"{part.name}: {predicted(size, 1 / GIB)} GiB, {part.basis}",
    )


def _fits(report: Report, cite: Citations) -> str:
    header = [text("split"), text("fits")]
    header += [number(one) for one in ("~KV tokens", "~longest context", "~largest batch")]
    header += [text("limit"), text("records")]
    rows = [
        [
            text(fit.split.name),
            text("yes" if fit.fits else "no"),
            number(_count(fit.kv_tokens, fit)),
            number(_count(fit.longest_context, fit)),
            number(_count(fit.largest_batch, fit)),
            text(fit.reason),
            Cell(cite(report.fit_record_ids)),
        ]
        for fit in report.fits
    ]
    return table("What fits", header, rows)


def _count(count: int | None, fit: Fit) -> str:
    if count is not None:
        return f"{count:,}"
    return "unbounded" if fit.fits else "none"


def _bases(report: Report) -> str:
    bases = {
        f"<b>{esc(part.name)}</b>: {esc(part.basis)}"
        for fit in report.fits
        for rank in fit.ranks
        for part in rank.parts
    }
    return f"<details><summary>Where each part is from</summary>{items(sorted(bases))}</details>"


def crossings(report: Report, cite: Citations) -> str:
    """One row for each transfer of each split."""
    header = [text(one) for one in ("split", "at once", "phase", "kind", "operation", "ranks")]
    header += [number(one) for one in ("bytes a call", "calls a step", "bytes a step")]
    header.append(text("records"))
    rows = [row for shown in report.splits for row in _rows(shown, cite)]
    if not rows:
        return ""
    reading = (
        "Payload of one rank, as nccl-tests counts it, in one forward step: one token a "
        "sequence in decode, the prompt in prefill. Replicas cross nothing."
    )
    return section(
        "crossings", "What crosses between GPUs", table("Crossings", header, rows), how(reading)
    )


def _rows(shown: SplitShown, cite: Citations) -> list[list[Cell]]:
    if not shown.crossings:
        names = [text(shown.split.name), text(f"{shown.load.concurrency}")]
        nothing = [*names, *(text(one) for one in ("-", "nothing", "-", "-"))]
        return [[*nothing, *(number("-") for _ in range(3)), Cell(cite(shown.record_ids))]]
    return [_row(shown, one, cite) for one in shown.crossings]


def _row(shown: SplitShown, one: Crossing, cite: Citations) -> list[Cell]:
    return [
        text(shown.split.name),
        text(f"{shown.load.concurrency}"),
        text(one.phase.value),
        text(one.kind.value.replace("_", " ")),
        text(one.operation.value.replace("_", " ")),
        text(", ".join(str(rank) for rank in one.ranks)),
        number(f"{one.size_bytes:,}"),
        number(f"{one.count:,}"),
        number(f"{one.size_bytes * one.count:,}"),
        Cell(cite(shown.record_ids)),
    ]
