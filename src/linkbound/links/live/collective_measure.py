"""One cell on all ranks: first its bytes, then how many calls, then its samples (L4, L6).

All processes take the same decisions, since they take them from what all have given.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, pstdev
from typing import Protocol

from linkbound.links.live.collective_buffers import RankBuffers
from linkbound.links.live.collective_exchange import Exchange
from linkbound.links.live.collective_seam import Graph
from linkbound.links.live.collective_types import Cell, CollectiveJob, RankReport
from linkbound.links.types import Launch

SAMPLE_S = 5e-4
"""Length of a sample: some hundred times the tick of an event's clock and of a launch's jitter."""
MOST_CALLS = 50
"""Calls in a sample: 10 samples of them stay below the driver's queue of about 1,000 launches."""
FEW = 3
"""Samples that are enough where their spread is small."""
ENOUGH_SPREAD = 0.02
"""Coefficient of variation below which a few samples are enough."""
PATIENCE_S = 1.0
"""Seconds that the samples of one cell may take in all."""
LONG_S = 2e-3
"""A call that takes longer needs no warm-up beyond the calls that verify and line up."""
_WARM_UP = 4


Batch = Callable[[], None]


class Calls(Protocol):
    """What is measured, on every rank of this process."""

    def most_calls(self, most: int) -> int:
        """At most `most` calls in one batch, or as many as can be checked."""

    def batch(self, cell: Cell, calls: int) -> Batch:
        """What enqueues so many calls, one after the other, each after the last has ended."""

    def outcome(self, on: RankBuffers, cell: Cell, calls: int) -> tuple[int, int] | None:
        """Address and doublings of the result after so many calls; None if it is not exact."""


class Work:
    """The ranks of this process, with what they are to do, launched eagerly or as graphs."""

    def __init__(
        self,
        job: CollectiveJob,
        ranks: Sequence[RankBuffers],
        calls: Calls,
        exchange: Exchange,
    ) -> None:
        self._job = job
        self._ranks = ranks
        self._calls = calls
        self._exchange = exchange
        self._work_ended = False
        self._events = [
            [each.device.event() for _ in range(job.samples + 1)] for each in self._each()
        ]

    def measure(self, cell: Cell, seed: int) -> RankReport:
        """What all ranks found; no samples where any of them found a wrong element."""
        with self._launchable(cell, 1) as one:
            wrong = self._verify(cell, seed, one, 1)
            if wrong.wrong:
                return wrong
            call_s = self._call_s(one)
        calls = self._calls.most_calls(calls_of(call_s))
        with self._launchable(cell, calls) as batch:
            samples = self._samples(batch, calls, calls * call_s)
            ended = any(self._exchange.all(self._work_ended))
            # Once more, on fresh data, by the very thing that was timed.
            after = self._verify(cell, seed + 1, batch, calls)
        return RankReport(
            samples_s=samples,
            calls=calls,
            work_ended=ended,
            wrong=after.wrong,
            wrong_at_bytes=after.wrong_at_bytes,
        )

    @contextmanager
    def _launchable(self, cell: Cell, calls: int) -> Iterator[Batch]:
        """What runs so many calls: issued one by one, or one graph that holds them all."""
        issue = self._calls.batch(cell, calls)
        if cell.launch is Launch.EAGER:
            yield issue
            return
        graphs = self._captured(issue)

        def launch() -> None:
            for each, graph in zip(self._each(), graphs, strict=True):
                each.device.launch_graph(graph)

        yield launch
        for each, graph in zip(self._each(), graphs, strict=True):
            each.device.drop_graph(graph)

    def _captured(self, issue: Batch) -> list[Graph]:
        for each in self._each():
            each.device.begin_capture()
        issue()
        captured = [each.device.end_capture() for each in self._each()]
        return [each.device.graph(one) for each, one in zip(self._each(), captured, strict=True)]

    def _verify(self, cell: Cell, seed: int, batch: Batch, calls: int) -> RankReport:
        places = [self._calls.outcome(each, cell, calls) for each in self._ranks]
        found: list[tuple[int, int | None]] = []
        if None not in places:
            for each in self._ranks:
                each.prepare(cell, seed)
            # A kernel of ours reads a peer's memory: that must be filled, not only enqueued.
            self._synchronize()
            self._exchange.all(None)
            batch()
            for each, place in zip(self._ranks, places, strict=True):
                if place is not None:
                    at, doublings = place
                    found.append(each.wrong(cell, seed, doublings, at))
        return _merged(self._exchange.all(found))

    def _call_s(self, one: Batch) -> float:
        """Seconds of a call on the slowest rank; a long one is not repeated to know it better."""
        first_s = self._slowest(self._timed(one, 1))
        return first_s if first_s > LONG_S else self._slowest(self._timed(one, _WARM_UP))

    def _timed(self, one: Batch, times: int) -> float:
        """Seconds of a call on the slowest rank here."""
        self._mark(0)
        for _ in range(times):
            one()
        self._mark(1)
        self._synchronize()
        return max(self._between(number, 0, 1) for number in range(len(self._ranks))) / times

    def _samples(self, batch: Batch, calls: int, sample_s: float) -> tuple[float, ...]:
        """Seconds of one call, a sample a batch: the mean over all ranks, as nccl-tests."""
        samples: list[float] = []
        self._work_ended = False
        number = first_samples(self._job, sample_s)
        while number:
            with self._working():
                samples += self._taken(batch, calls, number)
            number = more_samples(self._job, samples, sample_s)
        return tuple(samples)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Work on every GPU while samples are taken, where the job asks for it."""
        if not self._job.work:
            yield
            return
        for each in self._each():
            each.device.start_work()
        # No rank's first call may find the GPU of another idle.
        self._exchange.all(None)
        yield
        for each in self._each():
            self._work_ended |= not each.device.still_works()
            each.device.finish_work()

    def _taken(self, batch: Batch, calls: int, number: int) -> list[float]:
        batch()  # lines up the ranks: the first mark follows it
        self._mark(0)
        for sample in range(number):
            batch()
            self._mark(sample + 1)
        self._synchronize()
        own = [
            [self._between(rank, sample, sample + 1) / calls for sample in range(number)]
            for rank in range(len(self._ranks))
        ]
        everyone = [times for process in self._exchange.all(own) for times in process]
        return [fmean(times) for times in zip(*everyone, strict=True)]

    def _slowest(self, seconds: float) -> float:
        everyone: list[float] = self._exchange.all(seconds)
        return max(everyone)

    def _mark(self, number: int) -> None:
        for each, events in zip(self._each(), self._events, strict=True):
            each.device.record(events[number])

    def _between(self, rank: int, start: int, end: int) -> float:
        events = self._events[rank]
        return self._ranks[rank].device.elapsed_s(events[start], events[end])

    def _synchronize(self) -> None:
        for each in self._each():
            each.device.synchronize()

    def _each(self) -> Iterator[RankBuffers]:
        """The ranks here; the device of each is the current one while it is used."""
        for each in self._ranks:
            each.device.activate()
            yield each


def _merged(processes: list[list[tuple[int, int | None]]]) -> RankReport:
    """What the ranks of all processes found wrong, together."""
    pairs = [pair for found in processes for pair in found]
    first = [at for _, at in pairs if at is not None]
    return RankReport(
        wrong=sum(count for count, _ in pairs), wrong_at_bytes=min(first) if first else None
    )


def calls_of(call_s: float) -> int:
    """Calls in one sample, for calls of `call_s` seconds."""
    return max(1, min(MOST_CALLS, math.ceil(SAMPLE_S / call_s))) if call_s > 0 else MOST_CALLS


def first_samples(job: CollectiveJob, sample_s: float) -> int:
    """Samples to take at once, where each takes `sample_s` seconds."""
    affordable = int(job.cell_s / sample_s) if sample_s > 0 else job.samples
    return max(min(FEW, job.samples), min(job.samples, affordable))


def more_samples(job: CollectiveJob, samples: Sequence[float], sample_s: float) -> int:
    """Samples to take after these: none where they are all, or agree, or time is short."""
    if len(samples) >= job.samples or spread(samples) <= ENOUGH_SPREAD:
        return 0
    affordable = int(PATIENCE_S / sample_s) if sample_s > 0 else job.samples
    return max(0, min(job.samples, affordable) - len(samples))


def spread(samples: Sequence[float]) -> float:
    """Coefficient of variation; 0 of no samples."""
    mean = fmean(samples) if samples else 0.0
    return pstdev(samples) / mean if mean > 0 else 0.0
