"""What a placement is compared with: the machine's own order, and a bad one on purpose (D4)."""

from collections.abc import Mapping

import msgspec

from linkbound.predict.types import Plan
from linkbound.search.option import Option
from linkbound.search.search import Search
from linkbound.search.units import unit_of
from linkbound.splits.layouts import Layout, TooManyLayouts, layouts, without
from linkbound.splits.types import Placement
from linkbound.topology.types import Machine


def control(plan: Plan, machine: Machine) -> Plan:
    """The same split on its GPUs in the machine's order, bound to nothing: what nobody chose."""
    first = sorted(plan.placement.gpus, key=[gpu.key for gpu in machine.gpus].index)
    return msgspec.structs.replace(plan, placement=Placement(gpus=tuple(first)))


def worst(search: Search, option: Option, plan: Plan) -> Plan | None:
    """The same split where its calls take longest, bound to processors and memory far from it.

    None where the machine allows too many placements to look for the worst.
    """
    candidate, tree = option.candidate, search.placer.tree
    unit = candidate.unit

    def call_s(layout: Layout) -> float:
        return search.costs.call_s(
            unit, layout, candidate.arm, candidate.limit, search.load.output_tokens
        )

    marks, placed = tree.free, []
    try:
        for _ in range(candidate.copies):
            holding = [
                one
                for one in layouts(tree, unit_of(unit), marks)
                if search.costs.room(unit, one) // unit.replicas >= candidate.limit
            ]
            placed.append(max(holding, key=call_s))
            marks = without(marks, placed[-1])
    except (TooManyLayouts, ValueError):
        return None
    found = search.costs.plan(plan.split, placed, plan.arm)
    return msgspec.structs.replace(found, placement=_far(found.placement, search.costs.machine))


def _far(placement: Placement, machine: Machine) -> Placement:
    """Bound to another node than each GPU's; as it is where there is only one."""
    nodes = {
        gpu.numa_node: gpu.cpu_affinity
        for gpu in machine.gpus
        if gpu.numa_node is not None and gpu.cpu_affinity is not None
    }
    far: Mapping[str, int] = {
        key: max(nodes, key=lambda other: (other != node, other))
        for key, node in placement.numa_nodes.items()
        if node in nodes
    }
    cores = {key: str(nodes[node]) for key, node in far.items()}
    return msgspec.structs.replace(placement, cores=cores, numa_nodes=far)
