"""Which slice of every tensor a rank of a split holds, in heads, columns and experts (P1, S1).

Refuses what the reference runtime does not compute, naming it: a time of another model is none.
"""

from linkbound.errors import UsageError
from linkbound.model.types import (
    Attention,
    DenseFfn,
    LatentAttention,
    Layer,
    ModelShape,
    MoeFfn,
    Weights,
)
from linkbound.splits.possible import impossible
from linkbound.splits.ranks import Rank, experts_held, rank_of, stage_bounds
from linkbound.splits.types import Dispatch, Split
from linkbound.splits.weights import padded_vocabulary
from linkbound.values import Value

Range = tuple[int, int]


class Holding(Value, frozen=True, kw_only=True):
    """One rank's place and the layers that are its own."""

    shape: ModelShape
    split: Split
    rank: Rank
    first_layer: int
    last_layer: int
    """The one after its last."""

    @property
    def is_first(self) -> bool:
        return self.rank.stage == 0

    @property
    def is_last(self) -> bool:
        return self.rank.stage == self.split.pp - 1

    @property
    def vocabulary(self) -> Range:
        """Rows of embedding and head."""
        return even(padded_vocabulary(self.shape.vocabulary), self.split.tp, self.rank.tensor)

    @property
    def exchanges_experts(self) -> bool:
        """Whether tokens move to their experts, in place of the layer's own all-reduce."""
        return self.split.ep > 1 and self.split.dispatch is not Dispatch.ALL_REDUCE


def even(size: int, parts: int, index: int) -> Range:
    """The part `index` of `size` things in equal parts."""
    each = size // parts
    return index * each, (index + 1) * each


def hold(shape: ModelShape, split: Split, number: int) -> Holding:
    """What rank `number` holds. Raises UsageError for a split or layer that cannot be run."""
    problem = impossible(shape, split)
    if problem is not None:
        raise UsageError(
            f"{shape.name} cannot be split {split.name}: {problem.text}",
            why="There is nothing to time.",
            hint="Choose other degrees: linkbound splits lists them.",
        )
    for index, layer in enumerate(shape.layers):
        _require_known(shape, index, layer)
    if split.tensor_ratio is not None:
        raise UsageError(
            f"{split.name} states unequal tensor shares.",
            why="The reference runtime divides heads and columns evenly.",
            hint="Leave the shares out, or state unequal stages: pp2:20,12.",
        )
    rank = rank_of(split, number)
    first, last = stage_bounds(split, len(shape.layers))[rank.stage]
    return Holding(shape=shape, split=split, rank=rank, first_layer=first, last_layer=last)


def _require_known(shape: ModelShape, index: int, layer: Layer) -> None:
    unknown = None
    if not isinstance(layer.mixer, Attention | LatentAttention):
        unknown = "no softmax attention"
    elif isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer_dim:
        unknown = "sparse attention with an indexer"
    elif layer.ffn is None:
        unknown = "no feed-forward block"
    elif layer.reductions != 2:
        unknown = "attention and feed-forward side by side"
    elif isinstance(layer.ffn, MoeFfn) and parameters(layer, "gate up"):
        unknown = "a dense block beside the experts"
    if unknown:
        raise UsageError(
            f"Layer {index} of {shape.name} has {unknown}.",
            why="The reference runtime computes attention, then feed-forward: times of another "
            "model would be no evidence.",
            hint="Profile it in its engine and read the trace with --trace.",
        )


def parameters(layer: Layer, name: str) -> int:
    """Parameters of the layer's weights of this name; 0 where it has none."""
    return sum(one.parameters for one in layer.weights if one.name == name)


def weights_of(layer: Layer, *names: str) -> tuple[Weights, ...]:
    """The layer's weights of these names."""
    return tuple(one for one in layer.weights if one.name in names)


def query_heads(heads: int, split: Split, rank: Rank) -> Range:
    """Query heads on `rank`."""
    return even(heads, split.tp, rank.tensor)


def kv_heads(attention: Attention, split: Split, rank: Rank) -> Range:
    """Key/value heads on `rank`: with fewer heads than ranks, neighbours hold the same one."""
    if attention.kv_heads >= split.tp:
        return even(attention.kv_heads, split.tp, rank.tensor)
    head = rank.tensor * attention.kv_heads // split.tp
    return head, head + 1


def expert_index(split: Split, rank: Rank) -> int:
    """Place of `rank` in its group of experts."""
    return rank.tensor if split.ep == split.tp else rank.replica * split.tp + rank.tensor


def expert_bounds(experts: int, split: Split) -> tuple[Range, ...]:
    """Experts of every rank of the group, in order; all on each where experts are divided."""
    if split.ep == 1:
        return ((0, experts),)
    bounds: list[Range] = []
    start = 0
    for index in range(split.ep):
        rank = rank_of(split, index if split.ep == split.tp else _number(split, index))
        held = experts_held(experts, split, rank) or 0
        bounds.append((start, start + held))
        start += held
    return tuple(bounds)


def _number(split: Split, index: int) -> int:
    replica, tensor = divmod(index, split.tp)
    return replica * split.pp * split.tp + tensor


def expert_columns(ffn: MoeFfn, split: Split, rank: Rank) -> Range:
    """Columns of each routed expert on `rank`: all of them where whole experts are spread."""
    if split.ep > 1:
        return 0, ffn.intermediate
    return even(ffn.intermediate, split.tp, rank.tensor)


def shared_width(shape: ModelShape, layer: Layer, ffn: MoeFfn) -> int:
    """Width of all shared experts of a layer together."""
    return parameters(layer, "shared down") // shape.hidden if ffn.shared_experts else 0


def dense_columns(ffn: DenseFfn, split: Split, rank: Rank) -> Range:
    """Feed-forward columns on `rank`."""
    return even(ffn.intermediate, split.tp, rank.tensor)
