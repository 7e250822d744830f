"""Results of children as they would come back, with every number chosen."""

from collections.abc import Sequence

from profile_models import MODELS

from linkbound.evidence import Finding
from linkbound.links.types import Arm, Launch, Operation
from linkbound.profile.launch import JobResult
from linkbound.profile.types import (
    Call,
    Device,
    Interval,
    Job,
    KernelClass,
    Point,
    RankPoint,
    StepSpan,
    Timeline,
)
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Phase

DECODE = Point(phase=Phase.DECODE, batch=4, tokens=1, context=16)
SIZE = 4 * 64 * 2


def job(split: str, arm: Arm | None = None, points: tuple[Point, ...] = (DECODE,)) -> Job:
    return Job(
        shape=MODELS["dense"],
        split=parse_split(split),
        arm=arm,
        device=Device.CUDA,
        points=points,
    )


def calls(group: tuple[int, ...]) -> tuple[Call, ...]:
    """What tp2 of the dense model sends in a decode step of four sequences."""
    return (
        Call(
            kind="tensor",
            operation=Operation.ALL_REDUCE,
            implementation="nccl",
            ranks=group,
            size_bytes=SIZE,
            count=6,
        ),
        Call(
            kind="embedding",
            operation=Operation.ALL_REDUCE,
            implementation="nccl",
            ranks=group,
            size_bytes=SIZE,
            count=1,
        ),
        Call(
            kind="logits",
            operation=Operation.ALL_GATHER,
            implementation="nccl",
            ranks=group,
            size_bytes=4 * 256 * 2,
            count=1,
        ),
    )


def timeline(rank: int, compute_s: float) -> Timeline:
    """A step of 10 ms: compute, an all-reduce until 9 ms, nothing."""
    return Timeline(
        rank=rank,
        steps=(StepSpan(index=0, name="step", start_s=0.0, end_s=0.010),),
        intervals=(
            Interval(kernel=KernelClass.COMPUTE, start_s=0.0, end_s=compute_s),
            Interval(
                kernel=KernelClass.NCCL,
                start_s=compute_s,
                end_s=0.009,
                operation="all_reduce",
                size_bytes=SIZE,
            ),
        ),
    )


def result(
    of: Job, times_s: Sequence[Sequence[float]], findings: tuple[Finding, ...] = ()
) -> JobResult:
    """Ranks with these step times; two of them with a timeline each."""
    group = tuple(range(len(times_s)))
    several = len(group) > 1
    return JobResult(
        job=of,
        ranks=tuple(
            RankPoint(
                rank=rank,
                point=DECODE,
                launch=Launch.GRAPH,
                times_s=tuple(times),
                calls=calls(group) if several else (),
                with_calls_s=(0.004, 0.005, 0.0045) if several else (),
                products_s=(0.003 - 0.0005 * rank,) * 3 if several else (),
                timeline=timeline(rank, 0.004 + 0.002 * rank) if several else None,
                parameters=1000,
            )
            for rank, times in enumerate(times_s)
        ),
        findings=findings,
        environment={"NCCL_NVLS_ENABLE": "0"},
        command=("python",),
        duration_s=1.5,
        path="direct",
        log="a line",
        spent="1.0 s start, imports",
    )
