"""One cell on all ranks: first its bytes, then how many calls, then its samples (L4, L6).

All processes take the same decisions, since they take them from what all have given.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev
from typing import Protocol

from linkbound.links.live.collective_buffers import RankBuffers, repeatable
from linkbound.links.live.collective_device import Graph
from linkbound.links.live.collective_exchange import Exchange
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
_WARM_UP = 4


class Calls(Protocol):
    """What is measured: one call on every rank of this process."""

    def issue(self, cell: Cell) -> None: ...


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
        self._events = [
            [each.device.event() for _ in range(job.samples + 1)] for each in self._each()
        ]

    def measure(self, cell: Cell, seed: int) -> RankReport:
        """What all ranks found; no samples where any of them found a wrong element."""
        graphs = self._captured(cell, 1) if cell.launch is Launch.GRAPH else None
        wrong = self._verify(cell, seed, graphs)
        if wrong.wrong:
            self._drop(graphs)
            return wrong
        call_s = self._slowest(self._warm_up(cell, graphs))
        calls = calls_of(call_s)
        if graphs is not None and calls > 1:
            self._drop(graphs)
            graphs = self._captured(cell, calls)
        samples = self._samples(cell, graphs, calls, calls * call_s)
        after = self._check(cell, seed, samples) if repeatable(cell) else RankReport()
        self._drop(graphs)
        return RankReport(
            samples_s=samples, calls=calls, wrong=after.wrong, wrong_at_bytes=after.wrong_at_bytes
        )

    def _verify(self, cell: Cell, seed: int, graphs: list[Graph] | None) -> RankReport:
        for each in self._ranks:
            each.prepare(cell, seed)
        # A kernel of ours reads a peer's memory: that must be filled, not only enqueued.
        self._synchronize()
        self._exchange.all(None)
        self._batch(cell, graphs, 1)
        return self._check(cell, seed, ())

    def _check(self, cell: Cell, seed: int, samples: tuple[float, ...]) -> RankReport:
        found = [each.wrong(cell, seed) for each in self._ranks]
        reports = self._exchange.all(found)
        pairs = [(count, first) for report in reports for count, first in report]
        first = [at for _, at in pairs if at is not None]
        return RankReport(
            samples_s=samples,
            wrong=sum(count for count, _ in pairs),
            wrong_at_bytes=min(first) if first else None,
        )

    def _warm_up(self, cell: Cell, graphs: list[Graph] | None) -> float:
        """Seconds of a call on the slowest rank here, after a first call that is not timed."""
        self._batch(cell, graphs, 1)
        self._mark(0)
        for _ in range(_WARM_UP):
            self._batch(cell, graphs, 1)
        self._mark(1)
        self._synchronize()
        return max(self._between(number, 0, 1) for number in range(len(self._ranks))) / _WARM_UP

    def _samples(
        self, cell: Cell, graphs: list[Graph] | None, calls: int, sample_s: float
    ) -> tuple[float, ...]:
        """Seconds of one call, a sample a batch: the mean over all ranks, as nccl-tests."""
        samples: list[float] = []
        number = first_samples(self._job, sample_s)
        while number:
            samples += self._taken(cell, graphs, calls, number)
            number = more_samples(self._job, samples, sample_s)
        return tuple(samples)

    def _taken(
        self, cell: Cell, graphs: list[Graph] | None, calls: int, number: int
    ) -> list[float]:
        self._batch(cell, graphs, calls)  # lines up the ranks: the first mark follows it
        self._mark(0)
        for sample in range(number):
            self._batch(cell, graphs, calls)
            self._mark(sample + 1)
        self._synchronize()
        own = [
            [self._between(rank, sample, sample + 1) / calls for sample in range(number)]
            for rank in range(len(self._ranks))
        ]
        everyone = [times for process in self._exchange.all(own) for times in process]
        return [fmean(times) for times in zip(*everyone, strict=True)]

    def _batch(self, cell: Cell, graphs: list[Graph] | None, calls: int) -> None:
        """`calls` calls; a graph holds them all."""
        if graphs is None:
            for _ in range(calls):
                self._calls.issue(cell)
            return
        for each, graph in zip(self._each(), graphs, strict=True):
            each.device.launch_graph(graph)

    def _captured(self, cell: Cell, calls: int) -> list[Graph]:
        for each in self._each():
            each.device.begin_capture()
        for _ in range(calls):
            self._calls.issue(cell)
        return [each.device.end_capture() for each in self._each()]

    def _drop(self, graphs: list[Graph] | None) -> None:
        if graphs is not None:
            for each, graph in zip(self._each(), graphs, strict=True):
                each.device.drop_graph(graph)

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
