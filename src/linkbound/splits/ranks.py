"""Where a rank stands in a split, and which share of the model is its own (S1).

Ranks count as vLLM counts them: (replica x stages + stage) x tp + tensor rank.
"""

import itertools
from fractions import Fraction
from functools import lru_cache

from linkbound.model.types import Layer, ModelShape
from linkbound.splits.types import Split
from linkbound.values import Value


class Rank(Value, frozen=True, kw_only=True):
    """One rank's place: its number, and its index in each direction of the split."""

    number: int
    tensor: int
    stage: int
    replica: int


def rank_of(split: Split, number: int) -> Rank:
    """The place of rank `number` (0 ... split.gpus - 1)."""
    group, tensor = divmod(number, split.tp)
    replica, stage = divmod(group, split.pp)
    return Rank(number=number, tensor=tensor, stage=stage, replica=replica)


def tensor_group(split: Split, stage: int, replica: int = 0) -> tuple[int, ...]:
    """Ranks that hold the same layers of the same replica, in tensor order."""
    first = (replica * split.pp + stage) * split.tp
    return tuple(range(first, first + split.tp))


def expert_group(split: Split, stage: int, replica: int = 0) -> tuple[int, ...]:
    """Ranks over which the experts of a stage are spread."""
    if split.ep <= split.tp:
        return tensor_group(split, stage, replica)
    groups = (tensor_group(split, stage, index) for index in range(split.replicas))
    return tuple(itertools.chain.from_iterable(groups))


def stage_ranks(split: Split, stage: int) -> tuple[int, ...]:
    """All ranks that hold a stage's layers, of every replica."""
    groups = (tensor_group(split, stage, replica) for replica in range(split.replicas))
    return tuple(itertools.chain.from_iterable(groups))


@lru_cache(maxsize=65536)
def same_time(split: Split, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The ranks of a listed crossing and of all that happen at the same time elsewhere.

    A send between two stages is made by every tensor rank, and anything inside one replica by all.
    """
    size = split.tp * split.pp
    replicas = range(split.replicas) if max(ranks) < size else range(1)
    stages = {rank // split.tp for rank in ranks}
    is_send = len(ranks) == 2 and len(stages) == 2 and max(ranks) < size
    tensors = range(split.tp) if is_send else range(1)
    return tuple(
        tuple(rank + replica * size + tensor for rank in ranks)
        for replica in replicas
        for tensor in tensors
    )


def stage_sizes(split: Split, layers: int) -> tuple[int, ...]:
    """Layers of each stage: as stated, else vLLM's rule.

    Layers that do not divide go one each to the stages before the last, counted from its end:
    the last stage has the head to compute as well.
    """
    if split.stage_layers is not None:
        return split.stage_layers
    each, rest = divmod(layers, split.pp)
    return tuple(each + (split.pp - 1 - rest <= stage < split.pp - 1) for stage in range(split.pp))


def stage_bounds(split: Split, layers: int) -> tuple[tuple[int, int], ...]:
    """First layer and the one after the last, for each stage."""
    ends = tuple(itertools.accumulate(stage_sizes(split, layers)))
    return tuple(zip((0, *ends[:-1]), ends, strict=True))


def stage_layers(shape: ModelShape, split: Split, stage: int) -> tuple[Layer, ...]:
    """The layers that pipeline stage `stage` owns."""
    start, end = stage_bounds(split, len(shape.layers))[stage]
    return shape.layers[start:end]


def tensor_bounds(split: Split) -> tuple[tuple[Fraction, Fraction], ...]:
    """The piece of a divided tensor that each tensor rank holds, as fractions from 0 to 1."""
    ratio = [Fraction(part) for part in split.tensor_ratio or (1,) * split.tp]
    ends = [end / sum(ratio) for end in itertools.accumulate(ratio)]
    return tuple(zip((Fraction(0), *ends[:-1]), ends, strict=True))


def tensor_share(split: Split, tensor: int) -> float:
    """Share of a divided tensor on tensor rank `tensor`."""
    if split.tensor_ratio is None:
        return 1 / split.tp
    return split.tensor_ratio[tensor] / sum(split.tensor_ratio)


def experts_held(experts: int, split: Split, rank: Rank) -> int | None:
    """Whole experts of a layer on this rank; None where every expert is divided instead.

    Experts that do not divide go one each to the first ranks of the group.
    """
    if split.ep == 1:
        return None
    index = rank.tensor if split.ep == split.tp else rank.replica * split.tp + rank.tensor
    each, rest = divmod(experts, split.ep)
    return each + (index < rest)
