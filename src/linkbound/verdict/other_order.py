"""The same split on other GPUs, or in another order, where its calls take less (D3, D4)."""

from functools import partial

import msgspec

from linkbound.model.types import Load
from linkbound.predict.forecast import replica_load
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan
from linkbound.search.costs import Costs
from linkbound.search.placer import Placer
from linkbound.search.units import unit_of
from linkbound.splits.layouts import Layout
from linkbound.splits.packings import Worth
from linkbound.splits.tree import Tree


def best_order(engine: Engine, tree: Tree, plan: Plan, load: Load) -> Plan | None:
    """The split placed where its slowest replica takes least; None where it has no price."""
    costs, placer = Costs(engine, tree, load), Placer(tree)
    split = plan.split
    shares = split.ep > split.tp
    unit = split if shares else msgspec.structs.replace(split, replicas=1)
    share = replica_load(load, split).concurrency

    def worth_of(layout: Layout) -> Worth | None:
        seconds = costs.call_s(unit, layout, plan.arm, share, load.output_tokens)
        return Worth(costs=(seconds,)) if seconds < float("inf") else None

    costs.bound_s(unit, plan.arm, share, load.output_tokens)
    quickest = partial(costs.quickest, unit, plan.arm)
    copies = 1 if shares else split.replicas
    found = list(placer.best(unit_of(unit), copies, worth_of, quickest))
    if not found:
        return None
    _, place = min(found, key=lambda one: one[0].costs)
    return costs.plan(split, place(), plan.arm)
