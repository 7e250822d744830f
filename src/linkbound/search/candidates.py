"""Splits, copies, batch limits and arms that are looked at, and what each reaches at best (D1)."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.plans import arms_of
from linkbound.search.balance import divided
from linkbound.search.costs import Costs
from linkbound.search.placer import EXACT_GPUS, Placer
from linkbound.search.scoring import score
from linkbound.search.types import Scores
from linkbound.search.units import unit_of, unit_splits
from linkbound.serve.load_types import Slo
from linkbound.splits.layouts import Layout
from linkbound.splits.types import Split


class Candidate(NamedTuple):
    """Copies of a unit with a batch limit, not placed yet."""

    best: Scores
    """No placement reaches more."""
    unit: Split
    copies: int
    limit: int
    arm: Arm | None = None
    """None too where no arm is chosen yet."""

    @property
    def replicas(self) -> int:
        return self.copies * self.unit.replicas

    @property
    def gpus(self) -> int:
        return self.copies * self.unit.gpus


def candidates(costs: Costs, placer: Placer, slo: Slo | None) -> Iterator[Candidate]:
    """Every candidate that some GPUs of the machine hold."""
    alike = _alike(costs, placer)
    few = placer.n_gpus > EXACT_GPUS
    for unit in unit_splits(costs.engine.shape, placer.n_gpus, few=few):
        kinds = placer.some(unit_of(unit), 1) if alike else placer.kinds(unit_of(unit))
        for staged in (unit,) if alike else stagings(costs, unit, kinds):
            rooms = [costs.room(staged, layout) for layout in kinds]
            for copies in copy_counts(costs.load, unit, placer.n_gpus):
                for limit in _limits(costs, staged, rooms, few):
                    call_s = partial(costs.bound_of_all_s, staged)
                    replicas, held = copies * staged.replicas, copies * max(rooms)
                    best = score(costs.load, slo, replicas, limit, held, call_s)
                    yield Candidate(best=best, unit=staged, copies=copies, limit=limit)


def in_each_arm(costs: Costs, slo: Slo | None, candidate: Candidate) -> Iterator[Candidate]:
    """The candidate in every arm that makes a difference to it."""
    for arm in arms_of(candidate.unit):
        call_s = partial(costs.bound_s, candidate.unit, arm)
        replicas, held = candidate.replicas, candidate.best.held
        best = score(costs.load, slo, replicas, candidate.limit, held, call_s)
        yield candidate._replace(arm=arm, best=best)


def copy_counts(load: Load, unit: Split, n_gpus: int) -> Iterable[int]:
    """How many copies: all numbers on a small machine; on a large one those that change a share.

    On a large machine copies are alike: more of them that leave a replica's share of the load as it
    is change nothing but throughput and room, which the most copies have most of.
    """
    most = n_gpus // unit.gpus
    if unit.replicas > 1:
        return range(1, 2)
    if n_gpus <= EXACT_GPUS:
        return range(1, most + 1)
    shares = {-(-load.concurrency // copies) for copies in range(1, most + 1)}
    least = {-(-load.concurrency // share) for share in shares}
    return sorted({min(copies, most) for copies in (*least, most)})


def stagings(costs: Costs, unit: Split, kinds: Iterable[Layout]) -> tuple[Split, ...]:
    """The unit with the engine's own stages, and with stages by speed or memory of their GPUs."""
    found = [unit]
    if unit.pp > 1:
        layers = len(costs.engine.shape.layers)
        for layout in kinds:
            for weights in (costs.speeds(unit, layout), costs.memories(unit, layout)):
                if len(set(weights)) > 1:
                    stages = divided(layers, weights)
                    found.append(msgspec.structs.replace(unit, stage_layers=stages))
    return tuple(dict.fromkeys(found))


def _alike(costs: Costs, placer: Placer) -> bool:
    """Whether all GPUs have one model and one memory."""
    gpus = [costs.machine.gpus[number] for number in placer.tree.root.gpus]
    return len({(gpu.model, gpu.memory_bytes) for gpu in gpus}) == 1


def _limits(costs: Costs, unit: Split, rooms: Iterable[float], few: bool) -> list[int]:
    """Sizes of the engine's graphs, and the most that each kind of GPUs holds a replica.

    `few` takes every second size: the largest and what is below it.
    """
    rules = costs.engine.rules
    most = {min(room // unit.replicas, rules.max_sequences) for room in rooms}
    ladder = (*rules.graph_sizes, rules.max_sequences)[:: -2 if few else -1]
    return sorted({int(one) for one in (*ladder, *most) if 1 <= one <= max(most, default=0)})
