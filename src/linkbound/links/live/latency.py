"""Times that are called latency, each by its own name, and costs of launching and ordering (L2).

Issue interval, one copy end to end, pointer chase, ping-pong of resident kernels.
"""

import time
from collections.abc import Callable, Iterator

from linkbound.evidence.types import Reason
from linkbound.links.live.bench import Bench
from linkbound.links.live.cell import Cell
from linkbound.links.live.cuda import Stream
from linkbound.links.live.rows import LinkRow
from linkbound.links.live.speeds import checked_row
from linkbound.links.live.station import Station
from linkbound.links.types import Operation

ISSUE_CALLS = 256
"""Copies behind one gate: as many as surely fit the queue."""
END_TO_END_CALLS = 20
"""Single copies that are averaged to one sample: the host's clock and scheduler are noisy."""
CHASE_BYTES = 2 * 1024**2
CHASE_STRIDE_BYTES = 128
CHASE_LOADS = 1024
"""Of each multiprocessor in turn: runs of a single one gave 802 to 854 ns on a pair of H200."""
_CHASE_WARM_UP = 1
"""Turns of all before the samples: the first meets cold address translation."""
PINGPONG_LAPS = 1000
PINGPONG_WARM_UP = 50
PINGPONG_LIMIT_NS = 2_000_000_000
_FLAG_BYTES = 256
_RESULT_BYTES = 16
LAUNCH_CALLS = 200


def issue_interval(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """Small copies back to back: throughput of commands, not a one-way time."""
    ends = station.ends(cell)
    station.checker.prepare(ends)
    station.bench.run(ends.task)
    fields = station.timed(cell, ends.task, ISSUE_CALLS)
    fields |= {"operation": Operation.LATENCY, "method": f"issue interval {cell.method}"}
    yield checked_row(station, cell, (ends,), fields)


def end_to_end(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """One copy as the host sees it: queued, then its end seen by polling, or woken by it."""
    bench, cuda = station.bench, station.bench.cuda
    ends = station.ends(cell)
    on = ends.task.last
    station.checker.prepare(ends)
    bench.run(ends.task)
    polled, asleep = bench.event(on.device, "polled"), bench.event(on.device, "nap", blocking=True)

    def poll() -> None:
        ends.task.enqueue()
        cuda.record(polled, on)
        while not cuda.happened(polled):
            pass

    def sleep() -> None:
        ends.task.enqueue()
        cuda.record(asleep, on)
        cuda.finish_event(asleep)

    for way, call in (("polled", poll), ("asleep", sleep)):
        fields = station.sampled(cell, lambda call=call: host_s(call, END_TO_END_CALLS))  # type: ignore[misc]
        fields |= {"operation": Operation.LATENCY, "timer": "host", "calls": END_TO_END_CALLS}
        fields["method"] = f"end to end {cell.method}, {way}"
        yield checked_row(station, cell, (ends,), fields)


def host_s(call: Callable[[], None], calls: int) -> float:
    """Mean seconds of one call by the host's clock."""
    start_s = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start_s) / calls


def chase(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """Kernels of `dst` follow pointers in the memory of `src`: one read's round trip.

    A sample is the mean over all multiprocessors, each of which loads alone.
    """
    bench, cuda = station.bench, station.bench.cuda
    owner, reader = bench.ordinal(cell.src), bench.ordinal(cell.dst)
    blocks = bench.facts[cell.dst].multiprocessors
    ring_at = station.buffers.device(owner, "ring", CHASE_BYTES)
    ends_at = station.buffers.device(reader, "chase ends", 8 * blocks)
    read_at = station.buffers.pinned(None, "chase ends", 8 * blocks)
    places = CHASE_BYTES // CHASE_STRIDE_BYTES
    made_by, on = bench.stream(owner), bench.stream(reader, 1)
    cuda.launch("chain", made_by, 64, 256, ring_at, places, CHASE_STRIDE_BYTES)
    cuda.finish(made_by)
    start, end = bench.event(reader, "chase start"), bench.event(reader, "chase stop")
    begins = [block * CHASE_LOADS % places for block in range(blocks)]
    wrong = 0

    def take() -> float | None:
        nonlocal wrong
        cuda.record(start, on)
        for block, place in enumerate(begins):
            start_at = ring_at + place * CHASE_STRIDE_BYTES
            cuda.launch("chase", on, blocks, 1, start_at, CHASE_LOADS, ends_at, block)
        cuda.record(end, on)
        cuda.copy(read_at, ends_at, 8 * blocks, on)
        cuda.finish(on)
        for block, place in enumerate(begins):
            expected = ring_at + (place + CHASE_LOADS) % places * CHASE_STRIDE_BYTES
            wrong += cuda.read_word(read_at + 8 * block) != expected
        return cuda.elapsed_s(start, end) / CHASE_LOADS / blocks

    for _ in range(_CHASE_WARM_UP):
        take()
    fields = station.sampled(cell, take)
    fields |= {"operation": Operation.LATENCY, "method": "pointer chase, 128 B stride"}
    fields |= {"calls": CHASE_LOADS * blocks, "wrong": wrong, "size_bytes": 8}
    if wrong:
        text = f"{wrong} chases did not end where their loads lead."
        fields |= {"samples_s": (), "reason": Reason(code="corrupt", text=text)}
    yield station.row(cell, **fields)


def pingpong(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """Two resident kernels bounce a flag: remote write, local poll; a sample is half a lap."""
    bench, cuda = station.bench, station.bench.cuda
    ordinals = bench.ordinal(cell.src), bench.ordinal(cell.dst)
    flags = [station.buffers.device(one, "flag", _FLAG_BYTES) for one in ordinals]
    streams = [bench.stream(one, 1) for one in ordinals]
    results = [station.buffers.pinned(None, f"laps {n}", _RESULT_BYTES) for n in range(2)]
    zeros = station.buffers.pinned(None, "zeros", _RESULT_BYTES)
    cuda.write_word(zeros, 0)
    short = 0

    def take() -> float | None:
        nonlocal short
        for flag, on in zip(flags, streams, strict=True):
            cuda.copy(flag, zeros, 8, on)
        for on in streams:
            cuda.finish(on)
        for side, on in reversed(list(enumerate(streams))):
            laps = (PINGPONG_LAPS, PINGPONG_WARM_UP, int(side == 0), PINGPONG_LIMIT_NS)
            mine, theirs = flags[side], flags[1 - side]
            cuda.launch("pingpong", on, 1, 1, mine, theirs, *laps, results[side])
        for on in streams:
            cuda.finish(on)
        done = min(cuda.read_word(at + 8) for at in results)
        if done != PINGPONG_LAPS + PINGPONG_WARM_UP:
            short += 1
            return None
        return cuda.read_word(results[0]) * 1e-9 / PINGPONG_LAPS / 2

    take()
    fields = station.sampled(cell, take)
    fields |= {"operation": Operation.LATENCY, "method": "flag ping-pong, half a lap"}
    fields |= {"calls": PINGPONG_LAPS, "timer": "globaltimer", "wrong": short, "size_bytes": 8}
    if short:
        text = f"{short} rounds of {PINGPONG_LAPS} laps were not finished in time."
        fields |= {"samples_s": (), "reason": Reason(code="corrupt", text=text)}
    yield station.row(cell, **fields)


def launch_costs(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """Empty kernels, a wait across GPUs, and waiting for a stream: each a figure of its own."""
    cuda = station.bench.cuda
    here, there = (
        station.bench.stream(station.bench.ordinal(one), 1) for one in (cell.src, cell.dst)
    )

    def launch() -> None:
        cuda.launch("empty", here, 1, 32)

    def wait_idle() -> None:
        cuda.finish(here)

    def launch_and_wait() -> None:
        launch()
        wait_idle()

    def queue_many() -> float:
        queued_s = host_s(launch, LAUNCH_CALLS)
        wait_idle()
        return queued_s

    figures: tuple[tuple[str, str, Callable[[], float | None]], ...] = (
        ("empty launch, queueing", "host", queue_many),
        ("empty launch and wait", "host", lambda: host_s(launch_and_wait, LAUNCH_CALLS)),
        ("stream synchronise, idle", "host", lambda: host_s(wait_idle, LAUNCH_CALLS)),
        (
            "event record and wait across GPUs",
            "gate+events",
            lambda: _bounce_s(station.bench, here, there),
        ),
    )
    for name, timer, take in figures:
        take()
        fields = station.sampled(cell, take)
        fields |= {"operation": Operation.LATENCY, "implementation": "driver", "method": name}
        yield station.row(cell, **fields, calls=LAUNCH_CALLS, timer=timer)


def _bounce_s(bench: Bench, here: Stream, there: Stream) -> float | None:
    """Seconds of one wait for a mark of another GPU: marks bounce, all queued behind a gate."""
    cuda = bench.cuda
    turn = bench.hold(here)
    start, end = bench.event(here.device, "start"), bench.event(here.device, "stop")
    cuda.record(start, here)
    for _ in range(LAUNCH_CALLS // 2):
        for one, other in ((here, there), (there, here)):
            mark = bench.event(one.device, "bounce")
            cuda.record(mark, one)
            cuda.wait(other, mark)
    cuda.record(end, here)
    bench.release(turn)
    cuda.finish(here)
    return None if bench.gate_failed(turn) else cuda.elapsed_s(start, end) / LAUNCH_CALLS
