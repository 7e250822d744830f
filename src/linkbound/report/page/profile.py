"""Where the reference runtime's time went: timelines, what they show, and every part (P1, D2)."""

from collections.abc import Sequence

from linkbound.profile.decompose import Parts
from linkbound.profile.pieces import PieceKind, RankPieces
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
from linkbound.report.page.timeline import LOOKS, Group, timeline
from linkbound.report.types import ProfileShown, Report, StepShown, TimelineShown
from linkbound.report.words import unique
from linkbound.units import format_significant, format_time

ZOOMED_CALLS = 4
LEAST_CALLS = 16
"""A step with fewer is seen whole as it is."""


def profile(report: Report, cite: Citations) -> str:
    """Nothing where the study holds no profile of the model on this machine."""
    found = report.profile
    if found is None:
        return ""
    kinds = {
        piece.kind for one in found.timelines for rank in one.step.ranks for piece in rank.pieces
    }
    intro = (
        "<p>Measured by <code>linkbound profile</code> with the reference runtime: the same layers "
        "and crossings, random weights, no scheduler and no server. It shows what the GPUs and the "
        "link do; an engine adds its own.</p>"
    )
    return section(
        "profile",
        "Measured steps",
        intro,
        _legend(kinds) if kinds else "",
        *_pictures(found, cite),
        _effects(found, cite),
        _table(found, cite),
    )


def _effects(found: ProfileShown, cite: Citations) -> str:
    """What the profile shows by itself, each split against one GPU and against staged."""
    shown = items(f"{esc(one.text)} {cite(one.record_ids)}" for one in found.effects)
    return f"<h3>What they show</h3>{shown}" if shown else ""


def _legend(kinds: set[PieceKind]) -> str:
    shown = "".join(
        f'<li><span class="swatch {look}"></span> {kind.value}</li>'
        for kind, look in LOOKS.items()
        if kind in kinds
    )
    return f'<ul class="legend">{shown}<li><span class="swatch idle"></span> gap</li></ul>'


def _pictures(found: ProfileShown, cite: Citations) -> list[str]:
    """One decode step and one prefill of every split on one scale, and a few calls of each."""
    pictures = []
    for point in dict.fromkeys(one.point for one in found.timelines):
        same = [one for one in found.timelines if one.point == point]
        title = f"One step, {point.name}"
        reading = "Each rank of each split over the time of one traced step, all on one scale."
        apart = [one.name for one in same if not one.step.aligned]
        if apart:
            reading += (
                f" The clocks of {_listed(apart)} could not be compared: each of those rows begins "
                "with its own step."
            )
        groups = [_whole(one) for one in same]
        ids = unique(record for one in same for record in one.record_ids)
        pictures.append(figure(title, timeline(title, groups, 1e-3, "ms"), reading, cite(ids)))
        near = [group for one in same for group in _zoomed(one)]
        if near:
            title = f"{ZOOMED_CALLS} calls in the middle of {point.name}"
            reading = "A collective ends together on all ranks; who comes first waits."
            pictures.append(figure(title, timeline(title, near, 1e-6, "us"), reading, cite(ids)))
    return pictures


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def _whole(one: TimelineShown) -> Group:
    span_s = max(rank.end_s for rank in one.step.ranks)
    return Group(
        name=one.name,
        ranks=one.step.ranks,
        start_s=0.0,
        span_s=span_s,
        label=format_time(span_s),
    )


def _zoomed(one: TimelineShown) -> list[Group]:
    """From the end of one call to the end of the fourth after it; nothing of few calls."""
    ends_s = _call_ends_s(one.step.ranks[0])
    if len(ends_s) < LEAST_CALLS:
        return []
    first = len(ends_s) // 2
    start_s, end_s = ends_s[first], ends_s[first + ZOOMED_CALLS]
    return [
        Group(
            name=one.name,
            ranks=one.step.ranks,
            start_s=start_s,
            span_s=end_s - start_s,
            label=format_time(end_s - start_s),
        )
    ]


def _call_ends_s(rank: RankPieces) -> list[float]:
    return [piece.end_s for piece in rank.pieces if piece.kind is PieceKind.WIRE]


def _table(found: ProfileShown, cite: Citations) -> str:
    header = [text("split"), text("point")]
    names = ("step", "repeats", "compute", "wire", "waiting", "gap", "unexplained", "tok/s", "GB/s")
    header += [number(one) for one in names]
    header.append(text("records"))
    rows = [_row(one, cite) for one in found.steps]
    reading = (
        "Times of one step, mean over ranks; parts are of a traced step. Unexplained: the plain "
        "step less the traced one, without what the profiler adds to each kernel where that was "
        "measured. Repeats: least and greatest median of several processes. GB/s: "
        "bus bandwidth of the collectives while they ran."
    )
    by_host = [one for one in found.steps if one.eager_because is not None]
    notes = items(
        f"{esc(one.name)}, {esc(one.point.name)}: launched call by call by the host, because "
        f"{esc(one.eager_because)}."
        for one in by_host
    )
    return table("Steps and their parts", header, rows) + how(reading) + notes


def _row(one: StepShown, cite: Citations) -> list[Cell]:
    unexplained = "-" if one.unexplained_s is None else f"{one.unexplained_s / one.step_s:+.1%}"
    repeats = (
        "one process"
        if one.repeats == 1
        else f"{format_time(one.low_s)} - {format_time(one.high_s)}"
    )
    bus = "-" if one.bus_bytes_per_s is None else format_significant(one.bus_bytes_per_s / 1e9)
    return [
        text(one.name),
        Cell(esc(one.point.name), "w"),
        number(format_time(one.step_s)),
        number(repeats),
        *(number(words) for words in _parts(one.parts)),
        number(unexplained),
        number(format_significant(one.tokens_per_s)),
        number(bus),
        Cell(cite(one.record_ids)),
    ]


def _parts(parts: Parts | None) -> tuple[str, str, str, str]:
    """Compute, wire, waiting and gap; where wire and waiting are not divided their sum."""
    if parts is None:
        return "-", "-", "-", "-"
    wire, waiting = format_time(parts.communication_s), format_time(parts.waiting_s)
    if parts.unmatched_s > parts.communication_s + parts.waiting_s:
        wire, waiting = f"{format_time(parts.unmatched_s)} with waiting", "-"
    if parts.communication_s + parts.waiting_s + parts.unmatched_s == 0:
        wire, waiting = "-", "-"
    return format_time(parts.compute_s), wire, waiting, format_time(parts.gap_s)
