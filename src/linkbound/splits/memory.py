"""What one GPU of a split holds, and what that leaves for the cache (S3).

Each GPU by itself: no room on one makes up for the lack of it on another.
"""

from functools import lru_cache

from linkbound.model.types import ModelShape
from linkbound.splits.cache import RankCache, longest_sequence, rank_cache
from linkbound.splits.engine import EngineAssumptions
from linkbound.splits.overhead import overhead_parts
from linkbound.splits.ranks import Rank, rank_of, stage_layers
from linkbound.splits.types import MemoryPart, RankMemory, Split
from linkbound.splits.weights import rank_weight_bytes
from linkbound.values import Value

WEIGHTS = "weights"
CACHE = "KV cache"


class Room(Value, frozen=True, kw_only=True):
    """What the cache of one rank may take, in bytes: likely, at least and at most."""

    cache: RankCache
    pool_bytes: float
    low_bytes: float
    high_bytes: float

    def tokens(self, engine: EngineAssumptions) -> int | None:
        """Tokens of cache in whole blocks, 0 where the rest is too big; None where none grows."""
        block_bytes = self.cache.bytes_per_token * engine.block_tokens
        if not block_bytes:
            return None
        return int(max(0.0, self.pool_bytes) // block_bytes) * engine.block_tokens

    def sequences(self, tokens: int, engine: EngineAssumptions) -> int | None:
        """Sequences of `tokens` that fit at once; None where sequences take nothing here."""
        size = self.cache.sequence_bytes(tokens, engine.block_tokens)
        return max(0, int(self.pool_bytes // size)) if size else None

    def longest(self, limit: int | None, engine: EngineAssumptions) -> int | None:
        """Longest single sequence, at most `limit` tokens; None where nothing bounds it."""
        if limit is None:
            if not self.cache.full_bytes_per_token:
                return None
            limit = int(max(0.0, self.pool_bytes) // self.cache.full_bytes_per_token)
        return longest_sequence(self.cache, self.pool_bytes, engine.block_tokens, limit)


class Held(Value, frozen=True, kw_only=True):
    """One rank's parts and room on a GPU of a size, whichever GPU that is."""

    capacity_bytes: int
    usable_bytes: float
    parts: tuple[MemoryPart, ...]
    room: Room
    kv_tokens: int | None

    def on(self, gpu: str, number: int) -> RankMemory:
        """The same as rank `number` on `gpu`."""
        return RankMemory(
            rank=number,
            gpu=gpu,
            capacity_bytes=self.capacity_bytes,
            usable_bytes=self.usable_bytes,
            parts=self.parts,
            kv_bytes_per_token=self.room.cache.bytes_per_token,
            kv_tokens=self.kv_tokens,
        )


@lru_cache(maxsize=4096)
def hold(
    shape: ModelShape, split: Split, capacities_bytes: tuple[int, ...], engine: EngineAssumptions
) -> tuple[Held, ...]:
    """What every rank holds on GPUs of these capacities, in rank order, whatever the load.

    Ranks that hold the same on GPUs of one size are counted once.
    """
    known: dict[tuple[int, int, int, int], Held] = {}
    held = []
    for number, capacity_bytes in enumerate(capacities_bytes):
        rank = rank_of(split, number)
        tensor = 0 if split.tensor_ratio is None and split.ep == 1 else rank.tensor
        replica = 0 if split.ep == 1 else rank.replica
        key = (rank.stage, tensor, replica, capacity_bytes)
        if key not in known:
            known[key] = _hold_rank(shape, split, rank, capacity_bytes, engine)
        held.append(known[key])
    return tuple(held)


def _hold_rank(
    shape: ModelShape, split: Split, rank: Rank, capacity_bytes: int, engine: EngineAssumptions
) -> Held:
    usable_bytes = engine.utilisation * capacity_bytes
    parts = (
        _weights(shape, split, rank),
        *overhead_parts(shape, split, rank, capacity_bytes, engine),
    )
    room = Room(
        cache=rank_cache(stage_layers(shape, split, rank.stage), split, rank.tensor),
        pool_bytes=usable_bytes - sum(part.size_bytes for part in parts),
        low_bytes=usable_bytes - sum(part.high_bytes for part in parts),
        high_bytes=usable_bytes - sum(part.low_bytes for part in parts),
    )
    tokens = room.tokens(engine)
    return Held(
        capacity_bytes=capacity_bytes,
        usable_bytes=usable_bytes,
        parts=(*parts, _cache(room, tokens, engine)) if tokens else parts,
        room=room,
        kv_tokens=tokens,
    )


def _weights(shape: ModelShape, split: Split, rank: Rank) -> MemoryPart:
    size = rank_weight_bytes(shape, split, rank)
    return MemoryPart(
        name=WEIGHTS,
        size_bytes=size,
        low_bytes=size,
        high_bytes=size,
        basis=f"stated by {shape.source or shape.name}, divided by the split",
    )


def _cache(room: Room, tokens: int, engine: EngineAssumptions) -> MemoryPart:
    size = tokens * room.cache.bytes_per_token
    return MemoryPart(
        name=CACHE,
        size_bytes=size,
        low_bytes=min(size, max(0.0, room.low_bytes)),
        high_bytes=max(size, room.high_bytes),
        basis=f"what is left, in blocks of {engine.block_tokens} tokens",
    )
