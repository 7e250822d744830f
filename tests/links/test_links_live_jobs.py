"""Jobs and sweeps in real children: hangs, crashes, torn lines are findings, the rest goes on."""

import json
import os
from pathlib import Path

import fake_cuda
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.evidence.child import child_environment
from linkbound.links.live.cell import Cell, CellKind, CopyJob, JobGpu
from linkbound.links.live.faults import corruption, without_time
from linkbound.links.live.jobs import End, Line, Lines, _decoded, read_job, run_job
from linkbound.links.live.plan import Scope, peer_cells
from linkbound.links.live.rows import Direction, LinkRow
from linkbound.links.live.sampling import Rule, is_enough, sample
from linkbound.links.live.sweep import sweep
from linkbound.links.live.tasks import Method
from linkbound.links.types import Arm, Operation

FOLDER = str(Path(__file__).parent)
GPUS = tuple(JobGpu(label=f"GPU{n}", uuid=fake_cuda.uuid_of(n)) for n in range(2))
SCOPE = Scope(
    pairs=(("GPU0", "GPU1"), ("GPU1", "GPU0")),
    methods=(Method.CE_PUSH, Method.CE_PULL),
    sizes=(4096,),
    quick=True,
)


def job(cells: tuple[Cell, ...] = (), driver: str = "fake_cuda:open_fake") -> CopyJob:
    return CopyJob(
        arm=Arm.P2P,
        gpus=GPUS,
        cells=cells or peer_cells(SCOPE, ()),
        driver=driver,
        state="fake_cuda:open_fake_state",
    )


def environment(fault: str = "") -> dict[str, str]:
    return child_environment({"PYTHONPATH": FOLDER, "FAKE_CUDA_FAULT": fault})


def swept(fault: str) -> tuple[list[LinkRow], list[str], int]:
    cells: list[Cell] = []
    result = sweep(
        [job()],
        environment(fault),
        on_cell=cells.append,
        on_row=lambda _cell, _row: None,
        stall_s=1.5,
    )
    assert cells
    return list(result.rows), [finding.code for finding in result.findings], result.children


def speeds(rows: list[LinkRow], src: str) -> set[str]:
    return {row.method for row in rows if row.group[0] == src and row.samples_s}


def test_a_job_without_faults_gives_all_rows_in_one_child() -> None:
    rows, codes, children = swept("")
    assert (codes, children) == ([], 1)
    assert {"ce_push", "ce_pull", "issue interval ce_push"} <= speeds(rows, "GPU0")


@pytest.mark.parametrize(
    ("fault", "code"),
    [("hang", "p2p-hang"), ("abort", "transfer-error"), ("error", "transfer-error")],
)
def test_a_fault_costs_its_pair_and_a_fresh_child_does_the_rest(fault: str, code: str) -> None:
    rows, codes, children = swept(f"{fault}@copy_peer on 0: 0>1")
    assert (codes, children) == ([code], 2)
    assert speeds(rows, "GPU0") == set()
    assert {"ce_push", "ce_pull"} <= speeds(rows, "GPU1")
    failed = next(row for row in rows if row.reason is not None and row.reason.code in set(End))
    assert failed.group == ("GPU0", "GPU1")


def test_wrong_bytes_are_one_finding_a_path_and_need_no_new_child() -> None:
    rows, codes, children = swept("wrong@copy_peer on 1: 1>0")
    assert (codes, children) == (["p2p-corruption"], 1)
    assert speeds(rows, "GPU1") == set()
    assert {"ce_push", "ce_pull"} <= speeds(rows, "GPU0")


def test_a_child_that_cannot_start_leaves_every_cell_with_a_reason() -> None:
    result = sweep(
        [job(driver="fake_cuda:no_such_function")],
        environment(),
        on_cell=lambda _cell: None,
        on_row=lambda _cell, _row: None,
    )
    assert [finding.code for finding in result.findings] == ["transfer-error"]
    assert "no_such_function" in result.log
    assert len(result.rows) == len(job().cells)
    assert {row.reason.code for row in result.rows if row.reason} == {"not-run"}


def test_rows_come_while_the_child_runs_and_are_kept_after_a_hang() -> None:
    cells = (
        Cell(kind=CellKind.CURVE, src="GPU0", dst="GPU1", method=Method.CE_PULL, size_bytes=4096),
        Cell(kind=CellKind.CURVE, src="GPU0", dst="GPU1", method=Method.CE_PUSH, size_bytes=4096),
    )
    seen: list[str] = []
    result = run_job(
        "worker_copies",
        job(cells),
        environment("hang@copy_peer on 0"),
        60,
        on_row=lambda row: seen.append(row.method),
        stall_s=1.5,
    )
    assert (result.end, len(result.rows)) == (End.HANG, 1)
    assert result.begun == "GPU0 -> GPU1, ce_push, curve, 4 KiB"
    assert seen == ["ce_pull"]
    (finding,) = result.findings
    assert (finding.code, finding.severity.value) == ("p2p-hang", "error")
    assert result.begun in finding.seen


def test_the_time_limit_of_a_job_holds_too() -> None:
    result = run_job("worker_copies", job(), environment("hang@copy_peer on 0"), 1.5, stall_s=60)
    assert (result.end, result.stuck) == (End.HANG, False)


def test_an_interrupt_ends_the_child_and_goes_up() -> None:
    processes: list[int] = []

    def interrupt(_what: str) -> None:
        processes.append(os.getpid())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job("worker_copies", job(), environment("hang@"), 60, on_begin=interrupt)
    assert processes == [os.getpid()]


def test_lines_are_written_through_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    lines = Lines(path)
    lines.begin("copy")
    lines.fault("error")
    plain = [json.loads(line) for line in path.read_bytes().splitlines()]
    lines.close()
    assert plain[0]["process"] == os.getpid()
    assert [plain[1]["begin"], plain[2]["fault"]] == ["copy", "error"]


def test_a_child_reads_the_job_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_bytes(msgspec.json.encode(job()))
    read, lines = read_job([str(path), str(tmp_path / "rows")], CopyJob)
    lines.close()
    assert read == job()


@given(st.binary(max_size=300))
def test_any_bytes_are_lines_or_torn(data: bytes) -> None:
    assert all(line is None or isinstance(line, Line) for line in _decoded(data))


def row(**fields: object) -> LinkRow:
    plain = {
        "operation": "copy",
        "implementation": "sm",
        "method": "sm_read",
        "group": ["GPU0", "GPU1"],
        "size_bytes": 100,
    }
    return msgspec.convert({**plain, **fields}, LinkRow)


def test_rows_have_the_median_the_rate_and_the_retained_share() -> None:
    timed = row(samples_s=[1.0, 3.0, 2.0], alone_s=1.0)
    assert (timed.time_s, timed.bytes_per_s, timed.retained_share) == (2.0, 50.0, 0.5)
    both = row(samples_s=[2.0], direction="both_ways")
    assert both.bytes_per_s == 100.0
    empty = row(alone_s=1.0)
    assert (empty.time_s, empty.bytes_per_s, empty.retained_share) == (None, None, None)
    assert both.direction is Direction.BOTH_WAYS
    assert both.operation is Operation.COPY


def test_corruption_is_named_by_the_worst_row_of_a_path() -> None:
    rows = [row(wrong=2, wrong_at_bytes=8), row(wrong=5, wrong_at_bytes=4096), row(wrong=0), row()]
    (finding,) = corruption(rows)
    assert finding.code == "p2p-corruption"
    assert "5 wrong elements, the first at byte 4,096" in finding.seen
    (staged,) = corruption([row(wrong=1, arm="staged")])
    assert staged.code == "wrong-values"
    assert corruption([row(wrong=0)]) == []


def test_times_that_are_no_numbers_are_found() -> None:
    reason = {"code": "no-valid-sample", "text": "x"}
    (finding,) = without_time([row(reason=reason), row(reason=reason), row()])
    assert finding.code == "transfer-error"


def ticking(step_s: float):  # type: ignore[no-untyped-def]
    now_s = iter(step_s * n for n in range(10**6))
    return lambda: next(now_s)


def test_cheap_samples_are_taken_until_there_are_enough() -> None:
    found = sample(lambda: 1.0, Rule(), ticking(1e-4))
    assert (len(found.samples_s), found.steady) == (10, True)


def test_dear_samples_stop_at_a_small_spread() -> None:
    found = sample(lambda: 1.0, Rule(), ticking(0.05))
    assert (len(found.samples_s), found.steady) == (5, True)


def test_dear_samples_with_a_large_spread_stop_at_the_cap() -> None:
    values = iter([1.0, 2.0] * 20)
    found = sample(lambda: next(values), Rule(cap_s=0.31), ticking(0.05))
    assert (len(found.samples_s), found.steady) == (7, False)


def test_what_is_no_time_is_no_sample_and_ends() -> None:
    assert sample(lambda: float("nan"), Rule(), ticking(1e-6)).samples_s == ()
    assert sample(lambda: None, Rule(), ticking(1e-6)).samples_s == ()
    assert sample(lambda: 0.0, Rule(), ticking(1e-6)).steady is False


@given(st.lists(st.floats(1e-9, 1e3), max_size=12), st.floats(0, 10))
def test_ten_samples_are_always_enough_and_four_never(samples: list[float], spent_s: float) -> None:
    if len(samples) >= 10:
        assert is_enough(samples, spent_s, Rule())
    if len(samples) < 5:
        assert not is_enough(samples, spent_s, Rule())
