"""What a placement is compared with: the machine's order, and the worst on purpose."""

import pytest
from msgspec.structs import replace
from search_cases import engine, islands, tree_of
from test_search_parts import LOAD, links

from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.predict.forecast import call_cost, replica_load
from linkbound.search import Objective, Search, answer
from linkbound.search.contrast import control, worst
from linkbound.topology.types import Machine


def searched(machine: Machine, load: Load = LOAD) -> Search:
    return Search(engine(machine, links(), read_model("llama-3.1-8b")), tree_of(machine), load)


def near(machine: Machine) -> Machine:
    """The same with processors of each node."""
    return replace(
        machine,
        gpus=tuple(
            replace(gpu, cpu_affinity=f"{(gpu.numa_node or 0) * 8}-{(gpu.numa_node or 0) * 8 + 7}")
            for gpu in machine.gpus
        ),
    )


def test_the_worst_is_slower_and_far_from_its_memory() -> None:
    machine = near(islands(2, 4))
    search = searched(machine, replace(LOAD, concurrency=1))
    option = search.best(Objective.LATENCY)
    best = answer(search, Objective.LATENCY).best
    assert option is not None
    assert best is not None
    bad = worst(search, option, best.plan)
    assert bad is not None
    assert bad.split == best.plan.split

    def seconds(plan) -> float:  # type: ignore[no-untyped-def]
        return call_cost(search.costs.engine, plan, replica_load(search.load, plan.split)).seconds

    assert seconds(bad) > 1.3 * seconds(best.plan)
    # Two islands, half of the group in each.
    assert {gpu in ("k0", "k1", "k2", "k3") for gpu in bad.placement.gpus} == {True, False}
    for key in bad.placement.gpus:
        gpu = machine.gpu(key)
        assert bad.placement.numa_nodes[key] != gpu.numa_node
        assert bad.placement.cores[key] != gpu.cpu_affinity
        assert best.plan.placement.numa_nodes.get(key, gpu.numa_node) == gpu.numa_node


def test_the_control_is_in_the_machine_s_order_and_bound_to_nothing() -> None:
    machine = near(islands(2, 2))
    search = searched(machine)
    best = answer(search, Objective.LATENCY).best
    assert best is not None
    plain = control(replace(best.plan), machine)
    assert list(plain.placement.gpus) == sorted(best.plan.placement.gpus)
    assert (plain.placement.cores, plain.placement.numa_nodes) == ({}, {})


def test_on_one_node_nothing_is_far() -> None:
    machine = near(
        replace(islands(2), gpus=tuple(replace(gpu, numa_node=0) for gpu in islands(2).gpus))
    )
    search = searched(machine, replace(LOAD, concurrency=1))
    option, best = search.best(Objective.LATENCY), answer(search, Objective.LATENCY).best
    assert option is not None
    assert best is not None
    bad = worst(search, option, best.plan)
    assert bad is not None
    assert bad.placement.numa_nodes == best.plan.placement.numa_nodes


@pytest.mark.parametrize("count", [2, 4])
def test_copies_are_all_placed_badly(count: int) -> None:
    machine = near(islands(2, count))
    search = searched(machine)
    option, best = search.best(Objective.THROUGHPUT), answer(search, Objective.THROUGHPUT).best
    assert option is not None
    assert best is not None
    bad = worst(search, option, best.plan)
    assert bad is not None
    assert len(set(bad.placement.gpus)) == len(best.plan.placement.gpus)
