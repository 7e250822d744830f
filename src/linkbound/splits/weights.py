"""Bytes of weights that one rank of a split holds (S1, S3).

A stage owns its layers, the first one the embedding, the last one the head: never weights / p.
"""

from collections import Counter
from collections.abc import Iterable

from linkbound.model.types import Attention, Layer, ModelShape, MoeFfn, Role, Shard, Weights
from linkbound.splits.ranks import Rank, experts_held, stage_layers, tensor_share
from linkbound.splits.types import Split

VOCABULARY_PADDING = 64
"""vLLM pads the rows of embedding and head to a multiple of this before it divides them."""


def rank_weight_bytes(shape: ModelShape, split: Split, rank: Rank) -> float:
    """Bytes of weights on `rank`, in the types in which the model's files store them."""
    first, last = rank.stage == 0, rank.stage == split.pp - 1
    share = tensor_share(split, rank.tensor)
    layers = Counter(stage_layers(shape, split, rank.stage))
    total = sum(count * layer_weight_bytes(layer, split, rank) for layer, count in layers.items())
    total += sum(_outside_bytes(weights, shape, share) for weights in _outside(shape, first, last))
    return total


def layer_weight_bytes(layer: Layer, split: Split, rank: Rank) -> float:
    """Bytes of one layer's weights on `rank`."""
    shares = layer_shares(layer, split, rank)
    return sum(weights.size_bytes * shares[weights.shard] for weights in layer.weights)


def layer_shares(layer: Layer, split: Split, rank: Rank) -> dict[Shard, float]:
    """Share of a weight of this layer that `rank` holds, by the way in which it divides."""
    share = tensor_share(split, rank.tensor)
    kv_share, expert_share = share, share
    if isinstance(layer.mixer, Attention):
        kv_share = max(share, 1 / layer.mixer.kv_heads)
    if isinstance(layer.ffn, MoeFfn):
        held = experts_held(layer.ffn.experts, split, rank)
        expert_share = share if held is None else held / layer.ffn.experts
    return {
        Shard.SPLIT: share,
        Shard.VOCABULARY: share,
        Shard.KV_HEADS: kv_share,
        Shard.EXPERTS: expert_share,
        Shard.REPLICATED: 1.0,
    }


def padded_vocabulary(vocabulary: int) -> int:
    """Rows of embedding and head after padding."""
    return -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING


def _outside(shape: ModelShape, first: bool, last: bool) -> Iterable[Weights]:
    """Weights outside the layers that a stage owns; a tied embedding serves both ends."""
    if first or (last and shape.tied):
        yield shape.embedding
    if last and shape.head is not None:
        yield shape.head
    for weights in shape.extra:
        # A vision tower feeds the first stage; norms before the head belong to the last.
        if first if weights.role is Role.OTHER else last:
            yield weights


def _outside_bytes(weights: Weights, shape: ModelShape, share: float) -> float:
    match weights.shard:
        case Shard.REPLICATED:
            return weights.size_bytes
        case Shard.VOCABULARY:
            padding = padded_vocabulary(shape.vocabulary) / shape.vocabulary
            return weights.size_bytes * padding * share
        case _:
            return weights.size_bytes * share
