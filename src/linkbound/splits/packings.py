"""The best ways to place all copies of a unit on a machine at once (D4).

The slowest copy sets the pace and memories add up: partial placements that leave the same GPUs free
are compared by both, and those that another one beats are dropped.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from linkbound.splits.layouts import (
    MOST_LAYOUTS,
    Layout,
    Signature,
    TooManyLayouts,
    Unit,
    layouts,
    without,
)
from linkbound.splits.tree import Marks, Tree


class Worth(NamedTuple):
    """What a copy costs, lower is better, and how much it holds, higher is better."""

    costs: tuple[float, ...]
    room: float = 0.0


class Packing(NamedTuple):
    """All copies: the worst of each cost, and what they hold together."""

    worth: Worth
    steps: tuple[tuple[Signature, int], ...]
    """Copy by copy its signature and the form of what it leaves free."""


class Packings:
    """Ways to place copies of one unit on a machine; states of the machine are kept."""

    def __init__(self, tree: Tree, unit: Unit, most: int = MOST_LAYOUTS) -> None:
        self._tree = tree
        self._unit = unit
        self._left = most
        self._next: dict[int, list[tuple[Layout, Marks, int]]] = {}

    def kinds(self) -> tuple[Layout, ...]:
        """Every layout of a copy, once for each signature. Raises TooManyLayouts."""
        free = self._tree.free
        listed = self._following(free, self._tree.state_form(free))
        return tuple({layout.signature: layout for layout, _, _ in listed}.values())

    def best(self, copies: int, worth_of: Callable[[Layout], Worth | None]) -> tuple[Packing, ...]:
        """Placements of all copies that no other one beats; empty where there is none.

        `worth_of` is asked once for each signature; None forbids it. Raises TooManyLayouts.
        """
        worths: dict[Signature, Worth | None] = {}
        known: dict[tuple[int, int], tuple[Packing, ...]] = {}

        def worth(layout: Layout) -> Worth | None:
            if layout.signature not in worths:
                worths[layout.signature] = worth_of(layout)
            return worths[layout.signature]

        def rest(marks: Marks, form: int, left: int) -> tuple[Packing, ...]:
            if (form, left) not in known:
                known[form, left] = _unbeaten(grown(marks, form, left))
            return known[form, left]

        def grown(marks: Marks, form: int, left: int) -> Iterable[Packing]:
            for layout, after, after_form in self._following(marks, form):
                mine = worth(layout)
                if mine is None:
                    continue
                step = (layout.signature, after_form)
                if left == 1:
                    yield Packing(mine, (step,))
                    continue
                for other in rest(after, after_form, left - 1):
                    yield Packing(together(mine, other.worth), (step, *other.steps))

        free = self._tree.free
        return rest(free, self._tree.state_form(free), copies)

    def place(self, packing: Packing) -> tuple[Layout, ...]:
        """The packing on the machine's GPUs."""
        marks, placed = self._tree.free, []
        for signature, form in packing.steps:
            layout = next(
                one
                for one in layouts(self._tree, self._unit, marks)
                if one.signature == signature and self._tree.state_form(without(marks, one)) == form
            )
            placed.append(layout)
            marks = without(marks, layout)
        return tuple(placed)

    def _following(self, marks: Marks, form: int) -> list[tuple[Layout, Marks, int]]:
        """Layouts of one more copy, with what each leaves free."""
        if form not in self._next:
            found = layouts(self._tree, self._unit, marks, self._left)
            self._left -= len(found)
            if self._left <= 0:
                raise TooManyLayouts
            after = ((layout, without(marks, layout)) for layout in found)
            self._next[form] = [
                (layout, left, self._tree.state_form(left)) for layout, left in after
            ]
        return self._next[form]


def together(one: Worth, other: Worth) -> Worth:
    """Two placements at once: the worse of each cost, the room of both."""
    costs = tuple(map(max, one.costs, other.costs))
    return Worth(costs=costs, room=one.room + other.room)


def _unbeaten(found: Iterable[Packing]) -> tuple[Packing, ...]:
    kept: list[Packing] = []
    for packing in found:
        if any(_as_good(one.worth, packing.worth) for one in kept):
            continue
        kept = [one for one in kept if not _as_good(packing.worth, one.worth)]
        kept.append(packing)
    return tuple(kept)


def _as_good(one: Worth, other: Worth) -> bool:
    return one.room >= other.room and all(
        mine <= theirs for mine, theirs in zip(one.costs, other.costs, strict=True)
    )
