"""Public names of this layer: plans, children, traces, parts of a step. None imports torch."""

from linkbound.profile.decompose import (
    ClockOffset,
    Parts,
    RankStep,
    Wire,
    align,
    decompose,
    mean_parts,
    wire_times,
)
from linkbound.profile.effects import Answer, Effect, Pair, effects
from linkbound.profile.kineto import classify, parse_kineto
from linkbound.profile.launch import JobResult, require_torch, run_job
from linkbound.profile.plan import interleave, plan_jobs, plan_shards, points, shard_points
from linkbound.profile.records import append_result, append_rows
from linkbound.profile.shards import ShardCheck, shard_checks
from linkbound.profile.summary import Row, rows
from linkbound.profile.types import (
    Call,
    Delay,
    Device,
    Interval,
    Job,
    KernelClass,
    Point,
    RankPoint,
    StepSpan,
    Timeline,
)

__all__ = [
    "Answer",
    "Call",
    "ClockOffset",
    "Delay",
    "Device",
    "Effect",
    "Interval",
    "Job",
    "JobResult",
    "KernelClass",
    "Pair",
    "Parts",
    "Point",
    "RankPoint",
    "RankStep",
    "Row",
    "ShardCheck",
    "StepSpan",
    "Timeline",
    "Wire",
    "align",
    "append_result",
    "append_rows",
    "classify",
    "decompose",
    "effects",
    "interleave",
    "mean_parts",
    "parse_kineto",
    "plan_jobs",
    "plan_shards",
    "points",
    "require_torch",
    "rows",
    "run_job",
    "shard_checks",
    "shard_points",
    "wire_times",
]
