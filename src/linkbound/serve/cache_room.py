"""The cache that each of several engines needs that share their GPUs (P2, S3)."""

from collections.abc import Iterable, Sequence

from linkbound.model.types import ModelShape
from linkbound.serve.contenders import Contender
from linkbound.splits.cache import RankCache, rank_cache
from linkbound.splits.ranks import stage_layers
from linkbound.splits.types import Split

BLOCK_TOKENS = 16
"""Of the engines that can be told the size of their cache; the kind of a cache may round up."""
MORE = 1.1


def room_bytes(
    shape: ModelShape, contenders: Iterable[Contender], demands: Sequence[tuple[int, int]]
) -> int:
    """Bytes on each GPU that hold any one of `demands`, (sequences, tokens), for every contender.

    A tenth more than the largest, and two of the longest sequences.
    """
    caches = [cache for one in contenders for cache in _rank_caches(shape, one.split)]
    return max(_demanded(cache, demands) for cache in caches)


def _demanded(cache: RankCache, demands: Sequence[tuple[int, int]]) -> int:
    sizes = [cache.sequence_bytes(tokens, BLOCK_TOKENS) for _, tokens in demands]
    whole = max(count * size for (count, _), size in zip(demands, sizes, strict=True))
    return int(MORE * whole + 2 * max(sizes))


def _rank_caches(shape: ModelShape, split: Split) -> list[RankCache]:
    return [
        rank_cache(stage_layers(shape, split, stage), split, tensor)
        for stage in range(split.pp)
        for tensor in range(split.tp)
    ]
