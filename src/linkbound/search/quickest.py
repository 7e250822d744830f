"""Of the layouts of one copy those that no other one has quicker links than (D4).

They are told apart before any is priced: a call takes no less where something that crosses in it
takes longer. Compared are all sizes that bounds asked for, those of the layouts' calls among them.
"""

import math
from collections.abc import Iterable
from itertools import chain
from operator import le

from linkbound.links.types import Arm, Operation
from linkbound.predict.steptime import Engine
from linkbound.search.bounds import FastestBook
from linkbound.splits.layouts import Layout
from linkbound.splits.ranks import same_time
from linkbound.splits.tree import Tree
from linkbound.splits.types import CrossingKind, Phase, Split

Times = tuple[float, ...]
"""Seconds of a call, size by size."""
Row = tuple[Times, ...]
"""What crosses in a layout, in the order of its split's crossings."""
Ways = tuple[tuple[int, ...], ...]
"""Ranks of calls that happen at the same time."""


class Quickest:
    """Layouts of a machine by what its links take; `bounds` knows which calls matter."""

    def __init__(self, engine: Engine, tree: Tree, bounds: FastestBook) -> None:
        self._engine = engine
        self._tree = tree
        self._bounds = bounds

    def of(self, split: Split, arm: Arm, layouts: Iterable[Layout]) -> tuple[Layout, ...]:
        """The layouts, in their order, less those that another one is as quick as everywhere.

        Such two are on GPUs of the same models and memories, rank by rank. A layout is kept in
        which something has no time, or of whose calls no bound was asked for.
        """
        rows, kept = _Rows(self._engine, self._tree, self._bounds, split, arm), []
        alike: dict[object, dict[Row, Layout]] = {}
        for layout in layouts:
            row = rows.of(layout)
            if row is None:
                kept.append(layout)
            else:
                alike.setdefault(self._gpus(layout), {}).setdefault(row, layout)
        kept += [known[row] for known in alike.values() for row in _unbeaten(known)]
        left = {layout.groups for layout in kept}
        return tuple(layout for layout in layouts if layout.groups in left)

    def _gpus(self, layout: Layout) -> object:
        gpus = self._engine.book.machine.gpus
        return tuple((gpus[one].model, gpus[one].memory_bytes) for one in layout.gpus)


class _Rows:
    """Rows of the layouts of one split in one arm."""

    def __init__(
        self, engine: Engine, tree: Tree, bounds: FastestBook, split: Split, arm: Arm
    ) -> None:
        self._book = engine.book
        self._tree = tree
        self._bounds = bounds
        self._arm = arm
        self._inside: dict[tuple[Operation, Ways], None] = {}
        self._between: dict[Operation, dict[Ways, None]] = {}
        self._known: dict[tuple[Operation, int], Times | None] = {}
        # Which ranks talk does not depend on how much they say.
        for phase in Phase:
            for one in engine.work.crossings(split, phase, 1):
                ways = same_time(split, one.ranks)
                if one.kind is CrossingKind.PIPELINE:
                    self._between.setdefault(one.operation, {})[ways] = None
                else:
                    self._inside[one.operation, ways] = None

    def of(self, layout: Layout) -> Row | None:
        """The slowest of calls at the same time, the sum of sends; None where one has no time."""
        gpus, row = layout.gpus, []
        for operation, ways in self._inside:
            row.append(self._slowest(operation, ways, gpus))
        for operation, boundaries in self._between.items():
            each = [self._slowest(operation, ways, gpus) for ways in boundaries]
            known = [one for one in each if one is not None]
            row.append(_sums(known) if len(known) == len(each) else None)
        found = tuple(one for one in row if one is not None)
        return found if len(found) == len(row) else None

    def _slowest(self, operation: Operation, ways: Ways, gpus: tuple[int, ...]) -> Times | None:
        each = [self._times(operation, tuple(gpus[rank] for rank in ranks)) for ranks in ways]
        known = list(dict.fromkeys(one for one in each if one is not None))
        if None in each:
            return None
        return known[0] if len(known) == 1 else tuple(map(max, *known))

    def _times(self, operation: Operation, group: tuple[int, ...]) -> Times | None:
        sends = operation is Operation.SEND_RECV
        form = self._tree.pair_form(*group) if sends else self._tree.group_form(group)
        key = (operation, form)
        if key not in self._known:
            self._known[key] = self._read(operation, group)
        return self._known[key]

    def _read(self, operation: Operation, group: tuple[int, ...]) -> Times | None:
        labels = tuple(self._book.machine.gpus[gpu].label for gpu in group)
        found = [
            self._book.read(operation, labels, self._arm, size_bytes)
            for size_bytes in self._bounds.asked(operation, len(group), self._arm)
        ]
        times = tuple(one[0].time_s for one in found if one is not None)
        return times if found and len(times) == len(found) else None


def _sums(each: list[Times]) -> Times:
    """Exact ones, so that the order of the boundaries tells nothing apart."""
    return tuple(map(math.fsum, zip(*each, strict=True)))


def _unbeaten(rows: Iterable[Row]) -> list[Row]:
    kept: list[Row] = []
    # What is as quick everywhere has the lower sum.
    for row in sorted(rows, key=lambda one: math.fsum(chain.from_iterable(one))):
        if not any(all(map(_as_quick, one, row)) for one in kept):
            kept.append(row)
    return kept


def _as_quick(one: Times, other: Times) -> bool:
    return one is other or all(map(le, one, other))
