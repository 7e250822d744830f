"""Children: their environment, what they leave, and how they end."""

import _thread
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from profile_results import job

from linkbound.errors import MissingExtra, UsageError
from linkbound.evidence import ChildResult, Failed, Measured
from linkbound.links.types import Arm
from linkbound.profile import launch, leader, records
from linkbound.profile.launch import arm_environment, require_torch, run_job
from linkbound.profile.plan import interleave, plan_jobs, plan_shards, points, shard_points
from linkbound.profile.summary import rows
from linkbound.profile.types import Delay, Device, Point, chunks_of
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Phase


def _ended(**changes: object) -> ChildResult:
    whole = ChildResult(
        argv=("python",),
        exit_code=0,
        ended_by=None,
        stdout=b"",
        stderr=b"",
        stdout_dropped_bytes=0,
        stderr_dropped_bytes=0,
        duration_s=1.0,
        timed_out=False,
        stuck=False,
    )
    return replace(whole, **changes)


@pytest.mark.parametrize("arm", [None, *Arm])
def test_multicast_is_off_in_every_arm(arm: Arm | None) -> None:
    environment = arm_environment(job("tp2", arm))
    assert environment["NCCL_NVLS_ENABLE"] == "0"
    assert environment["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert environment["NVSHMEM_DISABLE_NVLS"] == "1"
    assert environment["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"
    assert (environment.get("NCCL_P2P_DISABLE") == "1") == (arm in (Arm.STAGED, Arm.NET))


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"timed_out": True, "exit_code": None}, "profile-hang", "did not end within 9 s"),
        ({"exit_code": 77, "stderr": b"rank 1: full\n"}, "profile-out-of-memory", "rank 1: full"),
        ({"exit_code": 5}, "profile-rank-died", "exit code 5. It said nothing."),
        ({"exit_code": None, "ended_by": "SIGKILL"}, "profile-rank-died", "SIGKILL"),
    ],
)
def test_how_a_child_ends_is_a_finding(changes: dict[str, object], code: str, said: str) -> None:
    (finding,) = launch._how_it_ended(job("tp2", Arm.P2P), _ended(**changes), 9, {})
    assert finding.code == code
    assert said in finding.seen
    assert "tp2 in arm p2p" in finding.seen


STACK = """Fatal Python error: Aborted

Current thread 0x1 (most recent call first):
  File "/x/torch/cuda/graphs.py", line 88 in replay
  File "/x/linkbound/profile/steps.py", line 68 in run
  File "/x/linkbound/profile/measure.py", line 150 in _plain
  File "/x/linkbound/profile/measure.py", line 90 in of
  File "/x/linkbound/profile/rank.py", line 60 in _run
"""


def test_a_rank_that_dies_of_a_fault_says_where_it_was() -> None:
    ended = _ended(exit_code=1, stderr=b"double free or corruption (out)\n")
    (finding,) = launch._how_it_ended(job("tp2", Arm.STAGED), ended, 9, {1: STACK})
    assert finding.seen == (
        "tp2 in arm staged ended with exit code 1. double free or corruption (out) "
        "Rank 1 was in steps.py:68 run, of measure.py:150 _plain, of measure.py:90 of."
    )


def test_a_child_that_ends_well_is_no_finding() -> None:
    assert launch._how_it_ended(job("tp2"), _ended(), 9, {}) == ()


CHANNEL = (
    "host:1:1 [{gpu}] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {how}\n"
    "host:1:1 [{gpu}] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via {how}\n"
)


@pytest.mark.parametrize(
    ("arm", "how", "path", "contradicted"),
    [
        (Arm.P2P, "P2P/CUMEM", "direct", False),
        (Arm.STAGED, "SHM/direct/direct", "staged", False),
        (Arm.P2P, "SHM/direct/direct", "staged", True),
        (Arm.STAGED, "P2P/CUMEM", "direct", True),
    ],
)
def test_the_log_must_show_the_path_of_the_arm(
    arm: Arm, how: str, path: str, contradicted: bool
) -> None:
    seen, findings = launch._path(job("tp2", arm), CHANNEL.format(gpu=0, how=how))
    assert seen == path
    assert [one.code for one in findings] == ["arm-contradicted"] * contradicted


def test_without_a_log_no_path_is_claimed() -> None:
    assert launch._path(job("tp2", Arm.P2P), "") == (None, ())
    assert launch._path(job("one"), CHANNEL) == (None, ())


def test_one_rank_that_dies_ends_the_others() -> None:
    well = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    badly = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"])
    try:
        assert leader._wait([well, badly]) == 9
    finally:
        well.kill()
        well.wait()


def test_a_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match=r"linkbound\[torch\]"):
        require_torch()


def test_arms_are_interleaved_and_a_single_gpu_has_none() -> None:
    splits = [parse_split(text) for text in ("one", "tp2", "x2")]
    jobs = plan_jobs(
        job("one").shape, splits, [Arm.P2P, Arm.STAGED], points([8, 1], 64), Device.CUDA, steps=4
    )
    order = [(one.split.name, one.arm) for _, one in interleave(jobs, 2)]
    assert order == 2 * [
        ("one GPU", None),
        ("tp2", Arm.P2P),
        ("tp2", Arm.STAGED),
        ("2 replicas", None),
    ]
    assert [point.name for point in jobs[0].points] == [
        "prefill 1 x 64",
        "decode 1 after 64",
        "prefill 8 x 64",
        "decode 8 after 64",
    ]


def test_shards_are_one_job_a_stage_over_a_grid() -> None:
    grid = shard_points([1, 4], [32], [64])
    assert [point.name for point in grid] == [
        "decode 1 after 64",
        "decode 4 after 64",
        "prefill 1 x 32",
        "prefill 1 x 32 after 64",
    ]
    jobs = plan_shards(job("one").shape, [parse_split("tp2 pp3")], grid, Device.CUDA, steps=4)
    assert [one.alone for one in jobs] == [0, 2, 4]
    assert {one.traced_steps for one in jobs} == {3}
    # On a processor a trace would show as calls what stands for peers that are not there.
    (alone,) = plan_shards(job("one").shape, [parse_split("tp2")], grid, Device.CPU, steps=4)
    assert alone.traced_steps == 0


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ("tp3", "256 rows of the padded vocabulary"),
        ("pp4", "the model has 3"),
        ("ep2 tp2", "the model has none"),
        ("tp2:3,1", "unequal tensor shares"),
    ],
)
def test_a_split_that_cannot_be_run_is_refused(split: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_jobs(
            job("one").shape,
            [parse_split(split)],
            [Arm.P2P],
            points([1], 8),
            Device.CUDA,
            steps=2,
        )


def _on_cpu(split: str, **changes: object):  # type: ignore[no-untyped-def]
    pytest.importorskip("torch", reason="the extra torch is not installed")
    asked = points([2], 8)
    return replace(
        job(split, Arm.STAGED, asked), device=Device.CPU, steps=4, traced_steps=2, **changes
    )


def test_a_child_of_two_ranks_leaves_every_point() -> None:
    result = run_job(_on_cpu("tp2"), limit_s=120)
    assert result.findings == ()
    assert len(result.ranks) == 4
    for one in result.ranks:
        # Of a prefill as many as fit into a second: two at least.
        least = 4 if one.point.phase is Phase.DECODE else 2
        assert least <= len(one.times_s) <= 4
        assert one.timeline is not None
        assert len(one.timeline.steps) == 2
    assert {one.rank for one in result.ranks} == {0, 1}


def test_a_shard_of_any_rank_runs_alone() -> None:
    whole = _on_cpu("tp2 pp3")
    result = run_job(replace(whole, alone=3, arm=None, traced_steps=0), limit_s=120)
    assert result.findings == ()
    assert [one.rank for one in result.ranks] == [3, 3]
    assert all(one.timeline is None for one in result.ranks)


def test_what_was_measured_before_a_rank_died_stays() -> None:
    small = points([2], 8)
    huge = Point(phase=Phase.DECODE, batch=1, tokens=1, context=10**12)
    result = run_job(replace(_on_cpu("tp2"), points=(*small, huge)), limit_s=120)
    (finding,) = result.findings
    assert finding.code == "profile-rank-died"
    assert "imports" not in finding.seen
    assert [(one.rank, one.point) for one in result.ranks] == [
        (rank, point) for rank in range(2) for point in small
    ]
    found = rows([result])
    assert [row.point for row in found] == list(small)


def test_a_full_gpu_ends_a_rank_with_a_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    import msgspec

    from linkbound.profile import rank

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(rank, "build", full)
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(_on_cpu("one")))
    code = rank.main([str(tmp_path / "job.json"), str(tmp_path), "0", "0"])
    assert code == launch.OUT_OF_MEMORY
    assert "rank 0: CUDA out of memory.\n" in capsys.readouterr().err


def test_calls_are_timed_alone_and_time_spent_is_told() -> None:
    result = run_job(_on_cpu("tp2"), limit_s=120)
    for one in result.ranks:
        assert len(one.with_calls_s) == len(one.products_s) == len(one.times_s)
        assert one.under_profiler_s == ()
    assert all(one.traffic is None for one in result.ranks)
    told = [part.split(" s ")[1].split(" (")[0] for part in result.spent.split("; ")]
    assert told == [
        "start, imports",
        "meeting",
        "weights",
        "prefill 2 x 8",
        "decode 2 after 8",
    ]


def test_calls_of_several_chunks_are_not_timed_alone() -> None:
    result = run_job(_on_cpu("tp2", chunk_tokens=8), limit_s=120)
    assert [bool(one.with_calls_s) for one in result.ranks] == [False, True] * 2


def test_sends_are_not_timed_alone() -> None:
    assert {one.with_calls_s for one in run_job(_on_cpu("pp2"), limit_s=120).ranks} == {()}


def test_a_prefill_of_many_chunks_is_not_repeated_for_more() -> None:
    asked = points([1, 8, 32, 128], 1024)
    prefills = [one.batch for one in asked if one.phase is Phase.PREFILL]
    assert prefills == [1, 8, 32]
    assert [one.batch for one in asked if one.phase is Phase.DECODE] == [1, 8, 32, 128]
    assert [one.batch for one in points([128], 1024)] == [128, 128]


@pytest.mark.parametrize(
    ("batch", "tokens", "chunks"),
    [(1, 1024, 1), (8, 1024, 1), (9, 1024, 2), (1, 8192, 1), (1, 8193, 2), (3, 6000, 3)],
)
def test_chunks_of_a_prefill(batch: int, tokens: int, chunks: int) -> None:
    point = Point(phase=Phase.PREFILL, batch=batch, tokens=tokens)
    assert chunks_of(point, 8192) == chunks
    assert chunks_of(replace(point, phase=Phase.DECODE), 8192) == 1


def test_a_hang_is_ended_and_named() -> None:
    result = run_job(_on_cpu("tp2", delay=Delay(rank=1, seconds=600)), limit_s=15)
    (finding,) = result.findings
    assert finding.code == "profile-hang"
    assert result.ranks == ()
    # Each rank says where it was; the log has the whole stack.
    assert re.search(r"Rank 0 was in transport\.py:\d+ all_reduce, of exchange\.py:", finding.seen)
    assert re.search(r"Rank 1 was in exchange\.py:\d+ <lambda>, of exchange\.py:", finding.seen)
    assert "of steps.py" not in finding.seen
    assert re.search(r"rank 1: .*\n(.*\n)*.*steps\.py", result.log)


def test_an_interrupt_keeps_the_points_that_the_child_had_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupt() -> None:
        """Once both ranks have a point."""
        ends_s = time.monotonic() + 100
        while time.monotonic() < ends_s:
            if sum(b"\n" in one.read_bytes() for one in tmp_path.glob("*/rank*.jsonl")) == 2:
                break
            time.sleep(0.05)
        _thread.interrupt_main()

    asked = replace(_on_cpu("tp2"), steps=1_000_000)
    watcher = threading.Thread(target=interrupt)
    watcher.start()
    result = run_job(asked, limit_s=120)
    watcher.join()
    assert result.interrupted
    assert result.findings == ()
    assert [row.point.phase for row in rows([result])] == [Phase.PREFILL]
    (kept, lost) = (records._outcome(result, point, None) for point in asked.points)
    assert isinstance(kept, Measured)
    assert isinstance(lost, Failed)
    assert lost.reason.code == "interrupted"
