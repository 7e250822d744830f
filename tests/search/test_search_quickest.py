"""Layouts that are left out before they are priced cost no less than one that stays."""

import random

import pytest
from search_cases import (
    FAST,
    SLOW,
    TIERS,
    Links,
    Tier,
    TierBook,
    calibration,
    engine,
    islands,
    random_links,
    small_model,
    tree_of,
)

from linkbound.links import Arm, Operation
from linkbound.links.types import Curve, Timed
from linkbound.model.types import Load
from linkbound.predict.steptime import Engine
from linkbound.search.costs import Costs
from linkbound.search.units import unit_of
from linkbound.serve import VLLM
from linkbound.splits.layouts import layouts
from linkbound.splits.types import Dispatch, Split
from linkbound.topology.types import Machine

LOAD = Load(prompt_tokens=256, output_tokens=8, concurrency=8)
SPLITS = (
    Split(tp=2),
    Split(pp=4),
    Split(tp=2, pp=3),
    Split(tp=2, pp=2, ep=4, replicas=2, dispatch=Dispatch.GATHER_SCATTER),
    Split(pp=3, ep=2, replicas=2, dispatch=Dispatch.GATHER_SCATTER),
    Split(pp=4, ep=2, replicas=2, dispatch=Dispatch.GATHER_SCATTER),
)
CALLS = ((8, 8), (3, 8), (8, 1))
"""Sequences, and output tokens of each."""


def costs_of(machine: Machine, links: Links) -> Costs:
    shape = small_model(layers=4, heads=4, experts=4)
    return Costs(engine(machine, links, shape), tree_of(machine), LOAD)


def bounds(costs: Costs, split: Split, arm: Arm) -> None:
    """Ask for the bound of every call, as a search does before it places anything."""
    for call in CALLS:
        costs.bound_s(split, arm, *call)


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split.name)
@pytest.mark.parametrize("arm", [Arm.P2P, Arm.STAGED])
def test_what_is_left_out_costs_no_less_in_any_call(split: Split, arm: Arm) -> None:
    machine = islands(2, 2, 2)
    tree = tree_of(machine)
    listed = layouts(tree, unit_of(split), tree.free)
    for seed in range(2):
        costs = costs_of(machine, random_links(random.Random(seed)))
        bounds(costs, split, arm)
        kept = costs.quickest(split, arm, listed)
        assert list(kept) == [one for one in listed if one in kept]
        assert len(kept) < len(listed)
        took = {one: [costs.call_s(split, one, arm, *call) for call in CALLS] for one in listed}
        for other in took.values():
            # One that stays is as quick in every call.
            assert any(
                all(
                    mine <= theirs * (1 + 1e-9)
                    for mine, theirs in zip(took[one], other, strict=True)
                )
                for one in kept
            ), (seed, other)


def test_unlike_gpus_are_not_compared() -> None:
    """A faster GPU and a slower one on equal links: both pairs stay, whichever comes first."""
    machine = islands(4, models=(FAST, SLOW))
    tree, split = tree_of(machine), Split(pp=2)
    costs = costs_of(machine, random_links(random.Random(1)))
    bounds(costs, split, Arm.P2P)
    listed = layouts(tree, unit_of(split), tree.free)
    assert len(listed) == 4
    assert costs.quickest(split, Arm.P2P, listed) == listed


def test_without_a_bound_nothing_is_left_out() -> None:
    machine, split = islands(2, 4), Split(pp=4)
    tree = tree_of(machine)
    listed = layouts(tree, unit_of(split), tree.free)
    assert (
        costs_of(machine, random_links(random.Random(1))).quickest(split, Arm.P2P, listed) == listed
    )


def test_one_link_for_all_leaves_one_layout() -> None:
    machine = islands(2, 4)
    tree, split = tree_of(machine), Split(pp=4)
    same = Tier(10e-6, 50e9)
    costs = costs_of(machine, {(kind, arm): same for kind in TIERS for arm in Arm})
    bounds(costs, split, Arm.P2P)
    listed = layouts(tree, unit_of(split), tree.free)
    assert len(listed) > 1
    assert costs.quickest(split, Arm.P2P, listed) == listed[:1]


class _HalfKnown(TierBook):
    """A book that knows nothing of groups on both sides of the machine."""

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve] | None:
        sides = {int(label.removeprefix("GPU")) // 2 for label in group}
        return None if len(sides) > 1 else super().read(operation, group, arm, size_bytes)


def test_a_layout_without_a_time_stays_and_is_named() -> None:
    machine, split = islands(2, 2), Split(tp=2)
    book = _HalfKnown(machine, random_links(random.Random(1)))
    tree = tree_of(machine)
    costs = Costs(Engine(small_model(), book, VLLM, calibration(FAST)), tree, LOAD)
    bounds(costs, split, Arm.P2P)
    listed = layouts(tree, unit_of(split), tree.free)
    assert len(listed) == 2
    assert costs.quickest(split, Arm.P2P, listed) == listed
