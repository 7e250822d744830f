"""Patterns and what must come of them, plans, decisions on samples, evidence, rows, tables."""

from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.evidence.types import Reason
from linkbound.links.live import collective_measure
from linkbound.links.live.allreduce_own import (
    MOST_PUSHED_BYTES,
    PULL,
    PUSH,
    PUSH_BLOCKS,
    PUSH_THREADS,
    SLOTS,
    grid,
)
from linkbound.links.live.collective_evidence import (
    evidence_of,
    last_words,
    log_environment,
    read_logs,
)
from linkbound.links.live.collective_layout import (
    EXACT_BELOW,
    Expectation,
    chain_doublings,
    element,
    expectation,
    expected,
    has_in_place,
    layout,
    modulus,
)
from linkbound.links.live.collective_plan import (
    NET_MOST_BYTES,
    OPERATIONS,
    control_sizes,
    plan_collectives,
)
from linkbound.links.live.collective_rank import log_folder, proven
from linkbound.links.live.collective_rows import busbw_bytes_per_s, cells_of, row_of, row_without
from linkbound.links.live.collective_run import environment_of, path_findings
from linkbound.links.live.collective_table import render_collectives
from linkbound.links.live.collective_types import (
    GRAPH_MOST_BYTES,
    Cell,
    CollectiveJob,
    Family,
    Placement,
    Processes,
    RankReport,
)
from linkbound.links.live.measure import collective_jobs
from linkbound.links.live.nccl_library import error_text, library_paths, version_text
from linkbound.links.live.request import Asked
from linkbound.links.live.rows import Flag
from linkbound.links.types import Arm, Launch, Operation
from linkbound.topology.types import Gpu, Machine

RECORDED = resources.files("linkbound") / "recorded" / "h200-pair"
ranks_of = st.integers(2, 16)


def job_of(**changes: object) -> CollectiveJob:
    settings: dict[str, object] = {
        "family": Family.NCCL,
        "group": ("GPU0", "GPU1"),
        "devices": ("0000:00:06.0", "0000:00:07.0"),
        "arm": Arm.P2P,
        "sizes_bytes": (1024,),
        **changes,
    }
    return CollectiveJob(**settings)  # type: ignore[arg-type]


def cell_of(**changes: object) -> Cell:
    settings: dict[str, object] = {
        "operation": Operation.ALL_REDUCE,
        "implementation": "nccl",
        "size_bytes": 1024,
        "launch": Launch.GRAPH,
        "placement": Placement.OUT_OF_PLACE,
        **changes,
    }
    return Cell(**settings)  # type: ignore[arg-type]


def machine_of(gpus: int) -> Machine:
    return Machine(
        sources=("test",),
        gpus=tuple(
            Gpu(key=f"k{number}", label=f"GPU{number}", bus_id=f"0000:{number:02x}:00.0")
            for number in range(gpus)
        ),
    )


# What each collective means, said once more without the formulas of the package.
def by_definition(operation: Operation, rank: int, sent: list[list[int]], share: int) -> list[int]:
    total = [sum(values) for values in zip(*sent, strict=True)]
    match operation:
        case Operation.ALL_REDUCE:
            return total
        case Operation.REDUCE_SCATTER:
            return total[rank * share : (rank + 1) * share]
        case Operation.ALL_GATHER:
            return [value for values in sent for value in values]
        case Operation.ALL_TO_ALL:
            return [v for values in sent for v in values[rank * share : (rank + 1) * share]]
        case Operation.BROADCAST:
            return sent[0]
        case _:
            return sent[rank - 1]


@given(
    operation=st.sampled_from(OPERATIONS),
    ranks=ranks_of,
    elements=st.integers(16, 80),
    seed=st.integers(0, 2**32 - 1),
)
def test_expected_values_are_those_of_the_definition(
    operation: Operation, ranks: int, elements: int, seed: int
) -> None:
    below = modulus(ranks)
    shapes = [layout(operation, rank=rank, ranks=ranks, elements=elements) for rank in range(ranks)]
    sent = [
        [element(seed, rank, index, below) for index in range(shape.sent)]
        for rank, shape in enumerate(shapes)
    ]
    for rank, shape in enumerate(shapes):
        what = expectation(operation, rank=rank, ranks=ranks, share=shape.count)
        result = [expected(what, seed, index, below) for index in range(shape.received)]
        assert result == by_definition(operation, rank, sent, shape.count)


@given(ranks=ranks_of, seed=st.integers(0, 2**32 - 1), index=st.integers(0, 2**31))
def test_sums_are_exact_in_bfloat16(ranks: int, seed: int, index: int) -> None:
    below = modulus(ranks)
    total = sum(element(seed, rank, index, below) for rank in range(ranks))
    assert 0 <= total < EXACT_BELOW + ranks
    assert ranks * (below - 1) <= EXACT_BELOW


def test_patterns_differ_by_rank_seed_and_place() -> None:
    below = modulus(2)
    base = [element(1, 0, index, below) for index in range(4096)]
    for other in (
        [element(1, 1, index, below) for index in range(4096)],
        [element(2, 0, index, below) for index in range(4096)],
        [element(1, 0, index + 1, below) for index in range(4096)],
    ):
        same = sum(a == b for a, b in zip(base, other, strict=True))
        assert same < 4096 * 3 / below
    assert set(base) == set(range(below))


def test_pattern_is_pinned() -> None:
    # The kernel has the same arithmetic: a change on one side alone would fail on a GPU only.
    assert [element(7, 1, index, 128) for index in range(6)] == [21, 121, 0, 55, 110, 32]


@pytest.mark.parametrize(
    ("ranks", "calls", "doublings"),
    [(2, 1, 0), (2, 50, 49), (4, 50, 98), (8, 50, None), (8, 40, 117), (3, 2, None), (3, 1, 0)],
)
def test_chain(ranks: int, calls: int, doublings: int | None) -> None:
    assert chain_doublings(ranks, calls) == doublings


def test_doubled_sum() -> None:
    what = Expectation(source=0, summed=2, doublings=3)
    plain = Expectation(source=0, summed=2)
    assert expected(what, 5, 9, 128) == 8 * expected(plain, 5, 9, 128)


@given(operation=st.sampled_from(OPERATIONS), ranks=ranks_of, elements=st.integers(0, 10_000))
def test_layouts_stay_inside_the_buffer(operation: Operation, ranks: int, elements: int) -> None:
    for rank in range(ranks):
        shape = layout(operation, rank=rank, ranks=ranks, elements=elements)
        assert max(shape.sent, shape.received) <= elements
        if has_in_place(operation):
            assert shape.send_offset + shape.sent <= elements
            assert shape.receive_offset + shape.received <= elements


def test_bus_bandwidth_of_nccl_tests() -> None:
    # Rows of the recorded tables: size, microseconds, busbw as printed.
    rate = busbw_bytes_per_s(Operation.ALL_REDUCE, 2, 1 << 30, 3266.28e-6)
    assert rate == pytest.approx(328.73e9, rel=1e-4)
    assert busbw_bytes_per_s(Operation.ALL_GATHER, 8, 800, 1e-6) == pytest.approx(700e6)
    assert busbw_bytes_per_s(Operation.ALL_REDUCE, 8, 800, 1e-6) == pytest.approx(1400e6)
    assert busbw_bytes_per_s(Operation.SEND_RECV, 8, 800, 1e-6) == pytest.approx(800e6)


def test_plan_joins_p2p_and_nccl_and_leaves_own_kernels_to_p2p() -> None:
    jobs = plan_collectives(
        machine_of(2),
        [("GPU0", "GPU1")],
        [Arm.P2P, Arm.NCCL, Arm.STAGED, Arm.NET],
        [1024, 1 << 30],
        families=(Family.NCCL, Family.OWN),
    )
    seen = [(job.family, job.arm, job.processes) for job in jobs]
    assert seen == [
        (Family.NCCL, Arm.P2P, Processes.ONE_A_GPU),
        (Family.NCCL, Arm.STAGED, Processes.ONE_A_GPU),
        (Family.NCCL, Arm.NET, Processes.ONE_A_GPU),
        (Family.OWN, Arm.P2P, Processes.ONE_A_GPU),
        (Family.NCCL, Arm.P2P, Processes.ONE_FOR_ALL),
        (Family.NCCL, Arm.STAGED, Processes.ONE_FOR_ALL),
    ]
    assert jobs[0].devices == ("0000:00:00.0", "0000:01:00.0")
    assert jobs[2].sizes_bytes == (1024,)
    assert max(jobs[2].sizes_bytes) <= NET_MOST_BYTES
    assert jobs[3].operations == (Operation.ALL_REDUCE,)


def test_plan_beside_work() -> None:
    jobs = plan_collectives(
        machine_of(2),
        [("GPU0", "GPU1")],
        [Arm.P2P, Arm.NET],
        [8, 64, 512, 4096],
        families=tuple(Family),
        work=True,
        control=False,
    )
    beside = [job for job in jobs if job.work]
    assert [(job.family, job.arm) for job in beside] == [
        (Family.NCCL, Arm.P2P),
        (Family.OWN, Arm.P2P),
    ]
    assert all(job.operations == (Operation.ALL_REDUCE,) for job in beside)
    assert all(job.sizes_bytes == (8, 64, 4096) for job in beside)
    assert all(job.placements == (Placement.OUT_OF_PLACE,) for job in beside)


def test_a_full_sweep_has_work_and_every_family(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_of(2)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    without = collective_jobs(machine, machine.gpus, Asked())
    assert {job.family for job in without} == {Family.NCCL, Family.OWN}
    assert {job.arm for job in without if job.work} == {Arm.P2P, Arm.STAGED}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert Family.TORCH in {job.family for job in collective_jobs(machine, machine.gpus, Asked())}
    quick = collective_jobs(machine, machine.gpus, Asked(quick=True))
    assert {(job.family, job.work) for job in quick} == {(Family.NCCL, False)}


def test_torch_runs_where_it_is_named() -> None:
    machine, group = machine_of(2), [("GPU0", "GPU1")]
    plain = plan_collectives(machine, group, [Arm.P2P], [64])
    assert Family.TORCH not in {job.family for job in plain}
    named = plan_collectives(machine, group, [Arm.P2P, Arm.STAGED], [64], families=(Family.TORCH,))
    assert [(job.family, job.arm) for job in named] == [(Family.TORCH, Arm.P2P)]


def test_plan_of_several_groups() -> None:
    jobs = plan_collectives(
        machine_of(8),
        [("GPU0", "GPU3"), tuple(f"GPU{number}" for number in range(8))],
        [Arm.STAGED],
        [4096],
        families=(Family.NCCL,),
        control=False,
    )
    assert [len(job.group) for job in jobs] == [2, 8]
    assert jobs[0].devices == ("0000:00:00.0", "0000:03:00.0")


def test_gpu_without_a_bus_id_is_found_by_its_number() -> None:
    machine = Machine(sources=("t",), gpus=(Gpu(key="a", label="GPU0"), Gpu(key="b", label="GPU1")))
    jobs = plan_collectives(machine, [("GPU0", "GPU1")], [Arm.P2P], [64], families=(Family.NCCL,))
    assert jobs[0].devices == ("0", "1")


@pytest.mark.parametrize(
    ("sizes", "few"), [([4], (4,)), ([8, 4], (4, 8)), ([1, 2, 3, 4, 5], (1, 3, 5)), ([], ())]
)
def test_control_sizes(sizes: list[int], few: tuple[int, ...]) -> None:
    assert (control_sizes(sizes) if sizes else ()) == few


def test_cells_leave_out_what_does_not_exist() -> None:
    job = job_of(operations=OPERATIONS, sizes_bytes=(2 * GRAPH_MOST_BYTES, 2))
    cells = list(cells_of(job, (("nccl", ""),)))
    # 2 bytes are one element: too little to share.
    assert {cell.operation for cell in cells if cell.size_bytes == 2} == {
        Operation.ALL_REDUCE,
        Operation.BROADCAST,
        Operation.SEND_RECV,
    }
    assert all(cell.launch is Launch.EAGER for cell in cells if cell.size_bytes > 2)
    in_place = {cell.operation for cell in cells if cell.placement is Placement.IN_PLACE}
    assert in_place == set(OPERATIONS) - {Operation.ALL_TO_ALL, Operation.SEND_RECV}
    only_graph = list(
        cells_of(job_of(sizes_bytes=(1 << 30,), launches=(Launch.GRAPH,)), (("nccl", ""),))
    )
    assert [cell.launch for cell in only_graph] == [Launch.GRAPH] * 2


def test_row_counts_the_bytes_that_move() -> None:
    job = job_of(group=("GPU0", "GPU1", "GPU2"), devices=("0", "1", "2"))
    row = row_of(job, cell_of(operation=Operation.ALL_GATHER, size_bytes=100), RankReport(), {})
    assert row.size_bytes == 96  # 50 elements, 16 a rank
    assert row.method == "nccl all_gather bfloat16"


def test_rows_without_numbers_say_why() -> None:
    wrong = row_of(job_of(), cell_of(), RankReport(samples_s=(1e-6,), wrong=3), {})
    assert wrong.samples_s == ()
    assert wrong.time_s is None
    assert wrong.reason is not None
    skipped = row_without(job_of(), cell_of(), Reason(code="x", text="because"))
    assert skipped.reason == Reason(code="x", text="because")
    assert skipped.wrong is None


def test_cut_and_spread_samples_are_unsteady() -> None:
    steady = row_of(job_of(), cell_of(), RankReport(samples_s=(1.0, 1.0, 1.0)), {})
    cut = row_of(job_of(), cell_of(), RankReport(samples_s=(1.0, 2.0, 1.0)), {})
    whole = row_of(job_of(), cell_of(), RankReport(samples_s=(1.0, 2.0) * 5), {})
    assert (steady.flags, cut.flags, whole.flags) == ((), (Flag.UNSTEADY,), ())


@pytest.mark.parametrize(("call_s", "calls"), [(5e-6, 50), (1e-4, 5), (3e-4, 2), (1.0, 1), (0, 50)])
def test_calls_of_a_sample(call_s: float, calls: int) -> None:
    assert collective_measure.calls_of(call_s) == calls


def test_samples_stop_at_a_small_spread_or_when_time_is_short() -> None:
    job = job_of()
    assert collective_measure.first_samples(job, 5e-4) == 10
    assert collective_measure.first_samples(job, 40e-3) == 3
    assert collective_measure.more_samples(job, [1.0, 1.01, 1.0], 40e-3) == 0
    assert collective_measure.more_samples(job, [1.0, 1.5, 1.0], 40e-3) == 7
    assert collective_measure.more_samples(job, [1.0, 1.5, 1.0], 0.2) == 2
    assert collective_measure.more_samples(job, [1.0, 1.5, 1.0], 2.0) == 0


@pytest.mark.parametrize(
    ("log", "arm", "code"),
    [
        ("nccl-p2p-on.log", Arm.P2P, None),
        ("nccl-p2p-on.log", Arm.NCCL, None),
        ("nccl-p2p-on.log", Arm.STAGED, "transport-contradicts-arm"),
        ("nccl-p2p-off.log", Arm.STAGED, None),
        ("nccl-p2p-off.log", Arm.P2P, "transport-contradicts-arm"),
        ("nccl-p2p-off.log", Arm.NET, "transport-contradicts-arm"),
    ],
)
def test_path_of_a_recorded_log_against_the_arm(log: str, arm: Arm, code: str | None) -> None:
    evidence = evidence_of((RECORDED / log).read_text(encoding="utf-8"), arm)
    found = None if evidence.contradiction is None else evidence.contradiction.code
    assert found == code
    assert evidence.facts["nccl"] == "2.28.9"
    transport = "P2P/CUMEM x24" if log == "nccl-p2p-on.log" else "SHM/direct/direct x4"
    assert f"0->1 {transport}" in evidence.facts["transport"]


@pytest.mark.parametrize("text", ["", "  \n", "nothing of NCCL here\n", "\0\0\0"])
def test_no_channel_is_no_proof(text: str) -> None:
    evidence = evidence_of(text, Arm.P2P)
    assert evidence.contradiction is not None
    assert evidence.contradiction.code == "transport-unproven"


@given(text=st.text(max_size=300), arm=st.sampled_from(list(Arm)))
def test_any_log_is_read(text: str, arm: Arm) -> None:
    assert evidence_of(text, arm).contradiction is not None


def test_row_on_another_path_has_no_number_and_one_finding() -> None:
    evidence = evidence_of((RECORDED / "nccl-p2p-off.log").read_text(encoding="utf-8"), Arm.P2P)
    report = RankReport(samples_s=(1e-6, 1e-6))
    rows = [proven(job_of(), cell_of(size_bytes=size), report, evidence) for size in (64, 128)]
    assert all(row.samples_s == () and row.facts["path"] == "staged" for row in rows)
    (finding,) = path_findings(job_of(), rows)
    assert finding.code == "transport-contradicts-arm"
    assert "GPU0, GPU1, arm p2p" in finding.seen
    assert "SHM/direct/direct" in finding.seen


def test_logs_of_all_ranks_are_read(tmp_path: Path) -> None:
    (tmp_path / "nccl.host.1.log").write_bytes(b"one\n\xff\n")
    (tmp_path / "nccl.host.2.log").write_text("two\n")
    (tmp_path / "other.log").write_text("three\n")
    assert read_logs(tmp_path) == "one\n\ufffd\ntwo\n"
    assert log_folder(log_environment(tmp_path)) == tmp_path
    assert log_folder({}) is None


def test_last_words_prefer_warnings() -> None:
    text = "a NCCL INFO x\nb NCCL WARN broken\nc NCCL INFO y\n"
    assert last_words(text) == "b NCCL WARN broken"
    assert last_words("one\ntwo\nthree\nfour\n") == "two | three | four"


@pytest.mark.parametrize(
    ("arm", "wanted"),
    [
        (Arm.P2P, {"NCCL_P2P_LEVEL": "SYS"}),
        (Arm.STAGED, {"NCCL_P2P_DISABLE": "1"}),
        (Arm.NET, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),
    ],
)
def test_environment_of_an_arm(arm: Arm, wanted: dict[str, str], tmp_path: Path) -> None:
    environment = environment_of(job_of(arm=arm), tmp_path)
    ways = ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
    assert {name: environment[name] for name in ways if name in environment} == wanted
    assert environment["NCCL_DEBUG_FILE"].startswith(str(tmp_path))


@pytest.mark.parametrize("family", list(Family))
def test_multicast_is_off_in_every_family(family: Family, tmp_path: Path) -> None:
    environment = environment_of(job_of(family=family), tmp_path)
    assert environment["NCCL_NVLS_ENABLE"] == "0"
    assert environment["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert environment["NVSHMEM_DISABLE_NVLS"] == "1"
    assert environment["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"


@given(size=st.integers(1, MOST_PUSHED_BYTES // 8))
def test_pushed_packets_fit_the_slots(size: int) -> None:
    blocks, threads = grid(cell_of(implementation="one_shot", variant=PUSH, size_bytes=size * 8))
    assert (blocks, threads) <= (PUSH_BLOCKS, PUSH_THREADS)
    turns = -(-size // (blocks * threads))
    assert turns * threads <= SLOTS


def test_pull_uses_few_blocks_for_little() -> None:
    assert grid(cell_of(implementation="one_shot", variant=PULL, size_bytes=16))[0] == 1
    assert grid(cell_of(implementation="two_shot", variant=PULL, size_bytes=1 << 30))[0] == 64


@pytest.mark.parametrize(
    ("number", "text"), [(22809, "2.28.9"), (23007, "2.30.7"), (2708, "2.7.8"), (21100, "2.11.0")]
)
def test_version(number: int, text: str) -> None:
    assert version_text(number) == text


def test_error_text() -> None:
    assert error_text(2, "socket") == "ncclSystemError (socket)."
    assert error_text(99, "") == "code 99."


def test_library_of_wheels_is_found(tmp_path: Path) -> None:
    for place in ("nvidia/nccl/lib", "torch/lib"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "torch/lib/libnccl.so.2").touch()
    assert library_paths(tmp_path) == (tmp_path / "torch/lib/libnccl.so.2",)
    (tmp_path / "nvidia/nccl/lib/libnccl.so.2").touch()
    assert library_paths(tmp_path)[0] == tmp_path / "nvidia/nccl/lib/libnccl.so.2"


@pytest.mark.parametrize(
    "changes", [{"devices": ("0",)}, {"group": ("GPU0",), "devices": ("0",)}, {"dtype": "int8"}]
)
def test_impossible_jobs(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"GPUs|none of"):
        job_of(**changes)


def test_table_shows_arms_side_by_side() -> None:
    facts = {"transport": "0->1 P2P/CUMEM x24; 1->0 P2P/CUMEM x24"}
    fast = row_of(job_of(), cell_of(), RankReport(samples_s=(6.53e-6,), wrong=0), facts)
    slow = row_of(
        job_of(arm=Arm.STAGED),
        cell_of(),
        RankReport(samples_s=(10.16e-6,), wrong=0),
        {"transport": "0->1 SHM/direct/direct x4"},
    )
    lost = row_without(
        job_of(arm=Arm.NET), cell_of(), Reason(code="transport-unproven", text="No channel line.")
    )
    lines = render_collectives([fast, slow, lost]).splitlines()
    assert lines[0].startswith("nccl all_reduce bfloat16  GPU0,GPU1  graph   p2p: via 0->1 P2P/")
    assert lines[1].split() == [
        "size_bytes",
        "p2p_us",
        "p2p_busbw_GBps",
        "staged_us",
        "staged_busbw_GBps",
        "net_us",
        "net_busbw_GBps",
        "staged/p2p",
        "net/p2p",
        "#wrong",
    ]
    assert lines[2].split() == [
        *("1,024", "6.53", "0.157", "10.2", "0.101"),
        *("unproven[1]", "unproven[1]", "1.56", "unknown", "0"),
    ]
    assert lines[3] == "[1] No channel line."


def test_calls_beside_work_have_a_table_of_their_own() -> None:
    alone = row_of(job_of(), cell_of(), RankReport(samples_s=(6e-6,), wrong=0), {})
    beside = row_of(job_of(work=True), cell_of(), RankReport(samples_s=(9e-6,), wrong=0), {})
    first, second = render_collectives([alone, beside]).split("\n\n")
    assert "work" not in first
    assert "while all GPUs do fma work" in second
    assert "9.00" in second


def test_table_of_nothing() -> None:
    assert render_collectives([]) == ""
