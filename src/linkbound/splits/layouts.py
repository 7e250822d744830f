"""Every way to put the copies of a split on a machine's GPUs, once for all that are alike (D4).

A layout is one copy's tensor-parallel groups in pipeline order. Two layouts are alike where an
exchange of interchangeable GPUs turns one into the other; of those only one is listed.
"""

from typing import NamedTuple

from linkbound.splits.tree import USED, Group, Marks, Tree

_STAGE = 2
"""Marks from here on: a group of this copy, by its stage."""
_LAST = 1000
"""Added to the mark of the group that the next one follows."""
MOST_LAYOUTS = 20_000
"""Beyond, nobody waits for a list of layouts."""

Signature = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], tuple[int, ...]]


class TooManyLayouts(Exception):
    """The machine allows more layouts than are worth listing."""


class Unit(NamedTuple):
    """The part of a split that shares something: one replica, or all that share experts."""

    tp: int
    pp: int
    shared: int = 1
    """Replicas that share experts."""

    @property
    def size(self) -> int:
        """GPUs of the unit."""
        return self.tp * self.pp * self.shared


class Layout(NamedTuple):
    """Groups of GPUs in rank order, and what tells the layout from others of its unit."""

    groups: tuple[Group, ...]
    kinds: tuple[tuple[int, ...], ...]
    """Forms of the groups of each replica, replicas in no order."""
    boundaries: tuple[tuple[int, ...], ...]
    """Forms of the pairs that send from each stage to the next, of all replicas; in no order."""
    spread: tuple[int, ...]
    """Form of all GPUs of each stage, where replicas share experts."""

    @property
    def signature(self) -> Signature:
        """Equal for layouts that cost the same."""
        return self.kinds, self.boundaries, self.spread

    @property
    def gpus(self) -> Group:
        """All GPUs in rank order."""
        return tuple(gpu for group in self.groups for gpu in group)


def layout_of(tree: Tree, unit: Unit, groups: tuple[Group, ...]) -> Layout:
    """The layout with these groups, in rank order: replica by replica, stage by stage."""
    followers = range(1, min(unit.pp, len(groups)))
    stages = [groups[stage :: unit.pp] for stage in range(unit.pp)] if unit.shared > 1 else []
    forms = [tree.group_form(group) for group in groups]
    return Layout(
        groups=groups,
        kinds=tuple(
            sorted(tuple(forms[at : at + unit.pp]) for at in range(0, len(forms), unit.pp))
        ),
        boundaries=tuple(sorted(_boundary(tree, unit, groups, stage) for stage in followers)),
        spread=tuple(tree.group_form(sum(stage, ())) for stage in stages),
    )


def layouts(tree: Tree, unit: Unit, marks: Marks, most: int = MOST_LAYOUTS) -> tuple[Layout, ...]:
    """Layouts of a unit on the free GPUs that differ in cost or in what they leave free.

    Raises TooManyLayouts beyond `most`.
    """
    begun: list[tuple[tuple[Group, ...], Marks]] = [((), marks)]
    for number in range(unit.pp * unit.shared):
        grown: dict[object, tuple[tuple[Group, ...], Marks]] = {}
        for groups, left in begun:
            for chosen in tree.choices(unit.tp, left):
                ordered = chosen if number % unit.pp == 0 else _facing(tree, groups[-1], chosen)
                more = (*groups, ordered)
                after = _mark(unit, number, left, ordered)
                key = (layout_of(tree, unit, more).signature, tree.state_form(after))
                grown.setdefault(key, (more, after))
                if len(grown) > most:
                    raise TooManyLayouts
        begun = list(grown.values())
    found: dict[object, Layout] = {}
    for groups, _ in begun:
        layout = layout_of(tree, unit, groups)
        found.setdefault((layout.signature, tree.state_form(without(marks, layout))), layout)
    return tuple(found.values())


def without(marks: Marks, layout: Layout) -> Marks:
    """The marks once the layout's GPUs are taken."""
    taken = set(layout.gpus)
    return tuple(USED if gpu in taken else mark for gpu, mark in enumerate(marks))


def _mark(unit: Unit, number: int, marks: Marks, group: Group) -> Marks:
    """The marks with one more group, which the next one follows if it is of the same replica."""
    stage = number % unit.pp
    # What comes later depends on where a stage's other groups are only where replicas share it.
    mark = _STAGE + stage if unit.shared > 1 else USED
    left = [each - _LAST if each >= _LAST else each for each in marks]
    for gpu in group:
        left[gpu] = mark + (_LAST if stage < unit.pp - 1 else 0)
    return tuple(left)


def _facing(tree: Tree, senders: Group, group: Group) -> Group:
    """`group` in the order in which every GPU is as near as can be to the one that sends to it.

    Pairs that share the smallest module are joined first.
    """
    if len(group) == 1:
        return group
    pairs = sorted(
        ((-tree.depth(src, dst), at, dst) for at, src in enumerate(senders) for dst in group)
    )
    placed: dict[int, int] = {}
    for _, at, dst in pairs:
        if at not in placed and dst not in placed.values():
            placed[at] = dst
    return tuple(placed[at] for at in range(len(senders)))


def _boundary(tree: Tree, unit: Unit, groups: tuple[Group, ...], stage: int) -> tuple[int, ...]:
    """Forms of all pairs that send into the stage at once: the slowest replica's counts."""
    senders, receivers = groups[stage - 1 :: unit.pp], groups[stage :: unit.pp]
    pairs = (
        pair
        # While layouts are listed, the last replica may not have this stage yet.
        for one, other in zip(senders, receivers, strict=False)
        for pair in zip(one, other, strict=True)
    )
    return tuple(sorted({tree.pair_form(src, dst) for src, dst in pairs}))
