"""One point on one rank: plain steps, traced ones, counted ones, and the calls alone (P1, P3).

Each has a run of its own, so that no instrument slows the steps whose time is the answer. Ranks
begin each run together.
"""

import itertools
import time
from collections.abc import Callable, Sequence
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
PREFILLS_S = 1.0
"""Of all plain prefills of a point together: `LEAST_PREFILLS` of those that take longer."""
REST_S = 0.1
SETTLE_S = {Phase.PREFILL: 0.2, Phase.DECODE: 0.1}
"""Of steps before any that count, after `REST_S` without any. The power of large products is
controlled in a cycle that begins with the first of them: on an H200 a prefill of 24 ms takes 22.8
at first, 24.0 from 0.2 to 0.75 s, 26.4 until 1 s. Steps are compared only in the same part of it. A
decode step, which memory bounds, needs little of it."""
CALLS_REPEATS = 20
"""At most as many as plain steps."""
IDLE_S = 0.5
"""Of idle traffic, once a child."""


class Counts(NamedTuple):
    """How many steps of a point are run in each way."""

    plain: int
    """One half before the traced ones, one after; half as many are timed under the profiler."""
    traced: int
    counted: int


class Instrumented(NamedTuple):
    """Steps that ran under an instrument."""

    timeline: Timeline
    times_s: Sequence[float]
    """Of steps like those of the timeline and beside them; none where the instrument is ours."""


def counts_of(job: Job, point: Point, length_s: float) -> Counts:
    """By how long a step takes: a prefill of seconds is timed twice and traced once."""
    if point.phase is Phase.DECODE:
        return Counts(job.steps, job.traced_steps, job.steps)
    fit = int(PREFILLS_S / length_s)
    plain = max(LEAST_PREFILLS, min(job.steps, fit))
    traced = max(1, min(job.traced_steps, fit // 2)) if job.traced_steps else 0
    return Counts(plain, traced, 1)


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
        job, spent = self._job, self._spent
        step = Step(self._network, job, point, max(job.steps, job.traced_steps + 2))
        spent.part("warm-up")
        step.capture()
        spent.part("capture")
        length_s = self._length_s(step)
        counts = counts_of(job, point, length_s)
        settle = settling(point, length_s)
        # On both sides of the traced steps: clocks that fall under load fall for all alike.
        times_s = self._plain(step, counts.plain - counts.plain // 2, settle)
        spent.part("plain")
        traced = None
        if counts.traced:
            traced = self._instrumented(step, counts, trace, settle)
            spent.part("trace read")
        times_s += self._plain(step, counts.plain // 2, settle)
        spent.part("plain again")
        # Of several chunks they are the calls of one, several times.
        one_chunk = chunks_of(point, job.chunk_tokens) == 1
        calls = counts.traced and one_chunk and job.alone is None
        alone = min(CALLS_REPEATS, counts.plain) if calls else 0
        if step.launch is Launch.GRAPH and goes_through_host(job):
            alone = 0
        with_calls_s, products_s = self._calls_alone(step, alone) if alone else ((), ())
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
            with_calls_s=with_calls_s,
            products_s=products_s,
            timeline=None if traced is None else traced.timeline,
            under_profiler_s=() if traced is None else tuple(traced.times_s),
            traffic=traffic,
            traffic_steps=counts.counted,
            memory_bytes=torch.cuda.max_memory_allocated() if self._on_device else None,
        )

    def _length_s(self, step: Step) -> float:
        """How long one step takes, on the slowest rank: all ranks must count alike."""
        step.reset()
        self._together()
        start_s = time.perf_counter()
        step.run()
        if self._on_device:
            torch.cuda.synchronize()
        length = torch.tensor(time.perf_counter() - start_s, device=self._network.device)
        if dist.is_initialized():
            dist.all_reduce(length, dist.ReduceOp.MAX)
        return float(length.item())

    def _plain(self, step: Step, count: int, settle: int) -> list[float]:
        if not self._on_device:
            step.reset()
            self._together()
            return _times(step.run, count)
        self._rest(step)
        self._settle(step, settle)
        return times_on_device(step.run, count)

    def _rest(self, step: Step) -> None:
        """No GPU has anything to do for a moment; then all ranks begin together."""
        step.reset()
        self._together()
        time.sleep(REST_S)
        self._together()

    def _settle(self, step: Step, count: int) -> None:
        """Run `count` steps, all enqueued, and be back at the point's context."""
        for index in range(count):
            if index % self._job.steps == 0:
                step.reset()
            step.run()
        step.reset()

    def _instrumented(self, step: Step, counts: Counts, trace: Path, settle: int) -> Instrumented:
        if self._on_device:
            return self._traced(step, counts, trace, settle)
        step.reset()
        self._together()
        ledger = self._network.exchange.ledger
        with ledger.timing():
            for _ in range(counts.traced):
                with ledger.step():
                    step.run()
        return Instrumented(ledger.timeline(), ())

    def _traced(self, step: Step, counts: Counts, path: Path, settle: int) -> Instrumented:
        """Times of steps under the profiler that no trace has, and the kernels of others.

        Those come after some that are not kept; what follows the last one bounds it. A decode step
        settles before its trace: so many would be a large one.
        """
        count = counts.traced
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        profiler = torch.profiler._KinetoProfile(activities=activities)
        profiler.prepare_trace()
        self._spent.part("profiler's start")
        self._rest(step)
        self._settle(step, settle)
        times_s = times_on_device(step.run, counts.plain - counts.plain // 2)
        self._rest(step)
        decode = step.point.phase is Phase.DECODE
        self._settle(step, settle if decode else 0)
        torch.cuda.synchronize()
        profiler.start_trace()
        with torch.profiler.record_function("warm-up"):
            # The first one pays for the start of the trace.
            for _ in range(1 if decode else settle):
                step.run()
        for index in range(count):
            with torch.profiler.record_function(f"linkbound step {index}"):
                step.run()
        with torch.profiler.record_function(f"linkbound step {count}"):
            step.run() if decode else step.reset()
        torch.cuda.synchronize()
        profiler.stop_trace()
        self._spent.part("traced")
        profiler.export_chrome_trace(str(path))
        self._spent.part("trace written")
        (timeline,) = parse_kineto(path.read_bytes(), path.name, self.rank)
        path.unlink()
        return Instrumented(within(timeline, count), times_s)

    def _calls_alone(self, step: Step, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds of a step's calls, each behind a product, and of the products; empty without any.

        Both are launched as the step is.
        """
        tokens = step.point.batch * step.point.tokens
        found = repeated(self._network, step.calls, step.launch, tokens)
        if found is None:
            return (), ()
        with_calls_s, products_s = (self._repeats(run, count) for run in found)
        return with_calls_s, products_s

    def _repeats(self, run: Callable[[], None], count: int) -> tuple[float, ...]:
        run()
        self._together()
        times = times_on_device if self._on_device else _times
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
            meter.rest(IDLE_S)
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


def settling(point: Point, length_s: float) -> int:
    """How many steps of this length settle a GPU: one at least, which warms a trace up too."""
    return max(1, round(SETTLE_S[point.phase] / length_s))


def within(timeline: Timeline, count: int) -> Timeline:
    """The first `count` steps, and what ran in them."""
    steps = timeline.steps[:count]
    start_s, end_s = steps[0].start_s, steps[-1].end_s
    ran = tuple(one for one in timeline.intervals if start_s <= one.start_s < end_s)
    return msgspec.structs.replace(timeline, steps=steps, intervals=ran)


def times_on_device(run: Callable[[], None], count: int) -> list[float]:
    """Event to event: all runs are enqueued before the first result is asked for."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in itertools.pairwise(events)]


def _times(run: Callable[[], None], count: int) -> list[float]:
    times_s = []
    for _ in range(count):
        start_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - start_s)
    return times_s
