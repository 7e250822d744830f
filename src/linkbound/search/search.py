"""The best plan of a machine for a model and a load: splits x placements x arms x limits (D1, D4).

Branch and bound: candidates come in the order of the latency that the fastest links and GPUs would
give them; one that a plan already found beats in every score even so is never placed. Exact where
all placements are compared, since no placement is better than its bound.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.steptime import Engine
from linkbound.search.candidates import Candidate, candidates, in_each_arm
from linkbound.search.costs import Costs
from linkbound.search.front import Front, axes
from linkbound.search.option import Option, cost, rank
from linkbound.search.placer import Placer
from linkbound.search.scoring import latency_s, score, waves
from linkbound.search.types import Objective, Scores
from linkbound.search.units import unit_of
from linkbound.serve.load_types import Slo
from linkbound.splits.layouts import Layout
from linkbound.splits.packings import Worth
from linkbound.splits.tree import Tree
from linkbound.splits.types import Split


class Search:
    """One search: the front, and the best option of every split that was placed."""

    def __init__(self, engine: Engine, tree: Tree, load: Load, slo: Slo | None = None) -> None:
        """Search. Raises InputError where the machine does not say how much memory a GPU has."""
        self.costs = Costs(engine, tree, load)
        self.placer = Placer(tree)
        self.load = load
        self.slo = slo
        self.front = Front()
        self.ruled_out = 0
        self._by_split: dict[tuple[Objective, Split], Option] = {}
        self._candidates = sorted(candidates(self.costs, self.placer, slo), key=_first)
        for candidate in self._candidates:
            if self._is_beaten(candidate):
                self.ruled_out += 1
            else:
                self._try(candidate)

    @property
    def candidates(self) -> int:
        """How many splits with a number of copies and a batch limit were looked at."""
        return len(self._candidates)

    def best(self, objective: Objective) -> Option | None:
        """The best option; of equal ones that on the fewest GPUs."""
        found = min(self.front, key=lambda option: rank(option, objective), default=None)
        if found is None or objective is not Objective.LATENCY:
            return found
        return self._with_fewest_copies(found)

    def next_best(self, option: Option, objective: Objective) -> Option | None:
        """The best option of another split, whether or not the front beats it.

        What was ruled out is placed here, the best bounds first, until none could be better.
        """
        mine = option.candidate.unit
        found = min(
            (
                other
                for (aim, unit), other in self._by_split.items()
                if aim is objective and unit != mine
            ),
            key=lambda other: rank(other, objective),
            default=None,
        )

        def could_be_better(candidate: Candidate) -> bool:
            bound = cost(candidate.best, objective)
            return found is None or bound < cost(found.scores, objective)

        others = (one for one in self._candidates if one.unit != mine)
        for candidate in sorted(others, key=lambda one: cost(one.best, objective)):
            if not could_be_better(candidate):
                break
            for one in in_each_arm(self.costs, self.slo, candidate):
                if could_be_better(one):
                    placed = self._options(one, partial(self._reached, one))
                    found = min(
                        (*placed, *([] if found is None else [found])),
                        key=lambda other: rank(other, objective),
                        default=None,
                    )
        return found

    def _try(self, candidate: Candidate) -> None:
        for one in sorted(in_each_arm(self.costs, self.slo, candidate), key=_first):
            if not self._is_beaten(one):
                for option in self._options(one, partial(self._worth, one)):
                    self.front.add(option)
                    self._keep(option)

    def _is_beaten(self, candidate: Candidate) -> bool:
        return self.front.beats(axes(candidate.best), candidate.gpus)

    def _keep(self, option: Option) -> None:
        for objective in Objective:
            key = (objective, option.candidate.unit)
            known = self._by_split.get(key)
            if known is None or rank(option, objective) < rank(known, objective):
                self._by_split[key] = option

    def _with_fewest_copies(self, option: Option) -> Option:
        """The same latency without copies that take no part of the load."""
        mine = option.candidate
        shared = mine.unit.replicas
        for copies in range(1, mine.copies):
            fewer = mine._replace(copies=copies)
            if waves(self.load, copies * shared, mine.limit) == waves(
                self.load, mine.replicas, mine.limit
            ):
                found = self._options(fewer, partial(self._worth, fewer))
                best = min(found, key=lambda one: rank(one, Objective.LATENCY), default=None)
                if best is not None and best.scores.latency_s <= option.scores.latency_s:
                    return best
        return option

    def _options(
        self, candidate: Candidate, worth_of: Callable[[Layout], Worth | None]
    ) -> Iterator[Option]:
        """Placements of a candidate that hold it, have a price, and no other one beats."""
        unit, among = candidate.unit, partial(self.costs.quickest, candidate.unit, candidate.arm)
        for worth, place in self.placer.best(unit_of(unit), candidate.copies, worth_of, among):
            latency, tokens, goodput = worth.costs
            scores = Scores(
                latency_s=latency,
                tokens_per_s=-tokens,
                held=worth.room,
                goodput_per_s=-goodput,
            )
            yield Option(candidate=candidate, scores=scores, place=place)

    def _worth(self, candidate: Candidate, layout: Layout) -> Worth | None:
        """What `_reached` says; None too where the front beats it."""
        unit, costs = candidate.unit, self.costs
        call_s = partial(costs.call_s, unit, layout, candidate.arm)
        if not self._holds(candidate, layout):
            return None
        if costs.engine.paces.others:
            floor = self._score(candidate, candidate.best.held, costs.floor_s, layout)
            if self.front.beats(axes(floor), candidate.gpus):
                return None
        # Its latency with the rest of the bound: one call of several, often enough.
        latency = latency_s(self.load, candidate.replicas, candidate.limit, call_s)
        at_best = msgspec.structs.replace(candidate.best, latency_s=latency)
        if self.front.beats(axes(at_best), candidate.gpus):
            return None
        return self._reached(candidate, layout)

    def _holds(self, candidate: Candidate, layout: Layout) -> bool:
        unit = candidate.unit
        return self.costs.room(unit, layout) // unit.replicas >= candidate.limit

    def _reached(self, candidate: Candidate, layout: Layout) -> Worth | None:
        """What all replicas would reach if each were placed like this one.

        None where it does not hold them or has no price.
        """
        if not self._holds(candidate, layout):
            return None
        room = self.costs.room(candidate.unit, layout)
        found = self._score(candidate, room, self.costs.call_s, layout)
        if not math.isfinite(found.latency_s) or found.tokens_per_s == 0:
            return None
        return Worth(costs=(found.latency_s, -found.tokens_per_s, -found.goodput_per_s), room=room)

    def _score(
        self,
        candidate: Candidate,
        held: float,
        seconds: Callable[[Split, Layout, Arm | None, int, int], float],
        layout: Layout,
    ) -> Scores:
        call_s = partial(seconds, candidate.unit, layout, candidate.arm)
        return score(self.load, self.slo, candidate.replicas, candidate.limit, held, call_s)


def _first(candidate: Candidate) -> tuple[float, int, float]:
    return candidate.best.latency_s, candidate.gpus, -candidate.best.tokens_per_s
