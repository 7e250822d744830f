"""Where copies of a unit can go: every way on a small machine, one way on a large one (D4)."""

from collections.abc import Callable, Iterator
from functools import partial, reduce

from linkbound.splits.aligned import aligned
from linkbound.splits.layouts import Layout, TooManyLayouts, Unit
from linkbound.splits.packings import Packings, Worth, together
from linkbound.splits.tree import Tree

EXACT_GPUS = 16
"""Up to so many GPUs all placements are compared, unless they are too many all the same."""
Placed = tuple[Layout, ...]


class Placer:
    """Placements on one machine, found once for each unit."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.n_gpus = len(tree.root.gpus)
        self.exhaustive = self.n_gpus <= EXACT_GPUS
        self._packings: dict[Unit, Packings] = {}
        self._aligned: dict[Unit, Placed] = {}

    def some(self, unit: Unit, copies: int) -> Placed:
        """One way to place all copies, empty where there are too few GPUs."""
        if unit not in self._aligned:
            self._aligned[unit] = aligned(self.tree, unit)
        found = self._aligned[unit][:copies]
        return found if len(found) == copies else ()

    def kinds(self, unit: Unit) -> Placed:
        """Layouts of one copy, one of each signature."""
        if self.exhaustive:
            try:
                return self._of(unit).kinds()
            except TooManyLayouts:
                self.exhaustive = False
        self.some(unit, 1)
        return tuple({one.signature: one for one in self._aligned[unit]}.values())

    def best(
        self,
        unit: Unit,
        copies: int,
        worth_of: Callable[[Layout], Worth | None],
        among: Callable[[Placed], Placed],
    ) -> Iterator[tuple[Worth, Callable[[], Placed]]]:
        """Placements that no other one beats: what each is worth, and what finds its GPUs.

        Of one copy all that `among` leaves are given, one after the other: `worth_of` may forbid
        what an earlier one beats.
        """
        if copies == 1:
            for layout in among(self.kinds(unit)):
                worth = worth_of(layout)
                if worth is not None:
                    yield worth, partial(_same, (layout,))
            return
        if self.exhaustive:
            try:
                found = self._of(unit).best(copies, worth_of)
            except TooManyLayouts:
                self.exhaustive = False
            else:
                for one in found:
                    yield one.worth, partial(self._of(unit).place, one)
                return
        placed = self.some(unit, copies)
        kinds = {one.signature: one for one in placed}
        worths = {signature: worth_of(layout) for signature, layout in kinds.items()}
        known = [worth for worth in worths.values() if worth is not None]
        if placed and len(known) == len(worths):
            each = [worths[one.signature] for one in placed]
            yield reduce(together, filter(None, each)), partial(_same, placed)

    def _of(self, unit: Unit) -> Packings:
        return self._packings.setdefault(unit, Packings(self.tree, unit))


def _same(placed: Placed) -> Placed:
    return placed
