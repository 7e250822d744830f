"""Repeats of a point to one row: step time, parts, bandwidth, what stays unexplained (P1, D2).

A step takes as long as its slowest rank. Parts come from an instrumented run: what they lack to
the step time of the plain run is a row of its own, of either sign.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from linkbound.evidence.stats import median
from linkbound.links.types import Arm, Operation
from linkbound.profile.control import Control, control_of, middle
from linkbound.profile.decompose import Parts, align, decompose, mean_parts, wire_times
from linkbound.profile.launch import JobResult
from linkbound.profile.moved import Moved, call_factor, moved
from linkbound.profile.shards import calls_alone_s
from linkbound.profile.types import Call, Delay, Device, Job, Point, RankPoint, Timeline
from linkbound.splits.crossings import crossings
from linkbound.splits.types import Split
from linkbound.values import Value

UNLISTED = frozenset({"sampled", "routing"})
"""Kinds of calls that crossings leave out: token ids, and what goes with an all-to-all."""
ELEMENT_BITS = {Device.CUDA: 16, Device.CPU: 32}


class Row(Value, frozen=True, kw_only=True):
    """One split, arm and point. Times are seconds."""

    split: Split
    arm: Arm | None
    alone: int | None = None
    """The rank whose shard ran without its peers."""
    delay: Delay | None = None
    """Of a control: one rank was slowed."""
    point: Point
    device: Device
    launch: str
    eager_because: str | None
    """Why the host launched it call by call, in any repeat; None of a graph, and on a CPU."""
    float8_share: float
    """Of the ranks' parameters, those that are multiplied as 8-bit floats."""
    bf16_because: tuple[str, ...]
    """What any rank has in bf16 though the file stores it in fewer bits, with the reasons."""
    repeats: int
    """Children."""
    step_s: float
    """Median over steps and repeats, of the slowest rank."""
    low_s: float
    high_s: float
    """Least and greatest of the repeats' medians."""
    steps: int
    drift: float | None
    """(last repeat - first) / first; None of one repeat."""
    parts: Parts | None
    """Mean over ranks, steps and repeats; None where nothing was traced."""
    instrument_s: float | None
    """How much longer a step takes while the profiler runs, timed without its trace; None where
    nothing was timed so."""
    unexplained_s: float | None
    """`step_s` less the parts without the instrument's: what else the tracing changed."""
    clock_error_s: float | None
    """Greatest bound on the ranks' clock offsets; None of one rank, or where they contradict."""
    bus_bytes_per_s: float | None
    """Bus bandwidth over all collectives of a step, on the wire."""
    tokens_per_s: float
    issued_bytes: int
    """Payload of one step's calls over the stages of one replica, as the runtime issued them."""
    crossing_bytes: int
    """The same as splits.crossings lists it; an all-to-all is listed for uniform routing."""
    moved: Moved | None
    """What the calls send and what the ports counted; None where nothing is sent."""
    calls_s: float | None
    """What the calls of a step add to products of its layers, each behind one; None where not
    run."""
    control: Control | None
    """What was found of a delay that was given on purpose; None without one."""
    layers: int

    @property
    def compute_per_layer_s(self) -> float | None:
        """Compute of one layer, head and embedding spread over them."""
        return None if self.parts is None else self.parts.compute_s / self.layers

    @property
    def communication_per_layer_s(self) -> float | None:
        """Time on the wire of one layer."""
        return None if self.parts is None else self.parts.communication_s / self.layers


class Repeat(Value, frozen=True, kw_only=True):
    """One point of one child."""

    step_s: float
    steps: int
    parts: Parts | None
    instrument_s: float | None
    control: Control | None
    calls_s: float | None
    clock_error_s: float | None
    bus_bytes_per_s: float | None


_Key = tuple[Split, Arm | None, int | None, Point]
_Members = list[tuple[JobResult, list[RankPoint]]]


def rows(results: Sequence[JobResult]) -> tuple[Row, ...]:
    """A row for each split, arm and point that at least one child finished, in run order."""
    found: dict[_Key, _Members] = {}
    for result in results:
        for point in result.job.points:
            ranks = ranks_of(result, point)
            if ranks:
                key = (result.job.split, result.job.arm, result.job.alone, point)
                found.setdefault(key, []).append((result, ranks))
    return tuple(_row(*key, members) for key, members in found.items())


def bf16_because(ranks: Sequence[RankPoint]) -> tuple[str, ...]:
    """The reasons of all ranks, each once: stages hold different layers."""
    return tuple(dict.fromkeys(text for one in ranks for text in one.bf16_because))


def ranks_of(result: JobResult, point: Point) -> list[RankPoint]:
    """What every rank says of the point; nothing where one of them is missing."""
    ranks = [one for one in result.ranks if one.point == point]
    wanted = 1 if result.job.alone is not None else result.job.split.gpus
    return ranks if len(ranks) == wanted else []


def _row(split: Split, arm: Arm | None, alone: int | None, point: Point, members: _Members) -> Row:
    job, ranks = members[0][0].job, members[0][1]
    repeats = [repeat_of(some, result.job) for result, some in members]
    medians = [one.step_s for one in repeats]
    slowest = [time_s for _, some in members for time_s in slowest_s(some)]
    step_s = _middle(slowest)
    parts = _mean([one.parts for one in repeats if one.parts is not None])
    instrument_s = median(_known(one.instrument_s for one in repeats))
    return Row(
        split=split,
        arm=arm,
        alone=alone,
        delay=job.delay,
        point=point,
        device=job.device,
        launch=ranks[0].launch.value,
        eager_because=next(
            (one.eager_because for _, some in members for one in some if one.eager_because), None
        ),
        float8_share=sum(one.float8_parameters for one in ranks)
        / max(1, sum(one.parameters for one in ranks)),
        bf16_because=bf16_because(ranks),
        repeats=len(repeats),
        step_s=step_s,
        low_s=min(medians),
        high_s=max(medians),
        steps=len(slowest),
        drift=medians[-1] / medians[0] - 1 if len(medians) > 1 else None,
        parts=parts,
        instrument_s=instrument_s,
        unexplained_s=None if parts is None else step_s - (parts.step_s - (instrument_s or 0.0)),
        clock_error_s=max(_known(one.clock_error_s for one in repeats), default=None),
        bus_bytes_per_s=median(_known(one.bus_bytes_per_s for one in repeats)),
        tokens_per_s=point.batch * point.tokens * split.replicas / step_s,
        issued_bytes=issued_bytes(ranks, split),
        crossing_bytes=crossing_bytes(job, point),
        moved=moved(ranks) if alone is None else None,
        calls_s=median(_known(one.calls_s for one in repeats)),
        control=middle([one.control for one in repeats if one.control is not None]),
        layers=max(1, len(job.shape.layers) // split.pp),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [one for one in values if one is not None]


def repeat_of(ranks: Sequence[RankPoint], job: Job) -> Repeat:
    """One point of one child, over its ranks."""
    times_s = slowest_s(ranks)
    timelines = [one.timeline for one in ranks if one.timeline is not None]
    offsets = align(timelines) if len(timelines) > 1 else None
    steps = decompose(timelines)
    return Repeat(
        step_s=_middle(times_s),
        steps=len(times_s),
        parts=mean_parts(steps),
        instrument_s=_instrument_s(ranks, times_s),
        control=control_of(ranks, steps, timelines, job),
        calls_s=calls_alone_s(
            [one.with_calls_s for one in ranks], [one.products_s for one in ranks]
        ),
        clock_error_s=None if offsets is None else max(one.error_s for one in offsets),
        bus_bytes_per_s=_bus_rate(ranks[0].calls, timelines),
    )


def _instrument_s(ranks: Sequence[RankPoint], plain_s: Sequence[float]) -> float | None:
    """Median step under the profiler less the median plain one, each of its slowest rank."""
    under_s = median(
        [max(times) for times in zip(*(one.under_profiler_s for one in ranks), strict=True)]
    )
    return None if under_s is None else under_s - _middle(plain_s)


def issued_bytes(ranks: Sequence[RankPoint], split: Split) -> int:
    """Payload of a step's calls, each once: by the first tensor rank of every stage."""
    return sum(
        call.size_bytes * call.count
        for one in ranks
        if one.rank % split.tp == 0 and one.rank < split.tp * split.pp
        for call in one.calls
        if call.kind not in UNLISTED
        and (call.operation is not Operation.SEND_RECV or call.ranks[0] == one.rank)
    )


def crossing_bytes(job: Job, point: Point) -> int:
    """Payload of the crossings of a step with all tokens of the point."""
    bits = ELEMENT_BITS[job.device]
    shape = msgspec.structs.replace(job.shape, activation_bits=bits)
    tokens = point.batch * point.tokens
    listed = crossings(shape, job.split, point.phase, tokens, point.batch, logits=True)
    return sum(one.size_bytes * one.count for one in listed)


def slowest_s(ranks: Sequence[RankPoint]) -> list[float]:
    """Each step's time on the rank that took longest."""
    return [max(times) for times in zip(*(one.times_s for one in ranks), strict=True)]


def _bus_rate(calls: Sequence[Call], timelines: Sequence[Timeline]) -> float | None:
    """Bus bytes that the first rank's calls of a step carry, over their time on the wire."""
    steps = min((len(one.steps) for one in timelines), default=0)
    wire_s = math.fsum(one.wire_s for one in wire_times(timelines, of=0))
    sent = math.fsum(one.size_bytes * one.count * call_factor(one) for one in calls)
    return sent * steps / wire_s if wire_s and sent else None


def _mean(parts: Sequence[Parts]) -> Parts | None:
    if not parts:
        return None
    names = Parts.__struct_fields__
    return Parts(
        **{name: math.fsum(getattr(one, name) for one in parts) / len(parts) for name in names}
    )


def _middle(times_s: Sequence[float]) -> float:
    found = median(times_s)
    assert found is not None
    return found
