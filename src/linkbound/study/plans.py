"""Which plans a study prices: one GPU, replicas, and every split of the usable GPUs in each arm."""

from collections.abc import Collection

from linkbound.links import Arm
from linkbound.model.types import ModelShape
from linkbound.predict.types import Plan
from linkbound.splits.place import place
from linkbound.splits.plans import enumerate_splits
from linkbound.splits.types import Split
from linkbound.topology.types import Machine

TENSOR_ARMS = (Arm.P2P, Arm.NCCL, Arm.STAGED)
# A pipeline sends through NCCL in both direct arms: `p2p` and `nccl` are one.
PIPELINE_ARMS = (Arm.P2P, Arm.STAGED)


def candidate_splits(
    machine: Machine, shape: ModelShape, excluded: Collection[str]
) -> tuple[Split, ...]:
    """Every possible split of the GPUs that are not excluded."""
    usable = [gpu for gpu in machine.gpus if gpu.label not in excluded]
    return enumerate_splits(len(usable), shape)


def plans_of(split: Split, machine: Machine, excluded: Collection[str]) -> tuple[Plan, ...]:
    """The split placed, once for each arm that makes a difference to it."""
    placement = place(split, machine, excluded)
    return tuple(Plan(split=split, placement=placement, arm=arm) for arm in arms_of(split))


def arms_of(split: Split) -> tuple[Arm | None, ...]:
    """Arms in which the split's GPUs may talk; (None,) where nothing crosses."""
    if split.tp > 1 or split.ep > 1:
        return TENSOR_ARMS
    return PIPELINE_ARMS if split.pp > 1 else (None,)
