"""Layouts up to symmetry: every placement has its like in the list, and none is in it twice."""

import random
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.splits.aligned import aligned
from linkbound.splits.layouts import Layout, Unit, layout_of, layouts, without
from linkbound.splits.modules import Module, modules_of
from linkbound.splits.packings import Packings, Worth
from linkbound.splits.place import place
from linkbound.splits.tree import Tree
from linkbound.splits.types import Split
from linkbound.topology.types import Gpu, Machine, Pair, PairPath, PathKind

NV, PHB, SYS = PathKind.NVLINK, PathKind.PHB, PathKind.SYS


def machine(kinds: list[list[PathKind | None]], models: list[str] | None = None) -> Machine:
    """GPUs joined as the matrix says."""
    size = len(kinds)
    return Machine(
        sources=("made",),
        gpus=tuple(
            Gpu(
                key=f"k{number}",
                label=f"GPU{number}",
                model=models[number] if models else "X",
                memory_bytes=24 << 30,
            )
            for number in range(size)
        ),
        pairs=tuple(
            PairPath(pair=Pair(src=f"k{src}", dst=f"k{dst}"), kind=kinds[src][dst])
            for src, dst in permutations(range(size), 2)
        ),
    )


def nested(*sizes: int) -> Machine:
    """Islands of sizes[-1] GPUs, sizes[-2] of them in a socket, and so on: NV, PHB, SYS."""
    total = 1
    for size in sizes:
        total *= size

    def kind(one: int, other: int) -> PathKind:
        span = 1
        for at, size in enumerate(reversed(sizes)):
            span *= size
            if one // span == other // span:
                return (NV, PHB, SYS)[at]
        raise AssertionError

    return machine([[kind(one, other) for other in range(total)] for one in range(total)])


def tree_of(found: Machine) -> Tree:
    return Tree(modules_of(found), len(found.gpus))


def outline(module: Module) -> object:
    return [outline(child) for child in module.children] or module.gpus[0]


def test_islands_on_sockets_are_modules_of_modules() -> None:
    assert outline(modules_of(nested(2, 2, 2))) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert outline(modules_of(nested(4))) == [0, 1, 2, 3]
    assert outline(modules_of(machine([[NV]]))) == 0


def test_a_ring_of_four_has_no_modules_but_pairs_across() -> None:
    """0-1-2-3-0 over NVLink, the diagonals over PCIe: opposite GPUs see the same."""
    ring = [[NV if (a - b) % 2 else PHB for b in range(4)] for a in range(4)]
    assert outline(modules_of(machine(ring))) == [[0, 2], [1, 3]]


def test_a_chain_stays_as_it_is() -> None:
    chain = [[NV if abs(a - b) == 1 else PHB for b in range(4)] for a in range(4)]
    root = modules_of(machine(chain))
    assert outline(root) == [0, 1, 2, 3]
    assert not root.alike
    assert root.link(0, 1) != root.link(0, 2)


def test_one_way_links_are_no_symmetry() -> None:
    kinds: list[list[PathKind | None]] = [[NV] * 3 for _ in range(3)]
    kinds[0][1] = None
    assert not modules_of(machine(kinds)).alike


def test_an_excluded_gpu_is_in_no_layout() -> None:
    found = nested(2, 2)
    tree = Tree(modules_of(found, excluded=("GPU0",)), len(found.gpus))
    assert all(0 not in one.gpus for one in layouts(tree, Unit(2, 1), tree.free))


@pytest.mark.parametrize(
    ("sizes", "unit", "expected"),
    [
        ((8,), Unit(4, 1), 1),
        ((2, 4), Unit(4, 1), 3),  # 4+0, 3+1, 2+2
        ((2, 2, 2), Unit(2, 1), 3),  # one island, one socket, two sockets
        ((2, 2), Unit(1, 2), 2),
        ((2, 2), Unit(2, 2), 2),  # islands, or both stages across
    ],
)
def test_how_many_layouts_there_are(sizes: tuple[int, ...], unit: Unit, expected: int) -> None:
    tree = tree_of(nested(*sizes))
    assert len(layouts(tree, unit, tree.free)) == expected


UNITS = [Unit(1, 1), Unit(2, 1), Unit(3, 1), Unit(1, 2), Unit(1, 3), Unit(2, 2), Unit(1, 2, 2)]
Profile = tuple[tuple[object, ...], tuple[object, ...]]


def profile(tree: Tree, unit: Unit, groups: tuple[tuple[int, ...], ...]) -> Profile:
    """What a call's time depends on: each stage's groups and spread, and who sends into it."""
    stages = [groups[stage :: unit.pp] for stage in range(unit.pp)]
    inside = tuple(
        (tuple(sorted({tree.group_form(one) for one in stage})), tree.group_form(sum(stage, ())))
        for stage in stages
    )
    sends = (
        tuple(
            sorted(
                {
                    tree.pair_form(src, dst)
                    for one, other in zip(senders, receivers, strict=True)
                    for src, dst in zip(one, other, strict=True)
                }
            )
        )
        for senders, receivers in pairwise(stages)
    )
    return inside, tuple(sorted(sends))


@pytest.mark.parametrize(
    ("sizes", "unit", "most"),
    [
        ((2, 3), Unit(1, 3, 2), None),  # every order of six
        *(
            (sizes, unit, 4000)
            for sizes in ((2, 2, 2), (4, 2))
            for unit in (Unit(1, 3, 2), Unit(1, 4, 2))
        ),
    ],
)
def test_no_cost_of_replicas_that_share_experts_is_missed(
    sizes: tuple[int, ...], unit: Unit, most: int | None
) -> None:
    """All orders or some: each costs what a listed layout does, and equal signatures cost alike."""
    found = nested(*sizes)
    tree, gpus = tree_of(found), range(len(found.gpus))
    draw = random.Random(f"{sizes} {unit}")
    orders = (
        permutations(gpus, unit.size)
        if most is None
        else (tuple(draw.sample(gpus, unit.size)) for _ in range(most))
    )
    by_signature: dict[object, set[Profile]] = {}
    for order in orders:
        groups = tuple((gpu,) for gpu in order)
        signature = layout_of(tree, unit, groups).signature
        by_signature.setdefault(signature, set()).add(profile(tree, unit, groups))
    assert all(len(profiles) == 1 for profiles in by_signature.values())
    # One of those with equal signatures is priced.
    listed = {one.signature: one.groups for one in layouts(tree, unit, tree.free)}
    everything = set().union(*by_signature.values())
    assert everything <= {profile(tree, unit, groups) for groups in listed.values()}


KINDS = st.sampled_from([NV, PHB, None])


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Any machine of up to five GPUs of two models, links of three kinds, the same both ways."""
    size = draw(st.integers(1, 5))
    drawn = {(a, b): draw(KINDS) for a in range(size) for b in range(a + 1, size)}
    kinds = [
        [NV if a == b else drawn[min(a, b), max(a, b)] for b in range(size)] for a in range(size)
    ]
    models = draw(st.lists(st.sampled_from("XY"), min_size=size, max_size=size))
    return machine(kinds, models)


@given(machines(), st.sampled_from(UNITS))
def test_every_placement_costs_what_a_listed_one_does(found: Machine, unit: Unit) -> None:
    """All orders of all GPUs, cut into groups: none has a signature that is not in the list.

    Ranks of a group may stand in any order; listed are those that face their senders.
    """
    tree = tree_of(found)
    listed = {one.signature for one in layouts(tree, unit, tree.free)}
    orders = {
        tuple(order[at : at + unit.tp] for at in range(0, unit.size, unit.tp))
        for order in permutations(range(len(found.gpus)), unit.size)
    }
    everything = {layout_of(tree, unit, groups).signature for groups in orders}
    assert listed <= everything
    if unit.tp == 1:
        assert listed == everything
    else:
        assert {one[0] for one in listed} == {one[0] for one in everything}


@given(
    machines(),
    st.sampled_from([Unit(1, 1), Unit(2, 1), Unit(1, 2)]),
    st.integers(1, 3),
    st.integers(0, 1000),
)
def test_the_best_packings_of_all(found: Machine, unit: Unit, copies: int, seed: int) -> None:
    """Against every order of every GPU: the unbeaten pairs of worst cost and common room."""
    tree = tree_of(found)

    def worth(layout: Layout) -> Worth | None:
        drawn = random.Random(f"{seed} {layout.signature}")
        if drawn.random() < 0.1:
            return None
        costs = (float(drawn.randrange(4)), float(drawn.randrange(4)))
        return Worth(costs=costs, room=float(drawn.randrange(3)))

    def ways(left: tuple[int, ...], many: int) -> set[tuple[float, float, float]]:
        if many == 0:
            return {(0.0, 0.0, 0.0)}
        return {
            (max(a, mine.costs[0]), max(b, mine.costs[1]), room + mine.room)
            for order in permutations(left, unit.size)
            for groups in (tuple(order[at : at + unit.tp] for at in range(0, unit.size, unit.tp)),)
            for mine in (worth(layout_of(tree, unit, groups)),)
            if mine is not None
            for a, b, room in ways(tuple(gpu for gpu in left if gpu not in order), many - 1)
        }

    everything = ways(tuple(range(len(found.gpus))), copies)
    unbeaten = {
        one
        for one in everything
        if not any(
            other != one and other[0] <= one[0] and other[1] <= one[1] and other[2] >= one[2]
            for other in everything
        )
    }
    packings = Packings(tree, unit)
    packed = packings.best(copies, worth)
    assert {(*one.worth.costs, one.worth.room) for one in packed} == unbeaten
    for packing in packed:
        placed = packings.place(packing)
        gpus = [gpu for layout in placed for gpu in layout.gpus]
        assert len(set(gpus)) == len(gpus) == copies * unit.size
        worths = [worth(layout) for layout in placed]
        assert max(one.costs[0] for one in worths if one is not None) == packing.worth.costs[0]


def test_receivers_face_their_senders() -> None:
    """Two islands, a group across both: its ranks are ordered so that no send leaves an island."""
    tree = tree_of(nested(2, 2))
    across = [one for one in layouts(tree, Unit(2, 2), tree.free) if one.groups[0] == (0, 2)]
    assert [one.groups[1] for one in across] == [(1, 3)]


def test_from_the_inside_out() -> None:
    found = nested(3, 4)
    tree = tree_of(found)
    pipelines = aligned(tree, Unit(1, 3))
    assert [one.gpus for one in pipelines[:3]] == [(0, 1, 2), (4, 5, 6), (8, 9, 10)]
    assert pipelines[3].gpus == (3, 7, 11)
    assert [one.groups for one in aligned(tree, Unit(2, 2))] == [
        ((0, 1), (2, 3)),
        ((4, 5), (6, 7)),
        ((8, 9), (10, 11)),
    ]
    assert aligned(tree, Unit(16, 1)) == ()


def test_taken_gpus_are_not_free() -> None:
    tree = tree_of(nested(2, 2))
    (first, *_) = layouts(tree, Unit(2, 1), tree.free)
    left = without(tree.free, first)
    assert all(set(one.gpus).isdisjoint(first.gpus) for one in layouts(tree, Unit(1, 1), left))


def test_pipelines_stay_inside_islands_and_groups_on_the_best_links() -> None:
    """Pairs of NVLink on two sockets, numbered so that neither pairs nor sockets are neighbours."""
    pair_of, socket_of = (0, 2, 1, 3, 0, 2, 1, 3), (0, 1, 0, 1, 0, 1, 0, 1)

    def kind(one: int, other: int) -> PathKind:
        if pair_of[one] == pair_of[other]:
            return NV
        return PHB if socket_of[one] == socket_of[other] else SYS

    found = machine([[kind(one, other) for other in range(8)] for one in range(8)])
    placed = place(Split(tp=2, pp=2, replicas=2), found)
    assert placed.gpus == ("k0", "k4", "k2", "k6", "k1", "k5", "k3", "k7")
    # The first four, each followed by the nearest that is left.
    assert place(Split(pp=4), found).gpus == ("k0", "k2", "k1", "k3")
