"""Which plans a study prices: one GPU, replicas, and every split of the usable GPUs in each arm."""

from collections.abc import Collection

import msgspec

from linkbound.links import Arm
from linkbound.model.types import ModelShape
from linkbound.predict.types import Plan
from linkbound.predict.work import rank_work
from linkbound.splits.place import place
from linkbound.splits.plans import enumerate_splits
from linkbound.splits.ranks import rank_of
from linkbound.splits.types import Dispatch, Split
from linkbound.splits.weights import rank_weight_bytes
from linkbound.topology.types import Machine

TENSOR_ARMS = (Arm.P2P, Arm.NCCL, Arm.STAGED)
# Stages and experts send through NCCL in both direct arms: `p2p` and `nccl` are one where no tensor
# is divided.
PIPELINE_ARMS = (Arm.P2P, Arm.STAGED)


def candidate_splits(
    machine: Machine, shape: ModelShape, excluded: Collection[str]
) -> tuple[Split, ...]:
    """Every possible split of the GPUs that are not excluded.

    Experts inside a tensor group, exchanged by its all-reduce, are listed only where they change
    what a GPU holds, does or moves: else every arm would have the same plan under two names.
    """
    usable = [gpu for gpu in machine.gpus if gpu.label not in excluded]
    return tuple(
        split
        for split in enumerate_splits(len(usable), shape)
        if spreads_experts(shape, split) or split.ep == 1
    )


def spreads_experts(shape: ModelShape, split: Split) -> bool:
    """Whether a rank holds, does or sends other than with every expert divided over the group."""
    if split.dispatch is not Dispatch.ALL_REDUCE:
        return True
    other = msgspec.structs.replace(split, ep=1)
    ranks = range(split.tp * split.pp)
    return any(
        rank_weight_bytes(shape, split, rank_of(split, rank))
        != rank_weight_bytes(shape, other, rank_of(other, rank))
        for rank in ranks
    ) or any(
        rank_work(shape, split, stage) != rank_work(shape, other, stage)
        for stage in range(split.pp)
    )


def plans_of(split: Split, machine: Machine, excluded: Collection[str]) -> tuple[Plan, ...]:
    """The split placed, once for each arm that makes a difference to it."""
    placement = place(split, machine, excluded)
    return tuple(Plan(split=split, placement=placement, arm=arm) for arm in arms_of(split))


def arms_of(split: Split) -> tuple[Arm | None, ...]:
    """Arms in which the split's GPUs may talk; (None,) where nothing crosses."""
    if split.tp > 1:
        return TENSOR_ARMS
    return PIPELINE_ARMS if split.pp > 1 or split.ep > 1 else (None,)
