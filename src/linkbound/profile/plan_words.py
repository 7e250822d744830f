"""What a profile would run, before it runs: for --dry-run and for progress (P1)."""

from collections.abc import Iterator, Sequence
from typing import Any

from linkbound.profile.launch import arm_environment
from linkbound.profile.types import Job


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
    }


def plan_lines(plan: Sequence[tuple[int, Job]]) -> Iterator[str]:
    """The children in order: what, which points, with which variables."""
    yield f"{len(plan)} children, one after another; nothing was run."
    for repeat, job in plan:
        child = planned(repeat, job)
        yield f"{child['job']}, repeat {child['repeat']}, {child['processes']} processes"
        yield "  " + "; ".join(child["points"])
        yield "  " + " ".join(f"{name}={value}" for name, value in child["environment"].items())
