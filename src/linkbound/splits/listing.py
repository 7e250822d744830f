"""Every crossing of a split, step by step, ready to be shown (S2)."""

from collections.abc import Iterable

from linkbound.evidence.types import Reason
from linkbound.model.types import ModelShape
from linkbound.splits.crossings import crossings
from linkbound.splits.possible import impossible
from linkbound.splits.types import Crossing, Phase, Split
from linkbound.values import Value


class Step(Value, frozen=True, kw_only=True):
    """One forward step of every replica."""

    phase: Phase
    tokens: int
    sequences: int


class Listing(Value, frozen=True, kw_only=True):
    """What a split sends in each step, or why there is no such split."""

    split: Split
    problem: Reason | None
    crossings: tuple[tuple[Step, Crossing], ...]


def list_crossings(shape: ModelShape, split: Split, steps: Iterable[Step], logits: bool) -> Listing:
    """Crossings of `split` in each of `steps`; of an impossible split the reason alone."""
    problem = impossible(shape, split)
    if problem is not None:
        return Listing(split=split, problem=problem, crossings=())
    found = tuple(
        (step, crossing)
        for step in steps
        for crossing in crossings(
            shape, split, step.phase, step.tokens, step.sequences, logits=logits
        )
    )
    return Listing(split=split, problem=None, crossings=found)
