"""Where the time of a step went on each rank: compute, wire, waiting, copies, gaps (P1).

A collective ends together on all ranks and begins when each is ready: the shortest of its
durations is the wire, what a rank spends beyond it is waiting. Each part is a sum of what was
seen; a call that cannot be found on every rank of its group is a part of its own.
"""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from linkbound.profile.types import Interval, KernelClass, StepSpan, Timeline
from linkbound.values import Value

COMMUNICATION = frozenset({KernelClass.NCCL, KernelClass.CUSTOM, KernelClass.PEER_COPY})


class Parts(Value, frozen=True, kw_only=True):
    """Seconds of one rank: they add up to `step_s`. What runs under compute is not counted."""

    step_s: float
    compute_s: float
    communication_s: float
    """On the wire: the least of the ranks' durations of each call."""
    waiting_s: float
    """In a call beyond that: another rank was not there yet."""
    unmatched_s: float
    """In calls that not every rank of the group shows: wire and waiting undivided."""
    host_copy_s: float
    gap_s: float
    """Nothing ran on the device: the host was launching, or had nothing to launch."""
    hidden_s: float = 0.0
    """Communication under compute: beside the sum."""


class RankStep(Value, frozen=True, kw_only=True):
    """One step of one rank."""

    rank: int
    step: int
    parts: Parts


class Wire(Value, frozen=True, kw_only=True):
    """All calls of one operation and size in one step, over the ranks."""

    operation: str
    size_bytes: int | None
    count: int
    wire_s: float
    """Sum of the shortest durations."""


class ClockOffset(Value, frozen=True, kw_only=True):
    """How far a rank's clock is ahead of the first rank's, and within what bounds."""

    rank: int
    offset_s: float
    error_s: float


_Key = tuple[str, tuple[int, ...]]
_Calls = dict[_Key, list[Interval]]


def decompose(timelines: Sequence[Timeline]) -> tuple[RankStep, ...]:
    """Parts of every step that all ranks show, by step and rank."""
    per_rank = [by_step(one) for one in timelines]
    steps = min((len(one.steps) for one in timelines), default=0)
    found = []
    for step in range(steps):
        wires = wires_of([intervals[step] for intervals in per_rank], timelines)
        for one, intervals, known in zip(timelines, per_rank, wires, strict=True):
            parts = _parts(one.steps[step], intervals[step], known)
            found.append(RankStep(rank=one.rank, step=step, parts=parts))
    return tuple(found)


def mean_parts(rows: Sequence[RankStep]) -> Parts | None:
    """The mean over steps and ranks, whose parts add up; None of no rows."""
    if not rows:
        return None
    means = {
        name: math.fsum(getattr(row.parts, name) for row in rows) / len(rows)
        for name in Parts.__struct_fields__
    }
    return Parts(**means)


def wire_times(timelines: Sequence[Timeline], of: int | None = None) -> tuple[Wire, ...]:
    """Operations and sizes of the calls that every rank shows, with their time on the wire.

    `of` keeps the calls in which the timeline at that index takes part.
    """
    sums: dict[tuple[str, int | None], list[float]] = defaultdict(list)
    per_rank = [by_step(one) for one in timelines]
    for step in range(min(map(len, per_rank), default=0)):
        calls = [_calls(intervals[step]) for intervals in per_rank]
        for key, members in _matched(calls, timelines).items():
            if of is not None and of not in members:
                continue
            for same in zip(*(calls[at][key] for at in members), strict=True):
                shortest = min(one.end_s - one.start_s for one in same)
                sums[key[0], same[0].size_bytes].append(shortest)
    return tuple(
        Wire(operation=name, size_bytes=size, count=len(times), wire_s=math.fsum(times))
        for (name, size), times in sorted(sums.items(), key=lambda one: (one[0][0], one[0][1] or 0))
    )


def align(timelines: Sequence[Timeline]) -> tuple[ClockOffset, ...] | None:
    """Offsets of the clocks from the calls as barriers; None where they contradict each other.

    No rank leaves a barrier before every rank has entered it: each call bounds the offset from
    both sides, and the bounds of all calls together are the error.
    """
    if not timelines:
        return None
    calls = [
        _calls([interval for interval in one.intervals if interval.operation != "send_recv"])
        for one in timelines
    ]
    offsets = [ClockOffset(rank=timelines[0].rank, offset_s=0.0, error_s=0.0)]
    matched = _matched(calls, timelines)
    for at in range(1, len(timelines)):
        low, high = -math.inf, math.inf
        for key, members in matched.items():
            if 0 in members and at in members:
                for first, other in zip(calls[0][key], calls[at][key], strict=True):
                    low = max(low, other.start_s - first.end_s)
                    high = min(high, other.end_s - first.start_s)
        if not low <= high or math.isinf(low):
            return None
        offsets.append(
            ClockOffset(
                rank=timelines[at].rank, offset_s=(low + high) / 2, error_s=(high - low) / 2
            )
        )
    return tuple(offsets)


def by_step(timeline: Timeline) -> list[list[Interval]]:
    """Intervals by the step in which they begin; those outside all steps are left out."""
    found: list[list[Interval]] = [[] for _ in timeline.steps]
    steps = iter(enumerate(timeline.steps))
    current = next(steps, None)
    for interval in sorted(timeline.intervals, key=lambda one: one.start_s):
        while current is not None and interval.start_s >= current[1].end_s:
            current = next(steps, None)
        if current is None:
            break
        if interval.start_s >= current[1].start_s:
            found[current[0]].append(interval)
    return found


def _calls(intervals: Sequence[Interval]) -> _Calls:
    found: _Calls = defaultdict(list)
    for one in intervals:
        if one.kernel in COMMUNICATION:
            found[one.operation or one.kernel.value, one.ranks].append(one)
    return dict(found)


def _matched(calls: Sequence[_Calls], timelines: Sequence[Timeline]) -> dict[_Key, list[int]]:
    """Calls that every member of their group made equally often: key to places of the members."""
    found = {}
    for key in dict.fromkeys(key for one in calls for key in one):
        having = [at for at, one in enumerate(calls) if key in one]
        wanted = set(key[1]) or {timelines[at].rank for at in having}
        counts = {len(calls[at][key]) for at in having}
        if {timelines[at].rank for at in having} == wanted and len(having) > 1 and len(counts) == 1:
            found[key] = having
    return found


def wires_of(
    intervals: Sequence[Sequence[Interval]], timelines: Sequence[Timeline]
) -> list[dict[int, float]]:
    """For each rank: `id` of an interval of the step to the time of its call on the wire."""
    calls = [_calls(one) for one in intervals]
    found: list[dict[int, float]] = [{} for _ in calls]
    for key, members in _matched(calls, timelines).items():
        for same in zip(*(calls[at][key] for at in members), strict=True):
            shortest = min(one.end_s - one.start_s for one in same)
            for at, one in zip(members, same, strict=True):
                found[at][id(one)] = shortest
    return found


def _parts(span: StepSpan, intervals: Sequence[Interval], wires: dict[int, float]) -> Parts:
    exposed = _exposed(span, intervals)
    compute_s = communication_s = waiting_s = unmatched_s = host_copy_s = hidden_s = 0.0
    for one, seen_s in zip(intervals, exposed, strict=True):
        if one.kernel is KernelClass.COMPUTE:
            compute_s += seen_s
        elif one.kernel is KernelClass.HOST_COPY:
            host_copy_s += seen_s
        else:
            hidden_s += one.end_s - one.start_s - seen_s
            wire_s = wires.get(id(one))
            if wire_s is None:
                unmatched_s += seen_s
            else:
                communication_s += min(wire_s, seen_s)
                waiting_s += max(0.0, seen_s - wire_s)
    step_s = span.end_s - span.start_s
    busy_s = compute_s + communication_s + waiting_s + unmatched_s + host_copy_s
    return Parts(
        step_s=step_s,
        compute_s=compute_s,
        communication_s=communication_s,
        waiting_s=waiting_s,
        unmatched_s=unmatched_s,
        host_copy_s=host_copy_s,
        # Every instant of the span is given to one interval or to none: these are the latter.
        gap_s=max(0.0, step_s - busy_s),
        hidden_s=hidden_s,
    )


_PRIORITY = {KernelClass.COMPUTE: 0, KernelClass.HOST_COPY: 2}


def _exposed(span: StepSpan, intervals: Sequence[Interval]) -> list[float]:
    """Seconds of each interval inside the span in which nothing of higher priority ran."""
    seen = [0.0] * len(intervals)
    for at, start_s, end_s in exposed_pieces(span, intervals):
        seen[at] += end_s - start_s
    return seen


def exposed_pieces(
    span: StepSpan, intervals: Sequence[Interval]
) -> Iterator[tuple[int, float, float]]:
    """Index, start and end of what ran, in order of time; no two overlap.

    Compute comes before communication, and that before copies from and to the host.
    """
    active: list[tuple[int, int]] = []
    edges = sorted(
        {span.start_s, span.end_s}
        | {min(max(t, span.start_s), span.end_s) for i in intervals for t in (i.start_s, i.end_s)}
    )
    waiting = sorted(range(len(intervals)), key=lambda at: intervals[at].start_s)
    following = 0
    for start_s, end_s in itertools.pairwise(edges):
        while following < len(waiting) and intervals[waiting[following]].start_s <= start_s:
            at = waiting[following]
            heapq.heappush(active, (_PRIORITY.get(intervals[at].kernel, 1), at))
            following += 1
        while active and intervals[active[0][1]].end_s <= start_s:
            heapq.heappop(active)
        if active:
            yield active[0][1], start_s, end_s
