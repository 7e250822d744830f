"""Copies that run at the same time as others, and copies while the GPUs compute (L3).

Members of a set get as many calls as last equally long, so that each meets the others throughout.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from linkbound.evidence.types import Reason
from linkbound.links.live.cell import Cell
from linkbound.links.live.rows import HOST, LinkRow
from linkbound.links.live.speeds import checked_row
from linkbound.links.live.station import Station, operation_of
from linkbound.links.live.tasks import METHODS, THREADS, Ends

WINDOW_S = 0.02
"""Of one sample of a set: long against the microseconds by which starts differ."""
_MOST_CALLS = 200
"""Behind one gate."""
WORK_NS = 3_000_000_000
"""Busy work that nobody ends is over by then."""
WORK_BYTES = 1024**3
"""Local memory that is read over and over: far more than any L2."""
_WORK_THREADS = 256


def together(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """A row for each member with its time alone, and one for all of them."""
    ends = [
        station.copy(one.method, one.src, one.dst, cell.size_bytes, lane=lane)
        for lane, one in enumerate(cell.members)
    ]
    for one in ends:
        station.checker.prepare(one)
        station.bench.run(one.task)
    alone_s = [_alone_s(station, one) for one in ends]
    window_s = max(WINDOW_S, *alone_s)
    calls = [max(1, min(_MOST_CALLS, round(window_s / one))) for one in alone_s]
    members: list[tuple[float, ...]] = []

    def take() -> float | None:
        times = station.bench.time([one.task for one in ends], calls)
        if times is None:
            return None
        members.append(times.members_s)
        return times.window_s

    fields = station.sampled(cell, take)
    for number, one in enumerate(ends):
        samples_s = tuple(times[number] / calls[number] for times in members)
        own = {**fields, "samples_s": samples_s, "calls": calls[number]}
        own["alone_s"] = alone_s[number]
        yield _member_row(station, cell, number, one, own)
    yield _total_row(station, cell, sum(calls), fields)


def _member_row(
    station: Station, cell: Cell, number: int, ends: Ends, fields: dict[str, Any]
) -> LinkRow:
    member = cell.members[number]
    fields |= {
        "operation": operation_of(member.src, member.dst),
        "implementation": METHODS[member.method].implementation,
        "method": str(member.method),
        "group": (member.src, member.dst),
        "concurrency": cell.name,
        "timer": "gate+events",
    }
    return checked_row(station, cell, (ends,), fields)


def _total_row(station: Station, cell: Cell, calls: int, fields: dict[str, Any]) -> LinkRow:
    """All bytes of the set over the common window."""
    ends = [label for one in cell.members for label in (one.src, one.dst)]
    return station.row(
        cell,
        **fields,
        group=tuple(dict.fromkeys(label for label in ends if label != HOST)),
        concurrency=f"{cell.name}, total",
        size_bytes=cell.size_bytes * calls,
        timer="gate+events",
        facts={"members": str(len(cell.members))},
    )


def _alone_s(station: Station, ends: Ends) -> float:
    """Median seconds of one call, in windows as long as those of the set."""
    first = [_one_window_s(station, ends, 1) for _ in range(3)]
    calls = max(1, min(_MOST_CALLS, round(WINDOW_S / median(first))))
    return median(_one_window_s(station, ends, calls) for _ in range(3))


def _one_window_s(station: Station, ends: Ends, calls: int) -> float:
    times = station.bench.time([ends.task], [calls])
    # A gate that failed leaves the whole limit as the time: the set's own samples will say so.
    return times.members_s[0] / calls if times is not None else WINDOW_S


def under_work(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """One copy while arithmetic, or reads of local memory, keep both GPUs busy."""
    ends = station.ends(cell)
    station.checker.prepare(ends)
    station.bench.run(ends.task)
    alone = station.timed(cell, ends.task, 4)["samples_s"]
    with _busy(station, cell) as still_busy:
        fields = station.timed(cell, ends.task, 4)
        busy_throughout = still_busy()
    if alone:
        fields["alone_s"] = median(alone)
    fields["concurrency"] = f"while both GPUs do {cell.name} work"
    if not busy_throughout:
        text = "The busy work ended before the samples did: they say nothing about it."
        fields |= {"samples_s": (), "reason": Reason(code="work-ended", text=text)}
    yield checked_row(station, cell, (ends,), fields)


@contextmanager
def _busy(station: Station, cell: Cell) -> Iterator[Callable[[], bool]]:
    """Keep the GPUs of a cell busy on their lane 0 until the block ends; gives a check of it."""
    bench = station.bench
    turn = bench.next_turn()
    ends = []
    zeros_at = station.buffers.pinned(None, "zeros", 16)
    bench.cuda.write_word(zeros_at, 0)
    for label in (cell.src, cell.dst):
        on = bench.stream(bench.ordinal(label))
        flag_at = station.buffers.device(on.device, "work flag", 16)
        # Memory is not cleared when it is given: an old word there would end the work at once.
        bench.cuda.copy(flag_at, zeros_at, 8, on)
        words = [WORK_NS, bench.work_word, turn, flag_at]
        if cell.name == "memory":
            words += [station.buffers.device(on.device, "work", WORK_BYTES), WORK_BYTES]
        blocks = 2 * bench.facts[label].multiprocessors
        bench.cuda.launch(f"work_{cell.name}", on, blocks, _WORK_THREADS, *words)
        ended = bench.event(on.device, "work ended")
        bench.cuda.record(ended, on)
        ends.append(ended)
    try:
        yield lambda: not any(bench.cuda.happened(ended) for ended in ends)
    finally:
        bench.cuda.write_word(bench.work_word, turn)
        for ended in ends:
            bench.cuda.finish_event(ended)


# A copy by SMs beside work needs room on each multiprocessor: both fit 2,048 threads.
assert 2 * _WORK_THREADS + 2 * THREADS <= 2048
