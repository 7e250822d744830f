"""Collectives on two real GPUs, against the tables of nccl-tests recorded on an H200 pair."""

from statistics import median

import pytest

from linkbound.links.arms import nccl_environment
from linkbound.links.live import collective_run
from linkbound.links.live.allreduce_own import PUSH, PUSH_APART
from linkbound.links.live.collective_plan import OPERATIONS, plan_collectives
from linkbound.links.live.collective_rows import busbw_bytes_per_s
from linkbound.links.live.collective_run import CollectiveResult, run_one
from linkbound.links.live.collective_types import CollectiveJob, Family, Placement, Processes
from linkbound.links.live.jobs import End
from linkbound.links.live.rows import LinkRow
from linkbound.links.live.state import open_state
from linkbound.links.types import Arm, Launch, Operation
from linkbound.topology.probe import probe_machine
from linkbound.topology.types import Machine

# nccl-tests all_reduce_perf -G 10 on the pair, out of place, microseconds.
GRAPH_TABLE_US = {
    Arm.P2P: {1024: 6.53, 4096: 6.67, 16384: 7.08, 65536: 7.42, 262144: 8.70, 1048576: 13.72},
    Arm.STAGED: {1024: 10.16, 4096: 10.22, 16384: 11.18, 65536: 15.80, 262144: 35.35},
}
GRAPH_TABLE_US[Arm.P2P][4194304] = 33.34
GRAPH_TABLE_US[Arm.STAGED] |= {1048576: 62.42, 4194304: 169.37}
BUSBW_GB_PER_S = {Arm.P2P: 328, Arm.STAGED: 27.0}

pytestmark = pytest.mark.gpu(2)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return probe_machine()


def pair_of_h200(machine: Machine) -> bool:
    return len(machine.gpus) == 2 and all("H200" in (gpu.model or "") for gpu in machine.gpus)


def run(machine: Machine, arm: Arm, sizes: list[int], **settings: object) -> CollectiveResult:
    group = tuple(gpu.label for gpu in machine.gpus[:2])
    settings = {"families": (Family.NCCL,), "control": False, **settings}
    (job,) = plan_collectives(machine, [group], [arm], sizes, **settings)  # type: ignore[arg-type]
    result = run_one(job)
    assert result.end is End.DONE, (result.findings, result.log[-2000:])
    return result


def times_us(rows: tuple[LinkRow, ...], launch: Launch, variant: str = "") -> dict[int, float]:
    return {
        row.size_bytes: median(row.samples_s) * 1e6
        for row in rows
        if row.launch is launch and row.facts["placement"] == "out_of_place"
        if row.method.partition(", ")[2] == variant
    }


@pytest.mark.parametrize("arm", [Arm.P2P, Arm.STAGED])
def test_graph_calls_are_as_fast_as_nccl_tests(machine: Machine, arm: Arm) -> None:
    table = GRAPH_TABLE_US[arm]
    result = run(machine, arm, list(table), operations=[Operation.ALL_REDUCE])
    times = times_us(result.rows, Launch.GRAPH)
    assert all(row.wrong == 0 for row in result.rows)
    assert {row.facts["path"] for row in result.rows} == {"direct" if arm is Arm.P2P else "staged"}
    if pair_of_h200(machine):
        ratios = {size: times[size] / table[size] for size in table}
        assert max(ratios.values()) <= 1.10, ratios


@pytest.mark.parametrize("arm", [Arm.P2P, Arm.STAGED])
def test_bus_bandwidth_of_a_gib(machine: Machine, arm: Arm) -> None:
    gib = 1 << 30
    result = run(machine, arm, [gib], operations=[Operation.ALL_REDUCE], launches=[Launch.EAGER])
    time_s = times_us(result.rows, Launch.EAGER)[gib] * 1e-6
    rate = busbw_bytes_per_s(Operation.ALL_REDUCE, 2, gib, time_s) / 1e9
    if pair_of_h200(machine):
        assert rate >= 0.98 * BUSBW_GB_PER_S[arm]


def test_own_all_reduce_of_8_kib(machine: Machine) -> None:
    result = run(machine, Arm.P2P, [8192, 262144], families=(Family.OWN,))
    assert all(row.wrong == 0 and row.samples_s for row in result.rows)
    if pair_of_h200(machine):
        assert times_us(result.rows, Launch.GRAPH, PUSH)[8192] <= 2.5
        assert times_us(result.rows, Launch.GRAPH, PUSH_APART)[8192] <= 3.5


@pytest.mark.parametrize("processes", list(Processes))
def test_every_operation_gives_right_results(machine: Machine, processes: Processes) -> None:
    group = tuple(gpu.label for gpu in machine.gpus)
    jobs = plan_collectives(
        machine,
        [group],
        [Arm.P2P],
        [4096, 1 << 20],
        operations=OPERATIONS,
        families=(Family.NCCL,),
    )
    (job,) = (job for job in jobs if job.processes is processes)
    result = run_one(job)
    assert result.end is End.DONE
    assert all(row.wrong == 0 and row.samples_s for row in result.rows)


def test_arm_on_another_path_gives_no_number(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        collective_run, "nccl_environment", lambda _arm: nccl_environment(Arm.STAGED)
    )
    result = run(machine, Arm.P2P, [4096], operations=[Operation.ALL_REDUCE])
    assert all(row.samples_s == () and row.wrong is None for row in result.rows)
    assert {row.reason.code for row in result.rows if row.reason} == {"transport-contradicts-arm"}
    assert [finding.code for finding in result.findings] == ["transport-contradicts-arm"]


@pytest.mark.parametrize("ranks", [3, 4])
def test_own_kernels_of_more_ranks_than_gpus_are_right(machine: Machine, ranks: int) -> None:
    # Ranks that share a GPU take turns of some milliseconds: right, if slow.
    names = [gpu.bus_id or str(number) for number, gpu in enumerate(machine.gpus[:2])]
    job = CollectiveJob(
        family=Family.OWN,
        group=tuple(f"R{rank}" for rank in range(ranks)),
        devices=tuple(names[rank % 2] for rank in range(ranks)),
        arm=Arm.P2P,
        sizes_bytes=(8192, 65536),
        samples=3,
        placements=(Placement.OUT_OF_PLACE,),
    )
    result = run_one(job)
    assert result.end is End.DONE, result.findings
    assert len(result.rows) == 2 * 4 * 2
    assert all(row.wrong == 0 and row.samples_s for row in result.rows)


def test_byte_counters_show_the_path(machine: Machine) -> None:
    grown = {}
    for arm in (Arm.P2P, Arm.STAGED):
        group = tuple(gpu.label for gpu in machine.gpus[:2])
        (job,) = plan_collectives(
            machine,
            [group],
            [arm],
            [1 << 28],
            operations=[Operation.ALL_REDUCE],
            families=(Family.NCCL,),
            control=False,
        )
        counters = run_one(job, state=open_state()).counters
        grown[arm] = counters.get(f"{group[0]} nvlink_tx_bytes")
    if pair_of_h200(machine):
        # At least five calls of 256 MiB in each placement, against what the driver itself sends.
        assert (grown[Arm.P2P] or 0) > 10 * (1 << 28)
        assert (grown[Arm.STAGED] or 0) < 1 << 24
