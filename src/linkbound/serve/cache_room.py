"""The cache that an engine needs which shares its GPUs with others (P2, S3)."""

from collections.abc import Iterable

from linkbound.model.derive import BLOCK_TOKENS
from linkbound.model.types import ModelShape
from linkbound.splits.cache import RankCache, rank_cache
from linkbound.splits.ranks import stage_layers
from linkbound.splits.types import Split

MORE = 1.1
"""Times what a load needs: a cache that is just full makes an engine put sequences back."""
_SPARE_SEQUENCES = 2
"""Of the whole context: an engine ends at its start where not one has room."""


def room_bytes(
    shape: ModelShape, split: Split, demands: Iterable[tuple[int, int]], context_tokens: int
) -> int:
    """Bytes on each GPU of `split` that hold any one of `demands`, (sequences, tokens of each).

    That of the rank which caches most: an engine has caches of one size on all of its GPUs.
    """
    wanted = tuple(demands)
    return max(_demanded(cache, wanted, context_tokens) for cache in _rank_caches(shape, split))


def _demanded(cache: RankCache, demands: Iterable[tuple[int, int]], context_tokens: int) -> int:
    most = max(count * _sequence_bytes(cache, tokens) for count, tokens in demands)
    return int(MORE * most + _SPARE_SEQUENCES * _sequence_bytes(cache, context_tokens))


def _sequence_bytes(cache: RankCache, tokens: int) -> float:
    """With a block more, for tokens of steps that are formed ahead.

    Windows are not counted: while a prompt is read, more than a window is kept.
    """
    blocks = -(-tokens // BLOCK_TOKENS) + 1
    return cache.state_bytes + blocks * BLOCK_TOKENS * cache.bytes_per_token


def _rank_caches(shape: ModelShape, split: Split) -> list[RankCache]:
    return [
        rank_cache(stage_layers(shape, split, stage), split, tensor)
        for stage in range(split.pp)
        for tensor in range(split.tp)
    ]
