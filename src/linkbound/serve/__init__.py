"""Engine runs and scheduler rules."""

from linkbound.serve.rules import VLLM
from linkbound.serve.runs import parse_runs, parse_specs
from linkbound.serve.types import EngineRun, RunSpec, RunTimes, SchedulerRules

__all__ = [
    "VLLM",
    "EngineRun",
    "RunSpec",
    "RunTimes",
    "SchedulerRules",
    "parse_runs",
    "parse_specs",
]
