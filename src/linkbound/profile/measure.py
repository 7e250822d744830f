"""One point on one rank: plain steps, traced ones, counted ones, and the calls alone (P1, P3).

Each has a run of its own, so that no instrument slows the steps whose time is the answer. Ranks
begin each run together.
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from linkbound.links.types import Launch
from linkbound.profile.kineto import parse_kineto
from linkbound.profile.network import Network
from linkbound.profile.repeat import repeated
from linkbound.profile.spent import Spent
from linkbound.profile.steps import Step, goes_through_host
from linkbound.profile.types import Device, Job, Point, RankPoint, Timeline, chunks_of
from linkbound.splits.types import Phase

if TYPE_CHECKING:
    from linkbound.links.live.meter import TrafficMeter
    from linkbound.links.traffic import Traffic

LEAST_PREFILLS = 2
PREFILL_SHARE = 5
PREFILLS_TRACED = 2
CALLS_REPEATS = 5
REST_S = 0.5
"""Of idle traffic, once a child."""


class _Counts(NamedTuple):
    """How many steps of a point are run in each way."""

    plain: int
    traced: int
    counted: int


def _counts(job: Job, point: Point, chunks: int) -> _Counts:
    if point.phase is Phase.DECODE:
        return _Counts(job.steps, job.traced_steps, job.steps)
    plain = max(LEAST_PREFILLS, job.steps // PREFILL_SHARE // chunks)
    traced = max(1, min(job.traced_steps, PREFILLS_TRACED) // chunks) if job.traced_steps else 0
    return _Counts(plain, traced, 1)


class Measurement:
    """Times points of a job on one rank."""

    def __init__(self, network: Network, job: Job, spent: Spent) -> None:
        self._network, self._job, self._spent = network, job, spent
        self.rank = network.held.rank.number
        self._on_device = job.device is Device.CUDA
        self._metered = self._on_device and job.traced_steps > 0 and dist.is_initialized()
        self._meter = self._open_meter()

    def of(self, point: Point, trace: Path) -> RankPoint:
        """Everything this rank says of `point`; `trace` is where the profiler may write."""
        job, chunks = self._job, chunks_of(point, self._job.chunk_tokens)
        counts = _counts(job, point, chunks)
        spent = self._spent
        step = Step(self._network, job, point, max(counts.plain, counts.traced + 2))
        spent.part("warm-up")
        step.capture()
        spent.part("capture")
        # On both sides of the traced steps: clocks that fall under load fall for all alike.
        warm = chunks == 1
        times_s = self._plain(step, counts.plain - counts.plain // 2, warm=warm)
        spent.part("plain")
        timeline = None
        if counts.traced:
            timeline = self._instrumented(step, counts.traced, trace, warm=warm)
            spent.part("trace read")
        times_s += self._plain(step, counts.plain // 2, warm=warm)
        spent.part("plain again")
        # Of several chunks they are the calls of one, several times.
        alone = min(CALLS_REPEATS, counts.plain) if counts.traced and chunks == 1 else 0
        if step.launch is Launch.GRAPH and goes_through_host(job):
            alone = 0
        calls_s = self._calls_alone(step, alone) if alone else ()
        spent.part("calls alone")
        traffic = self._traffic(step, counts.counted) if self._metered else None
        spent.part("counted")
        return RankPoint(
            rank=self.rank,
            point=point,
            launch=step.launch,
            eager_because=step.eager_because,
            times_s=tuple(times_s),
            calls=step.calls,
            calls_s=calls_s,
            timeline=timeline,
            traffic=traffic,
            traffic_steps=counts.counted,
            memory_bytes=torch.cuda.max_memory_allocated() if self._on_device else None,
        )

    def _plain(self, step: Step, count: int, *, warm: bool) -> list[float]:
        step.reset()
        self._together()
        if not self._on_device:
            return _times(step.run, count)
        if warm:
            step.run()
            step.reset()
        return _times_on_device(step.run, count)

    def _instrumented(self, step: Step, count: int, trace: Path, *, warm: bool) -> Timeline:
        step.reset()
        self._together()
        if self._on_device:
            return self._traced(step, count, trace, warm=warm)
        ledger = self._network.exchange.ledger
        with ledger.timing():
            for _ in range(count):
                with ledger.step():
                    step.run()
        return ledger.timeline()

    def _traced(self, step: Step, count: int, path: Path, *, warm: bool) -> Timeline:
        """Kernels of `count` steps, after one that pays for the profiler's start if `warm`.

        What follows the last step bounds it.
        """
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            self._spent.part("profiler's start")
            if warm:
                with torch.profiler.record_function("warm-up"):
                    step.run()
            for index in range(count):
                with torch.profiler.record_function(f"linkbound step {index}"):
                    step.run()
            with torch.profiler.record_function(f"linkbound step {count}"):
                step.run() if step.point.phase is Phase.DECODE else step.reset()
            torch.cuda.synchronize()
        self._spent.part("traced")
        profiler.export_chrome_trace(str(path))
        (timeline,) = parse_kineto(path.read_bytes(), path.name, self.rank)
        return msgspec.structs.replace(timeline, steps=timeline.steps[:count])

    def _calls_alone(self, step: Step, count: int) -> tuple[float, ...]:
        """Seconds of a step's calls, launched as the step launches them; empty without any."""
        run = repeated(self._network.exchange, step.calls, step.launch)
        if run is None:
            return ()
        run()
        self._together()
        times = _times_on_device if self._on_device else _times
        return tuple(times(run, count))

    def _open_meter(self) -> "TrafficMeter | None":
        """Rank 0 reads the ports of all GPUs; its baseline is taken while every rank rests."""
        if not self._metered:
            return None
        meter = None
        self._together()
        if self.rank == 0:
            from linkbound.links.live.meter import open_meter

            meter = open_meter()
            meter.rest(REST_S)
        self._together()
        return meter

    def _traffic(self, step: Step, count: int) -> "Traffic | None":
        """What the ports count while every rank runs `count` steps."""
        step.reset()
        self._together()
        if self._meter is not None:
            self._meter.begin()
        self._together()
        for _ in range(count):
            step.run()
        self._together()
        return None if self._meter is None else self._meter.end()

    def _together(self) -> None:
        """All ranks arrive before any goes on."""
        if self._on_device:
            torch.cuda.synchronize()
        if dist.is_initialized():
            dist.barrier()
        if self._on_device:
            torch.cuda.synchronize()


def _times(run: Callable[[], None], count: int) -> list[float]:
    times_s = []
    for _ in range(count):
        start_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - start_s)
    return times_s


def _times_on_device(run: Callable[[], None], count: int) -> list[float]:
    """Event to event: all runs are enqueued before the first result is asked for."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in itertools.pairwise(events)]
