"""What crosses when prefill and decode run on different GPUs: the cache of a prompt (S1).

Each decode rank takes the heads and layers that it will hold from the prefill ranks that have them.
"""

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from linkbound.links.types import Operation
from linkbound.model.types import Attention, LatentAttention, Layer, ModelShape
from linkbound.splits.cache import rank_cache
from linkbound.splits.ranks import stage_bounds, tensor_bounds, tensor_group
from linkbound.splits.types import Crossing, CrossingKind, Phase, Split

Piece = tuple[Fraction, Fraction]
_ONE = Split()


def kv_transfer(
    shape: ModelShape, split_from: Split, split_to: Split, prompt_tokens: int
) -> tuple[Crossing, ...]:
    """Sends for one request of `prompt_tokens`, from one replica to one replica.

    Decode ranks are numbered after all ranks of `split_from`. Every pair sends once a request,
    and different pairs at the same time.
    """
    sent: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    count = len(shape.layers)
    stage_from = {
        index: stage
        for stage, bounds in enumerate(stage_bounds(split_from, count))
        for index in range(*bounds)
    }
    for stage, (start, end) in enumerate(stage_bounds(split_to, count)):
        for index in range(start, end):
            layer = shape.layers[index]
            size = Fraction(rank_cache((layer,), _ONE, 0).sequence_bytes(prompt_tokens, 1))
            for src, dst, part in _parts(layer, split_from, split_to):
                pair = (
                    tensor_group(split_from, stage_from[index])[src],
                    split_from.gpus + tensor_group(split_to, stage)[dst],
                )
                sent[pair] += part * size
    return tuple(
        Crossing(
            kind=CrossingKind.KV_TRANSFER,
            operation=Operation.SEND_RECV,
            ranks=pair,
            size_bytes=round(size),
            count=1,
            phase=Phase.PREFILL,
        )
        for pair, size in sorted(sent.items())
        if size
    )


def _parts(layer: Layer, split_from: Split, split_to: Split) -> Iterator[tuple[int, int, Fraction]]:
    """(prefill tensor rank, decode tensor rank, share of the layer's cache) of every send."""
    holders: dict[Piece, list[int]] = defaultdict(list)
    for src, piece in enumerate(_held(layer, split_from)):
        holders[piece].append(src)
    for dst, wanted in enumerate(_held(layer, split_to)):
        for piece, ranks in holders.items():
            part = min(piece[1], wanted[1]) - max(piece[0], wanted[0])
            if part > 0:
                # Where several ranks hold the same piece, the receivers are spread over them.
                yield ranks[dst % len(ranks)], dst, part


def _held(layer: Layer, split: Split) -> tuple[Piece, ...]:
    """The piece of the layer's cache that each tensor rank of `split` holds."""
    match layer.mixer:
        case LatentAttention():
            return ((Fraction(0), Fraction(1)),) * split.tp
        case Attention(kv_heads=heads) if split.tp > heads:
            owners = [rank * heads // split.tp for rank in range(split.tp)]
            return tuple((Fraction(head, heads), Fraction(head + 1, heads)) for head in owners)
        case _:
            return tensor_bounds(split)
