"""The verb: what it prints, keeps and refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from profile_models import CONFIGS
from profile_results import job, result

from linkbound.cli import profile
from linkbound.errors import InputError, Interrupted, NothingToMeasure, UsageError
from linkbound.evidence import Failed, Measured, Study
from linkbound.profile.launch import JobResult
from linkbound.profile.types import Job
from linkbound.topology import probe
from linkbound.topology.types import Machine


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["mixture"]), encoding="utf-8")
    return str(path)


def test_a_dry_run_shows_every_child_and_runs_none(model: str) -> None:
    ran = CliRunner().invoke(
        profile.command,
        [model, "--split", "one", "--split", "tp2", "--arm", "p2p", "--arm", "staged", "--dry-run"],
    )
    assert ran.exit_code == 0
    lines = ran.output.splitlines()
    assert lines[0] == "6 children, one after another; nothing was run."
    assert [line.split(",")[0] for line in lines[1::3]] == 2 * ["one GPU", "tp2 p2p", "tp2 staged"]
    assert "NCCL_P2P_DISABLE=1 NCCL_NVLS_ENABLE=0" in lines[9]


def test_a_dry_run_as_json(model: str) -> None:
    ran = CliRunner().invoke(
        profile.command, [model, "--split", "tp2", "--shards", "64", "--dry-run", "--json"]
    )
    children = json.loads(ran.output)["children"]
    assert [child["processes"] for child in children] == [1, 1]
    assert children[0]["points"][0] == "decode 1 after 1,024"


def test_the_plan_shows_the_rank_that_is_slowed(model: str) -> None:
    arguments = [model, "--split", "one", "--split", "tp2", "--slow", "1:100us", "--dry-run"]
    lines = CliRunner().invoke(profile.command, arguments).output.splitlines()
    assert "waits" not in lines[1]
    assert lines[4].endswith("rank 1 waits 100 us before each collective")
    children = json.loads(CliRunner().invoke(profile.command, [*arguments, "--json"]).output)
    assert [child["slow"] for child in children["children"][:2]] == [
        None,
        {"rank": 1, "delay_s": pytest.approx(1e-4)},
    ]


def test_without_enough_gpus_nothing_is_run(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "require_torch", lambda: None)
    monkeypatch.setattr(probe, "probe_machine", lambda: Machine(sources=()))
    ran = CliRunner().invoke(profile.command, [model, "--split", "tp2"])
    assert isinstance(ran.exception, NothingToMeasure)
    assert "0 GPUs are here, 2 are needed." in str(ran.exception)


def meminfo(folder: Path, available: str) -> Path:
    (folder / "proc").mkdir()
    text = f"MemTotal:       65536000 kB\nMemFree:  1 kB\n{available}"
    (folder / "proc" / "meminfo").write_text(text)
    return folder


def test_without_enough_memory_no_processor_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama-3.1-8b in float32: 8.03 G parameters of 4 bytes, 29.92 GiB, and its cache."""
    root = meminfo(tmp_path, "MemAvailable:   31457280 kB\n")
    read = probe.read_available_bytes
    monkeypatch.setattr(probe, "read_available_bytes", lambda: read(root))
    monkeypatch.setattr(profile, "require_torch", lambda: None)

    def run(*_: object, **__: object) -> JobResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(profile, "run_job", run)
    words = ["llama-3.1-8b", "--split", "one", "--split", "tp2", "--arm", "staged"]
    small = ["--device", "cpu", "--batch", "1", "--prompt", "64"]
    ran = CliRunner().invoke(profile.command, [*words, *small, "--batch", "8"])
    assert isinstance(ran.exception, NothingToMeasure)
    said = str(ran.exception)
    assert "needs at least 30.08 GiB of this host's memory, 30.00 GiB are available." in said
    assert "--override num_hidden_layers=2" in said
    ran = CliRunner().invoke(profile.command, [*words, *small, "--override", "num_hidden_layers=2"])
    assert not isinstance(ran.exception, NothingToMeasure)
    alone = ["llama-3.1-8b", "--split", "tp2", "--shards", "64", *small]
    ran = CliRunner().invoke(profile.command, alone)
    assert not isinstance(ran.exception, NothingToMeasure)


def test_a_kernel_that_does_not_say_its_memory(tmp_path: Path) -> None:
    assert probe.read_available_bytes(tmp_path) is None
    assert probe.read_available_bytes(meminfo(tmp_path, "")) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "1,x"], "--batch '1,x'"),
        (["--slow", "1"], "--slow '1'"),
        (["--shards", "0"], "--shards '0'"),
        (["--split", "tq2"], "'tq2' is not a split"),
        (["--slow", "1:soon"], "'soon' is not a time"),
        (["--slow", "9:100us", "--split", "tp2"], "names rank 9, tp2 has 2 ranks"),
        (["--slow", "1:0s"], "slows nothing"),
        (["--slow", "0:1ms", "--split", "one"], "slows nothing"),
        (["--slow", "1:1ms", "--shards", "64"], "slows nothing"),
        (["--limit", "foo"], "--limit 'foo'"),
        (["--limit", "-1s"], "--limit '-1s'"),
        (["--limit", "0s"], "--limit '0s'"),
        (["--shards", "64", "--arm", "p2p"], "--arm has no effect: a shard alone"),
        (["--shards", "64", "--micro-batches", "2"], "--micro-batches has no effect"),
        (["--split", "tp2", "--micro-batches", "2"], "--micro-batches has no effect"),
        (["--split", "x2", "--arm", "p2p"], "--arm has no effect: no split"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    model: str, arguments: list[str], said: str
) -> None:
    ran = CliRunner().invoke(profile.command, [model, *arguments, "--dry-run"])
    assert isinstance(ran.exception, UsageError)
    assert said in str(ran.exception)


@pytest.mark.parametrize("option", [("--split", "tp2"), ("-C", "s.linkbound"), ("--dry-run",)])
def test_what_reading_a_trace_leaves_unread_is_refused(option: tuple[str, ...]) -> None:
    ran = CliRunner().invoke(profile.command, ["--trace", "rank0.json", *option])
    assert isinstance(ran.exception, UsageError)
    assert "has no effect: --trace runs nothing and keeps nothing." in str(ran.exception)


def test_an_interrupt_shows_what_was_measured(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = iter([result(job("one"), [[0.004]])])

    def run(*_: object, **__: object) -> JobResult:
        try:
            return next(done)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(profile, "require_torch", lambda: None)
    monkeypatch.setattr(profile, "run_job", run)
    ran = CliRunner().invoke(
        profile.command, [model, "--split", "one", "--split", "tp2", "--device", "cpu"]
    )
    assert isinstance(ran.exception, Interrupted)
    assert "shown and not kept: no study was named with -C." in str(ran.exception)
    assert "decode 4 after 16  4.00 ms" in ran.stdout


def test_points_of_an_interrupted_child_are_kept(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran_jobs = []

    def run(of: Job, **_: object) -> JobResult:
        ran_jobs.append(of)
        return replace(result(of, [[0.004]]), interrupted=True)

    monkeypatch.setattr(profile, "require_torch", lambda: None)
    monkeypatch.setattr(profile, "run_job", run)
    path = tmp_path / "s.linkbound"
    ran = CliRunner().invoke(
        profile.command,
        [model, "--split", "one", "--device", "cpu", "--batch", "4", "--prompt", "16",
         "--repeats", "2", "-C", str(path)],
    )  # fmt: skip
    assert isinstance(ran.exception, Interrupted)
    assert len(ran_jobs) == 1
    assert "decode 4 after 16  4.00 ms" in ran.stdout
    with Study.open(path) as study:
        found = {one.subject["phase"]: one.outcome for one in study.find("profile.run")}
    assert isinstance(found["decode"], Measured)
    assert isinstance(found["prefill"], Failed)
    assert found["prefill"].reason.code == "interrupted"


def _trace(path: Path, late_us: float) -> str:
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": {"device": 0}}
        for name, ts, dur in (("gemm", 0, 40 + late_us), (nccl, 40 + late_us, 60 - late_us))
    ]
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return str(path)


def test_traces_of_two_ranks(tmp_path: Path) -> None:
    names = [_trace(tmp_path / "a.json", 0), _trace(tmp_path / "b.json", 20)]
    ran = CliRunner().invoke(profile.command, ["--trace", names[0], "--trace", names[1]])
    assert ran.exception is None
    lines = [line.split() for line in ran.output.splitlines()]
    assert lines[1][:2] == ["0", "0"]
    assert " ".join(lines[1][2:10]) == "100 us 40.0 us 40.0 us 20.0 us"
    assert " ".join(lines[2][2:10]) == "100 us 60.0 us 40.0 us 0 us"
    assert ran.output.splitlines()[-1] == "Collectives align the ranks' clocks within 50.0 us."


def test_one_trace_alone_says_what_it_cannot_tell(tmp_path: Path) -> None:
    name = _trace(tmp_path / "a.json", 0)
    ran = CliRunner().invoke(profile.command, ["--trace", name, "--json"])
    (step,) = json.loads(ran.output)["steps"]
    assert step["parts"]["unmatched_s"] == pytest.approx(60e-6)
    assert "every rank's trace" in CliRunner().invoke(profile.command, ["--trace", name]).output


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    ran = CliRunner().invoke(profile.command, ["--trace", str(tmp_path / "none.json")])
    assert isinstance(ran.exception, InputError)
    assert isinstance(CliRunner().invoke(profile.command, []).exception, UsageError)


def test_a_profile_on_a_cpu_from_end_to_end(model: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra torch is not installed")
    path = tmp_path / "s.linkbound"
    ran = CliRunner().invoke(
        profile.command,
        [model, "--split", "one", "--split", "tp2", "--arm", "staged", "--device", "cpu",
         "--batch", "2", "--prompt", "16", "--steps", "4", "--repeats", "1", "--json",
         "-C", str(path)],
    )  # fmt: skip
    assert ran.exception is None, ran.output
    document = json.loads(ran.stdout)
    assert [(row["split"], row["arm"], row["phase"]) for row in document["rows"]] == [
        ("one GPU", None, "prefill"),
        ("one GPU", None, "decode"),
        ("tp2", "staged", "prefill"),
        ("tp2", "staged", "decode"),
    ]
    for row in document["rows"]:
        assert row["issued_bytes"] == row["crossing_bytes"]
        parts = row["parts"]
        total = sum(
            parts[name]
            for name in (
                "compute_s", "communication_s", "waiting_s", "unmatched_s", "host_copy_s", "gap_s",
            )
        )  # fmt: skip
        assert total == pytest.approx(parts["step_s"])
        assert row["unexplained_s"] == pytest.approx(row["step_s"] - parts["step_s"])
    assert document["findings"] == []
    with Study.open(path) as study:
        assert len(study.find("profile.run")) == 4
        assert len(study.find("profile.parts")) == 4
        assert study.verify() == []
