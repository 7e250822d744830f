"""The copy worker on a CUDA that is not there: exact times; every fault at every method (L6)."""

from collections.abc import Callable
from pathlib import Path

import fake_cuda
import msgspec
import pytest

from linkbound.links.live.cell import Cell, CellKind, CopyJob, JobGpu
from linkbound.links.live.jobs import Line
from linkbound.links.live.plan import QUICK_RATE_BYTES, Scope, peer_cells, staged_cells
from linkbound.links.live.rows import Direction, Flag, LinkRow
from linkbound.links.live.tasks import METHODS, PEER_METHODS, STAGED_METHODS, Method
from linkbound.links.live.worker_copies import main
from linkbound.links.types import Arm, Operation

GPUS = tuple(JobGpu(label=f"GPU{n}", uuid=fake_cuda.uuid_of(n)) for n in range(2))
PAIRS = (("GPU0", "GPU1"), ("GPU1", "GPU0"))
SIZES = (4, 4096, 1024**2)
RATE_S = {
    "direct": fake_cuda.DIRECT_LATENCY_S + 4096 / fake_cuda.DIRECT_BYTES_PER_S,
    "staged": fake_cuda.STAGED_LATENCY_S + 4096 / fake_cuda.STAGED_BYTES_PER_S,
}
# What the fake calls the work of each method from GPU0 to GPU1, for faults.
LABELS = {
    Method.CE_PUSH: "copy_peer on 0: 0>1 direct",
    Method.CE_PULL: "copy_peer on 1: 0>1 direct",
    Method.SM_WRITE: "copy_sm on 0: 0>1",
    Method.SM_READ: "copy_sm on 1: 0>1",
    Method.DRIVER_PUSH: "copy_peer on 0: 0>1 staged",
    Method.DRIVER_PULL: "copy_peer on 1: 0>1 staged",
    Method.PINNED: "copy on 1: host>1",
    Method.PAGEABLE: "copy on 1: host>1",
    Method.H2D: "copy on 1: host>1",
    Method.D2H: "copy on 0: 0>host",
}
Run = Callable[..., tuple[int, list[Line]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run_cells(
        cells: tuple[Cell, ...],
        arm: Arm = Arm.P2P,
        fault: str = "",
        denied: str = "",
        condemned: tuple[str, ...] = (),
    ) -> tuple[int, list[Line]]:
        monkeypatch.setenv("FAKE_CUDA_FAULT", fault)
        monkeypatch.setenv("FAKE_CUDA_DENIED", denied)
        job = CopyJob(
            arm=arm,
            gpus=GPUS,
            cells=cells,
            condemned=condemned,
            driver="fake_cuda:open_fake",
            state="fake_cuda:open_fake_state",
        )
        job_file, row_file = tmp_path / "job", tmp_path / "rows"
        job_file.write_bytes(msgspec.json.encode(job))
        row_file.unlink(missing_ok=True)
        code = main([str(job_file), str(row_file)])
        lines = row_file.read_bytes().splitlines()
        return code, [msgspec.json.decode(line, type=Line) for line in lines]

    return run_cells


def rows_of(lines: list[Line]) -> list[LinkRow]:
    return [line.row for line in lines if line.row is not None]


def one(kind: CellKind, method: Method | None = None, size: int = 4096, **fields: object) -> Cell:
    ends = {"src": "GPU0", "dst": "GPU1", "method": method, "size_bytes": size}
    if method is Method.H2D:
        ends["src"] = "host"
    if method is Method.D2H:
        ends["dst"] = "host"
    return msgspec.convert({"kind": kind, **ends, **fields}, Cell)


def arm_of(method: Method) -> Arm:
    return METHODS[method].arm or Arm.STAGED


@pytest.mark.parametrize("method", [*PEER_METHODS, Method.DRIVER_PUSH, Method.DRIVER_PULL])
def test_a_curve_cell_times_one_call_exactly(run: Run, method: Method) -> None:
    code, lines = run((one(CellKind.CURVE, method),), arm_of(method))
    (row,) = rows_of(lines)
    expected_s = RATE_S["direct" if method in PEER_METHODS else "staged"]
    assert code == 0
    assert lines[-1].done
    # Ungated copies begin when they are queued: the fake's calls take a microsecond each.
    jitter_s = 0 if method in PEER_METHODS else 3e-6
    assert row.time_s == pytest.approx(expected_s, rel=1e-6, abs=jitter_s)
    assert (row.wrong, row.calls, row.numa_node) == (0, 1, None)
    assert len(row.samples_s) == 10
    assert row.timer == ("gate+events" if method in PEER_METHODS else "events")


@pytest.mark.parametrize("method", [Method.PINNED, Method.PAGEABLE])
def test_staging_of_our_own_moves_every_byte_through_the_host(run: Run, method: Method) -> None:
    _, lines = run((one(CellKind.CURVE, method, 64 * 1024**2, node=0),), Arm.STAGED)
    (row,) = rows_of(lines)
    assert row.wrong == 0
    assert row.bytes_per_s is not None
    legs = 2 if method is Method.PAGEABLE else 1
    assert row.bytes_per_s == pytest.approx(fake_cuda.HOST_BYTES_PER_S / legs, rel=0.1)
    assert row.numa_node == 0


@pytest.mark.parametrize("method", [Method.H2D, Method.D2H])
def test_host_legs_are_curves_of_their_own_operation(run: Run, method: Method) -> None:
    _, lines = run((one(CellKind.CURVE, method),), Arm.STAGED)
    (row,) = rows_of(lines)
    to_gpu = method is Method.H2D
    expected = Operation.HOST_TO_DEVICE if to_gpu else Operation.DEVICE_TO_HOST
    assert (row.operation, row.arm) == (expected, None)
    assert row.time_s == pytest.approx(fake_cuda.HOST_LATENCY_S + 4096 / fake_cuda.HOST_BYTES_PER_S)


def test_both_ways_share_one_window_and_show_each_rate(run: Run) -> None:
    _, lines = run((one(CellKind.BOTH_WAYS, Method.CE_PUSH, 64 * 1024**2),))
    (row,) = rows_of(lines)
    assert row.direction is Direction.BOTH_WAYS
    assert row.operation is Operation.COPY_BOTH_WAYS
    assert row.bytes_per_s == pytest.approx(2 * fake_cuda.DIRECT_BYTES_PER_S, rel=0.02)
    assert row.each_way_bytes_per_s == pytest.approx((fake_cuda.DIRECT_BYTES_PER_S,) * 2, rel=0.02)


def test_a_rate_cell_says_what_it_costs_the_cpu(run: Run) -> None:
    _, lines = run((one(CellKind.RATE, Method.CE_PUSH, QUICK_RATE_BYTES),))
    (row,) = rows_of(lines)
    assert row.calls == 16
    assert row.cpu_s_per_gb is not None
    assert 0 <= row.cpu_s_per_gb < 1
    assert row.bytes_per_s == pytest.approx(fake_cuda.DIRECT_BYTES_PER_S, rel=0.01)


def test_latencies_are_four_figures_with_their_own_names(run: Run) -> None:
    cells = (
        one(CellKind.ISSUE, Method.CE_PUSH, 16),
        one(CellKind.END_TO_END, Method.CE_PUSH, 16),
        one(CellKind.CHASE, size=0),
        one(CellKind.PINGPONG, size=0),
    )
    _, lines = run(cells)
    found = {row.method: row for row in rows_of(lines)}
    assert set(found) == {
        "issue interval ce_push",
        "end to end ce_push, polled",
        "end to end ce_push, asleep",
        "pointer chase, 128 B stride",
        "flag ping-pong, half a lap",
    }
    assert all(row.operation is Operation.LATENCY for row in found.values())
    assert found["issue interval ce_push"].time_s == pytest.approx(5e-6, rel=1e-3)
    assert found["pointer chase, 128 B stride"].time_s == pytest.approx(
        fake_cuda.CHASE_LOAD_S, rel=1e-3
    )
    assert found["flag ping-pong, half a lap"].time_s == pytest.approx(fake_cuda.LAP_S / 2)


def test_launch_ordering_and_synchronising_are_figures(run: Run) -> None:
    _, lines = run((one(CellKind.LAUNCH, size=0),))
    found = {row.method: row for row in rows_of(lines)}
    assert found["event record and wait across GPUs"].time_s == pytest.approx(fake_cuda.WAIT_S)
    assert len(found) == 4


@pytest.mark.parametrize("method", [Method.CE_PUSH, Method.SM_WRITE])
@pytest.mark.parametrize("pieces", [1, 16, 256])
def test_pieces_are_scattered_and_checked_piece_by_piece(
    run: Run, method: Method, pieces: int
) -> None:
    _, lines = run((one(CellKind.PIECES, method, 1024**2, pieces=pieces),))
    (row,) = rows_of(lines)
    assert (row.wrong, row.pieces) == (0, pieces)
    if method is Method.CE_PUSH:
        expected_s = pieces * fake_cuda.DIRECT_LATENCY_S + 1024**2 / fake_cuda.DIRECT_BYTES_PER_S
        assert row.time_s == pytest.approx(expected_s)


def test_members_of_a_set_have_rates_together_and_alone(run: Run) -> None:
    members = [
        {"src": "GPU0", "dst": "GPU1", "method": "ce_push"},
        {"src": "host", "dst": "GPU1", "method": "h2d"},
    ]
    cell = one(CellKind.SET, Method.CE_PUSH, 64 * 1024**2, name="pair with host", members=members)
    _, lines = run((cell,))
    rows = rows_of(lines)
    assert [row.group for row in rows] == [("GPU0", "GPU1"), ("host", "GPU1"), ("GPU0", "GPU1")]
    assert [row.concurrency for row in rows] == [cell.name, cell.name, f"{cell.name}, total"]
    assert all(row.retained_share == pytest.approx(1.0, rel=0.02) for row in rows[:2])
    # The slower member gets fewer calls, so that both last equally long.
    assert rows[0].calls > 2 * rows[1].calls


@pytest.mark.parametrize("work", ["fma", "memory"])
def test_a_copy_beside_busy_work_is_compared_with_itself_alone(run: Run, work: str) -> None:
    _, lines = run((one(CellKind.WORK, Method.CE_PUSH, 1024**2, name=work),))
    (row,) = rows_of(lines)
    assert row.concurrency == f"while both GPUs do {work} work"
    assert row.retained_share == pytest.approx(1.0, rel=0.02)


def test_counters_are_read_around_a_known_number_of_bytes(run: Run) -> None:
    _, lines = run((one(CellKind.PROOF, Method.CE_PUSH, 1024**2),))
    (row,) = rows_of(lines)
    assert row.counters["GPU0 nvlink_tx_bytes"] == 0
    assert row.facts["moved_bytes"] == str(17 * 1024**2)
    assert row.facts["GPU1 temperature_c"] == "40"
    assert row.samples_s == ()


def test_a_throttled_gpu_flags_its_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLOW_GPU", fake_cuda.uuid_of(1))
    _, lines = run((one(CellKind.CURVE, Method.CE_PUSH),))
    assert rows_of(lines)[0].flags == (Flag.THROTTLED, Flag.CACHED)


def every_cell(method: Method) -> tuple[tuple[Cell, ...], Arm]:
    scope = Scope(pairs=PAIRS, methods=(method,), sizes=SIZES, quick=True)
    cells = peer_cells(scope, ()) if method in PEER_METHODS else staged_cells(scope, ())
    return cells, arm_of(method)


@pytest.mark.parametrize("method", list(Method))
def test_one_wrong_byte_leaves_the_path_without_any_speed(run: Run, method: Method) -> None:
    cells, arm = every_cell(method)
    code, lines = run(cells, arm, fault=f"wrong@{LABELS[method]}")
    rows = [row for row in rows_of(lines) if row.method.endswith(method)]
    hit = [row for row in rows if row.wrong]
    assert code == 0
    assert hit
    bad = {row.group for row in hit}
    assert not any(row.samples_s for row in rows if row.group in bad)
    assert all(row.reason is not None for row in hit)
    # The other direction goes on.
    assert any(row.samples_s for row in rows if row.group not in bad)


def test_the_offset_of_the_first_wrong_byte_is_given(run: Run) -> None:
    cells = (one(CellKind.CURVE, Method.CE_PUSH),)
    _, lines = run(cells, fault=f"wrong@{LABELS[Method.CE_PUSH]}")
    (row,) = rows_of(lines)
    assert (row.wrong, row.wrong_at_bytes) == (1, 2048)


@pytest.mark.parametrize("method", list(Method))
def test_an_error_of_the_driver_ends_the_child_with_its_words(run: Run, method: Method) -> None:
    cells, arm = every_cell(method)
    code, lines = run(cells, arm, fault=f"error@{LABELS[method]}")
    assert code == 1
    assert lines[-1].fault is not None
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in lines[-1].fault


@pytest.mark.parametrize("method", [*PEER_METHODS, *STAGED_METHODS])
def test_a_time_that_is_no_number_is_no_sample(run: Run, method: Method) -> None:
    cells = (one(CellKind.CURVE, method),)
    _, lines = run(cells, arm_of(method), fault=f"nan@{LABELS[method]}")
    (row,) = rows_of(lines)
    assert row.samples_s == ()
    assert row.reason is not None
    assert row.reason.code == "no-valid-sample"


def test_a_dropped_wait_between_the_legs_is_caught(run: Run) -> None:
    cells = (
        one(CellKind.VERIFY, Method.PINNED, 0, sizes=[1024**2]),
        one(CellKind.CURVE, Method.PINNED, 1024**2),
    )
    _, lines = run(cells, Arm.STAGED, fault="drop_wait@")
    checked, timed = rows_of(lines)
    assert checked.wrong == 1024**2 // 4
    assert timed.samples_s == ()


@pytest.mark.parametrize("kind", [CellKind.CHASE, CellKind.PINGPONG])
def test_lost_loads_and_laps_are_wrong(run: Run, kind: CellKind) -> None:
    _, lines = run((one(kind, size=0),), fault=f"wrong@{kind.value}")
    (row,) = rows_of(lines)
    assert row.wrong
    assert row.samples_s == ()


def test_access_that_is_denied_one_way_leaves_out_that_way_alone(run: Run) -> None:
    cells = tuple(one(CellKind.CURVE, method) for method in PEER_METHODS)
    _, lines = run(cells, denied="0>1")
    outcome = {row.method: bool(row.samples_s) for row in rows_of(lines)}
    # GPU0 may not reach into GPU1: what GPU1 does itself still works.
    assert outcome == {"ce_push": False, "ce_pull": True, "sm_write": False, "sm_read": True}
    denied = [row.reason.code for row in rows_of(lines) if row.reason is not None]
    assert denied == ["denied", "denied"]


def test_a_gpu_that_cuda_does_not_see_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_cuda, "uuid_of", lambda ordinal: f"GPU-other-{ordinal}")
    code, lines = run((one(CellKind.CURVE, Method.CE_PUSH),))
    assert code == 1
    assert "CUDA does not see GPU0, GPU1" in (lines[-1].fault or "")


def test_what_an_earlier_child_condemned_stays_without_a_speed(run: Run) -> None:
    _, lines = run((one(CellKind.CURVE, Method.SM_READ),), condemned=("GPU0>GPU1 direct",))
    (row,) = rows_of(lines)
    assert row.reason is not None
    assert row.reason.code == "path-failed"
