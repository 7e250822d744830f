"""Public names of this layer."""

from linkbound.splits.crossings import crossings
from linkbound.splits.engine import VLLM, EngineAssumptions
from linkbound.splits.experts import expected_ranks
from linkbound.splits.fit import fit, fit_machine
from linkbound.splits.kv_transfer import kv_transfer
from linkbound.splits.parse_gpus import parse_gpus
from linkbound.splits.parse_split import parse_split
from linkbound.splits.place import place
from linkbound.splits.plans import enumerate_splits
from linkbound.splits.possible import impossible
from linkbound.splits.ranks import rank_of, stage_bounds, stage_sizes
from linkbound.splits.types import (
    Crossing,
    CrossingKind,
    Dispatch,
    Fit,
    MemoryPart,
    Phase,
    Placement,
    RankMemory,
    Split,
)
from linkbound.splits.weights import rank_weight_bytes

__all__ = [
    "VLLM",
    "Crossing",
    "CrossingKind",
    "Dispatch",
    "EngineAssumptions",
    "Fit",
    "MemoryPart",
    "Phase",
    "Placement",
    "RankMemory",
    "Split",
    "crossings",
    "enumerate_splits",
    "expected_ranks",
    "fit",
    "fit_machine",
    "impossible",
    "kv_transfer",
    "parse_gpus",
    "parse_split",
    "place",
    "rank_of",
    "rank_weight_bytes",
    "stage_bounds",
    "stage_sizes",
]
