"""Public names of this layer: engine runs, scheduler rules, load and its figures, proof of path."""

from linkbound.serve.latency import LoadSummary, summarise
from linkbound.serve.load_types import Cell, Request, Slo
from linkbound.serve.parse_engine_log import parse_engine_log
from linkbound.serve.path_types import EngineLog, OwnReduce, PathAnswer, PathVerdict, Witness
from linkbound.serve.rules import VLLM
from linkbound.serve.runs import merged, parse_runs, parse_specs
from linkbound.serve.types import EngineRun, RunSpec, RunTimes, SchedulerRules
from linkbound.serve.witnesses import judge

__all__ = [
    "VLLM",
    "Cell",
    "EngineLog",
    "EngineRun",
    "LoadSummary",
    "OwnReduce",
    "PathAnswer",
    "PathVerdict",
    "Request",
    "RunSpec",
    "RunTimes",
    "SchedulerRules",
    "Slo",
    "Witness",
    "judge",
    "merged",
    "parse_engine_log",
    "parse_runs",
    "parse_specs",
    "summarise",
]
