"""A book that answers with the fastest group there is: no placement is below it (D5)."""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from linkbound.evidence.types import Provenance
from linkbound.links.types import Arm, Curve, CurveKey, CurvePoint, Operation, Timed
from linkbound.predict.book import CurveBook
from linkbound.splits.tree import Tree

MOST_GROUPS = 200
"""Groups of one size that are read; where there are more kinds of them, no time is taken."""


class FastestBook(CurveBook):
    """Every call takes what it takes over those GPUs, of as many, over which it is shortest.

    With `arms` it is the shortest of those too, whichever arm is asked for.
    """

    def __init__(self, book: CurveBook, tree: Tree, arms: Collection[Arm] = ()) -> None:
        super().__init__(book.machine, (), direct_limit_bytes=book.direct_limit_bytes)
        self._arms = tuple(arms)
        self._book = book
        self._tree = tree
        self._groups: dict[int, tuple[tuple[str, ...], ...] | None] = {}
        self._fastest: dict[tuple[Operation, int, Arm, int], tuple[Timed, Curve] | None] = {}
        self._asked: dict[tuple[Operation, int, Arm], list[int]] = {}

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve] | None:
        """The shortest time of any group of the size; None where no such group has one."""
        key = (operation, len(group), arm, size_bytes)
        if key not in self._fastest:
            self._fastest[key] = self._shortest(*key)
            self._asked.setdefault(key[:3], []).append(size_bytes)
        return self._fastest[key]

    def asked(self, operation: Operation, size: int, arm: Arm) -> tuple[int, ...]:
        """Bytes of the calls over so many GPUs that were read so far, each once."""
        return tuple(self._asked.get((operation, size, arm), ()))

    def _shortest(
        self, operation: Operation, size: int, arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve] | None:
        groups = self._listed(size)
        if groups is None:
            return _nothing(operation, size, arm, size_bytes)
        found = (
            self._book.read(operation, group, each, size_bytes)
            for group in groups
            for each in self._arms or (arm,)
        )
        return min(
            (one for one in found if one is not None),
            key=lambda one: one[0].time_s,
            default=None,
        )

    def _listed(self, size: int) -> tuple[tuple[str, ...], ...] | None:
        """Groups of a size, once for all alike, pairs both ways; None where they are too many."""
        if size not in self._groups:
            tree = self._tree
            few = tree.size <= MOST_GROUPS or size <= 2
            found = list(islice(tree.choices(size, tree.free), MOST_GROUPS + 1)) if few else []
            whole = few and len(found) <= MOST_GROUPS
            self._groups[size] = self._named(found, size) if whole else None
        return self._groups[size]

    def _named(self, groups: Iterable[Sequence[int]], size: int) -> tuple[tuple[str, ...], ...]:
        gpus = self.machine.gpus
        named = [tuple(gpus[number].label for number in group) for group in groups]
        return tuple([*named, *(one[::-1] for one in named)] if size == 2 else named)


def _nothing(operation: Operation, size: int, arm: Arm, size_bytes: int) -> tuple[Timed, Curve]:
    timed = Timed(time_s=0.0, low_s=0.0, high_s=0.0, provenance=Provenance.ROOFLINE)
    group = tuple("?" for _ in range(size))
    key = CurveKey(operation=operation, implementation="none", group=group, arm=arm)
    return timed, Curve(key=key, points=(CurvePoint(size_bytes=size_bytes, time_s=0.0),))
