"""Shards of the reference runtime that were timed alone on one GPU, by point (P1, D5).

A rank's shard takes the same time without its peers: one GPU is enough to time what a rank of a
four- or eight-way split computes.
"""

from collections.abc import Iterable, Mapping

from linkbound.predict.types import Estimate
from linkbound.splits.types import Dispatch, Phase, Split
from linkbound.values import Value


class ShardPoint(Value, frozen=True, kw_only=True):
    """One thing that a shard was timed at."""

    phase: Phase
    batch: int
    tokens: int
    """New tokens of each sequence."""
    context: int
    """Tokens that each sequence has in the cache before."""


class ShardTime(Value, frozen=True, kw_only=True):
    """A step of the first rank's shard of a split without stages, alone; seconds."""

    split: str
    dispatch: Dispatch | None
    """None where experts are not spread."""
    point: ShardPoint
    time: Estimate
    record_ids: tuple[str, ...]


class ShardTable:
    """Times by split and point; what was not timed is not there, nothing is drawn out."""

    def __init__(self, times: Iterable[ShardTime] = ()) -> None:
        self._times: Mapping[tuple[str, Dispatch | None, ShardPoint], ShardTime] = {
            (one.split, one.dispatch, one.point): one for one in times
        }

    def find(self, split: Split, point: ShardPoint) -> ShardTime | None:
        """The shard of a split at exactly this point; None for stages, whose sum is no step."""
        if split.pp > 1:
            return None
        return self._times.get((split.name, split.dispatch if split.ep > 1 else None, point))
