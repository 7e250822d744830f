"""Checks and speeds of one pair: each size, sustained, both ways, and which hardware moved it.

Every speed stands between a fresh pattern before its samples and a check of it after them (L1, L6).
"""

from collections.abc import Iterator
from statistics import median
from typing import Any

from msgspec import structs

from linkbound.evidence.types import Reason
from linkbound.links.live.cell import Cell
from linkbound.links.live.rows import HOST, Direction, LinkRow
from linkbound.links.live.station import Station
from linkbound.links.live.tasks import PEER_METHODS, Ends, Method
from linkbound.links.live.verify import Verdict
from linkbound.links.types import Operation

DIRECT_WINDOW_BYTES = 4 * 1024**3
"""Of one sustained window: 10 ms at 400 GB/s, 160 ms over PCIe 4."""
STAGED_WINDOW_BYTES = 1024**3
PAGEABLE_WINDOW_BYTES = 64 * 1024**2
"""A single copy takes 10 ms and more: calls back to back gain nothing."""
_MOST_CALLS = 16
_COUNTER_BITS = 32
"""PCIe's byte counters wrap at 4 GiB (seen on an H200): windows through the host stay below."""


def verify(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """Every size once; only wrong bytes give a row each, else one row stands for all."""
    ends_wrong = False
    for size in cell.sizes:
        sized = structs.replace(cell, size_bytes=size)
        verdict = station.checker.run(station.ends(sized))
        if verdict.wrong:
            ends_wrong = True
            yield wrong_row(station, sized, verdict)
    if not ends_wrong:
        largest = structs.replace(cell, size_bytes=max(cell.sizes))
        facts = {"checked_sizes": " ".join(map(str, cell.sizes))}
        reason = Reason(code="check-only", text="Bytes were checked; nothing was timed.")
        yield station.row(largest, wrong=0, facts=facts, reason=reason)


def wrong_row(station: Station, cell: Cell, verdict: Verdict, **fields: Any) -> LinkRow:
    """A row without a speed: the owner found wrong bytes."""
    reason = Reason(code="corrupt", text=f"The owner found {verdict.wrong:,} wrong words.")
    found = {"wrong": verdict.wrong, "wrong_at_bytes": verdict.wrong_at_bytes}
    without = {"samples_s": (), "each_way_bytes_per_s": (), "cpu_s_per_gb": None}
    return station.row(cell, **{**fields, **found, **without, "reason": reason})


def checked_row(
    station: Station, cell: Cell, ends: tuple[Ends, ...], fields: dict[str, Any]
) -> LinkRow:
    """The row of samples whose destinations hold what was sent, else one without a speed."""
    verdicts = [station.checker.check(one) for one in ends]
    wrong = next((verdict for verdict in verdicts if verdict.wrong), None)
    if wrong is not None:
        return wrong_row(station, cell, wrong, **fields)
    return station.row(cell, **fields, wrong=0)


def curve(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """One call of one size between two marks."""
    ends = station.ends(cell)
    station.checker.prepare(ends)
    station.bench.run(ends.task)
    yield checked_row(station, cell, (ends,), station.timed(cell, ends.task))


def rate(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """Calls back to back, and what they cost the CPU."""
    ends = station.ends(cell)
    station.checker.prepare(ends)
    station.bench.run(ends.task)
    calls = window_calls(cell)
    fields = station.timed(cell, ends.task, calls)
    cpu_s = station.bench.cpu_s(ends.task, calls)
    fields["cpu_s_per_gb"] = cpu_s / (calls * cell.size_bytes / 1e9)
    yield checked_row(station, cell, (ends,), {**fields, "concurrency": "alone"})


def window_calls(cell: Cell) -> int:
    """Calls of a sustained window: fewer through the host, where each takes longer."""
    window = STAGED_WINDOW_BYTES
    if cell.method in PEER_METHODS:
        window = DIRECT_WINDOW_BYTES
    elif cell.method is Method.PAGEABLE:
        window = PAGEABLE_WINDOW_BYTES
    return max(1, min(_MOST_CALLS, window // cell.size_bytes))


def both_ways(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """Both directions at once: one window from the first start to the last end."""
    there = station.ends(cell)
    back = station.ends(cell, reverse=True, lane=1)
    for ends in (there, back):
        station.checker.prepare(ends)
        station.bench.run(ends.task)
    calls = max(1, window_calls(cell) // 2)
    each: list[tuple[float, ...]] = []

    def take() -> float | None:
        times = station.bench.time([there.task, back.task], [calls, calls])
        if times is None:
            return None
        each.append(times.members_s)
        return times.window_s / calls

    fields = station.sampled(cell, take)
    gated = there.task.gated and back.task.gated
    fields["each_way_bytes_per_s"] = tuple(
        calls * cell.size_bytes / median(times[way] for times in each) for way in range(2) if each
    )
    fields |= {"calls": calls, "timer": "gate+events" if gated else "events"}
    fields["direction"] = Direction.BOTH_WAYS
    hosted = HOST in (cell.src, cell.dst)
    fields["operation"] = Operation.HOST_DEVICE_BOTH_WAYS if hosted else Operation.COPY_BOTH_WAYS
    yield checked_row(station, cell, (there, back), fields)


def proof(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """Growth of NVLink's and PCIe's byte counters while a known number of bytes moves."""
    ends = station.ends(cell)
    calls = window_calls(cell)
    before = station.counters(cell)
    for _ in range(calls):
        ends.task.enqueue()
    # Sampling takes as long as the copies: only where nothing counts PCIe's bytes.
    counted = any("pcie" in name for name in before)
    during = {} if counted else station.pcie_bytes_per_s(cell)
    # Read while copies run: an idle PCIe link shows a lower generation than it has.
    readings = station.readings(cell)
    station.bench.run(ends.task)
    after = station.counters(cell)
    grown = {
        name: (after[name] - count) % 2**_COUNTER_BITS if "pcie" in name else after[name] - count
        for name, count in before.items()
        if name in after
    }
    moved = (calls + 1) * cell.size_bytes
    rates = {name: str(value) for name, value in during.items()}
    facts = {"moved_bytes": str(moved), **rates, **readings}
    reason = Reason(code="counters-only", text="Counters were read; nothing was timed.")
    yield station.row(cell, counters=grown, facts=facts, reason=reason)
