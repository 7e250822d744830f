"""All copies of a unit on a machine at once: which kinds of layout must be used together (D4).

The slowest copy sets the pace, so that of two ways to place all copies the one whose kinds are a
part of the other's is never worse: only those that are no such superset are listed.
"""

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

Kinds = frozenset[Signature]


class Packings:
    """Ways to place copies of one unit on a machine, found once for every number of copies."""

    def __init__(self, tree: Tree, unit: Unit, most: int = MOST_LAYOUTS) -> None:
        self._tree = tree
        self._unit = unit
        self._left = most
        self._known: dict[tuple[int, int], tuple[Kinds, ...]] = {}
        self._layouts: dict[Marks, tuple[Layout, ...]] = {}

    def of(self, copies: int) -> tuple[tuple[Layout, ...], ...]:
        """Layouts of all copies, for each set of kinds that is no superset of another's.

        Empty where they do not fit on the free GPUs. Raises TooManyLayouts.
        """
        marks = self._tree.free
        return tuple(self._laid(marks, copies, kinds) for kinds in self._kinds(marks, copies))

    def _kinds(self, marks: Marks, copies: int) -> tuple[Kinds, ...]:
        if copies == 0:
            return (frozenset(),)
        key = (self._tree.state_form(marks), copies)
        if key not in self._known:
            found: set[Kinds] = set()
            for layout in self._listed(marks):
                for rest in self._kinds(without(marks, layout), copies - 1):
                    found.add(rest | {layout.signature})
            self._known[key] = _least(found)
        return self._known[key]

    def _laid(self, marks: Marks, copies: int, kinds: Kinds) -> tuple[Layout, ...]:
        """Layouts of these kinds on these very GPUs."""
        if copies == 0:
            return ()
        for layout in self._listed(marks):
            after = without(marks, layout)
            if layout.signature in kinds and any(
                rest <= kinds for rest in self._kinds(after, copies - 1)
            ):
                return (layout, *self._laid(after, copies - 1, kinds))
        raise AssertionError("no layout of the kinds that were found")

    def _listed(self, marks: Marks) -> tuple[Layout, ...]:
        if marks not in self._layouts:
            found = layouts(self._tree, self._unit, marks, self._left)
            self._left -= len(found)
            if self._left <= 0:
                raise TooManyLayouts
            self._layouts[marks] = found
        return self._layouts[marks]


def _least(found: set[Kinds]) -> tuple[Kinds, ...]:
    ordered = sorted(found, key=lambda kinds: (len(kinds), sorted(kinds)))
    kept: list[Kinds] = []
    for kinds in ordered:
        if not any(one <= kinds for one in kept):
            kept.append(kinds)
    return tuple(kept)
