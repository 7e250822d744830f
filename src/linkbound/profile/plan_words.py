"""What a profile would run, before it runs: for --dry-run and for progress (P1)."""

from collections.abc import Iterator, Sequence
from typing import Any

from linkbound.profile.launch import arm_environment
from linkbound.profile.types import Job
from linkbound.units import format_time


def job_words(job: Job) -> str:
    """`tp2 staged`, `tp4 shard of rank 0 alone`."""
    arm = "" if job.arm is None else f" {job.arm.value}"
    alone = "" if job.alone is None else f" shard of rank {job.alone} alone"
    return f"{job.split.name}{arm}{alone}"


def planned(repeat: int, job: Job) -> dict[str, Any]:
    """One child as JSON; `environment` is what its arm sets."""
    return {
        "repeat": repeat + 1,
        "job": job_words(job),
        "processes": 1 if job.alone is not None else job.split.gpus,
        "points": [point.name for point in job.points],
        "environment": arm_environment(job),
        "slow": _slowed(job),
    }


def _slowed(job: Job) -> dict[str, Any] | None:
    """The rank that waits before each collective, and for how long in seconds."""
    if job.delay is None or job.arm is None:
        return None
    return {"rank": job.delay.rank, "delay_s": job.delay.seconds}


def plan_lines(plan: Sequence[tuple[int, Job]]) -> Iterator[str]:
    """The children in order: what, which points, with which variables."""
    yield f"{len(plan)} children, one after another; nothing was run."
    for repeat, job in plan:
        child = planned(repeat, job)
        slow = child["slow"]
        slowed = (
            f", rank {slow['rank']} waits {format_time(slow['delay_s'])} before each collective"
            if slow
            else ""
        )
        yield f"{child['job']}, repeat {child['repeat']}, {child['processes']} processes{slowed}"
        yield "  " + "; ".join(child["points"])
        yield "  " + " ".join(f"{name}={value}" for name, value in child["environment"].items())
