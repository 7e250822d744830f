"""What one placed unit costs, asked once for all layouts that are alike (D5).

A floor is the same call over the fastest links that as many GPUs can have in the arm; a bound is a
floor on GPUs as fast as the machine's fastest. No placement is below either.
"""

import math
from collections.abc import Iterable

import msgspec

from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.book import CurveBook
from linkbound.predict.calibration import Calibration
from linkbound.predict.forecast import call_cost
from linkbound.predict.pace import fastest
from linkbound.predict.plans import TENSOR_ARMS, arms_of
from linkbound.predict.pricing import NoForecast
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan
from linkbound.search.bounds import FastestBook
from linkbound.search.quickest import Quickest
from linkbound.splits.fit import fit
from linkbound.splits.layouts import Layout
from linkbound.splits.place import placement_of
from linkbound.splits.tree import Tree
from linkbound.splits.types import Placement, Split


class Costs:
    """Times and room of units under sequences of one length. Times are infinite without a price."""

    def __init__(self, engine: Engine, tree: Tree, load: Load) -> None:
        self.engine = engine
        self.load = load
        self.machine = engine.book.machine
        self.unpriced: dict[str, None] = {}
        """Reasons of what has no price, each once."""
        self.unheld = ""
        """Why the split that was asked for last holds no sequence, of those that hold none."""
        self._floor = engine.with_book(FastestBook(engine.book, tree))
        best = fastest((engine.calibration, *engine.paces.others.values()))
        book = FastestBook(engine.book, tree)
        self._bound = self._with(book, best)
        self._quickest = Quickest(engine, tree, book)
        self._bound_of_all = self._with(FastestBook(engine.book, tree, TENSOR_ARMS), best)
        self._times: dict[object, float] = {}
        self._room: dict[object, float] = {}
        self._memories = tuple(gpu.memory_bytes for gpu in self.machine.gpus)

    def plan(self, split: Split, layouts: Iterable[Layout], arm: Arm | None) -> Plan:
        """The split on the GPUs of its copies, in rank order."""
        gpus = [self.machine.gpus[gpu] for layout in layouts for gpu in layout.gpus]
        return Plan(split=split, placement=placement_of(gpus), arm=arm)

    def speeds(self, split: Split, layout: Layout) -> tuple[float, ...]:
        """How fast each stage of a unit's first replica reads its weights, in bytes a second."""
        models = (
            frozenset(self.machine.gpus[gpu].model or "" for gpu in group)
            for group in layout.groups[: split.pp]
        )
        return tuple(self.engine.paces.of(one).stream for one in models)

    def memories(self, split: Split, layout: Layout) -> tuple[float, ...]:
        """The least memory of a GPU of each stage of a unit's first replica, in bytes."""
        return tuple(
            float(min(self._memories[gpu] or 1 for gpu in group))
            for group in layout.groups[: split.pp]
        )

    def room(self, split: Split, layout: Layout) -> float:
        """Sequences of the load's length that a unit holds at once; infinite where nothing bounds.

        Raises InputError where the machine does not say how much memory a GPU has.
        """
        gpus = layout.gpus
        key = (split, tuple(self._memories[gpu] for gpu in gpus))
        if key not in self._room:
            placement = self.plan(split, (layout,), None).placement
            found = fit(self.engine.shape, split, placement, self.machine, self.load)
            most = math.inf if found.largest_batch is None else found.largest_batch
            self._room[key] = most if found.fits else 0
            if not found.fits:
                self.unheld = f"{split.name}: {found.reason}"
        return self._room[key]

    def quickest(
        self, split: Split, arm: Arm | None, layouts: tuple[Layout, ...]
    ) -> tuple[Layout, ...]:
        """Layouts of one copy, less those that cost no less than another one of them.

        Of calls whose bound in the arm was asked for before.
        """
        return layouts if arm is None else self._quickest.of(split, arm, layouts)

    def call_s(
        self, split: Split, layout: Layout, arm: Arm | None, sequences: int, output: int
    ) -> float:
        """Seconds of one call of `sequences` in each replica, `output` tokens each."""
        key = (split, layout.signature, arm, sequences, output)
        if key not in self._times:
            plan = self.plan(split, (layout,), arm)
            self._times[key] = self._call_s(self.engine, plan, sequences, output)
        return self._times[key]

    def floor_s(
        self, split: Split, layout: Layout, arm: Arm | None, sequences: int, output: int
    ) -> float:
        """Seconds that no layout on GPUs of the same models is below."""
        models = tuple(self.machine.gpus[gpu].model for gpu in layout.gpus)
        key = (split, models, arm, sequences, output)
        if key not in self._times:
            plan = self.plan(split, (layout,), arm)
            self._times[key] = self._call_s(self._floor, plan, sequences, output)
        return self._times[key]

    def bound_s(self, split: Split, arm: Arm | None, sequences: int, output: int) -> float:
        """Seconds that no layout of the unit is below in the arm."""
        return self._bounded_s(self._bound, split, arm, sequences, output)

    def bound_of_all_s(self, split: Split, sequences: int, output: int) -> float:
        """Seconds that no layout of the unit is below in any arm.

        The book of this bound has the quickest of all arms; a GPU computes fastest in `staged`.
        """
        arm = None if arms_of(split)[0] is None else Arm.STAGED
        return self._bounded_s(self._bound_of_all, split, arm, sequences, output)

    def _bounded_s(
        self, engine: Engine, split: Split, arm: Arm | None, sequences: int, output: int
    ) -> float:
        key = (id(engine), split, arm, sequences, output)
        if key not in self._times:
            placement = Placement(gpus=(self.machine.gpus[0].key,) * split.gpus)
            plan = Plan(split=split, placement=placement, arm=arm)
            self._times[key] = self._call_s(engine, plan, sequences, output)
        return self._times[key]

    def _with(self, book: CurveBook, calibration: Calibration) -> Engine:
        engine = self.engine
        return Engine(engine.shape, book, engine.rules, calibration, work=engine.work)

    def _call_s(self, engine: Engine, plan: Plan, sequences: int, output: int) -> float:
        load = msgspec.structs.replace(self.load, output_tokens=output, concurrency=sequences)
        try:
            return call_cost(engine, plan, load).seconds
        except NoForecast as error:
            self.unpriced[f"{plan.name}: {error.seen}"] = None
            return math.inf
