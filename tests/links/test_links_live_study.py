"""`linkbound study` on a host with GPUs: the links stage measures, or says why it could not."""

from pathlib import Path
from typing import Any

import fake_cuda
import pytest
from msgspec import structs
from test_links_live_both import collectives

from linkbound.cli import main
from linkbound.errors import MissingExtra
from linkbound.evidence.study import Study
from linkbound.evidence.types import Provenance
from linkbound.links import Curve, CurveKey, CurvePoint
from linkbound.links.live import collective_records, cuda, request, state
from linkbound.links.types import Arm, Operation
from linkbound.study import sources
from linkbound.study.gather import gather
from linkbound.study.live_links import missing_jobs
from linkbound.study.reading import read_calibration, read_forecasts, read_verdicts
from linkbound.topology.types import Gpu, Machine, Pair, PairPath, PathKind
from linkbound.units import GIB

FOLDER = str(Path(__file__).parent)


def host() -> Machine:
    keys = [fake_cuda.uuid_of(number) for number in range(2)]
    gpus = tuple(
        Gpu(
            key=key,
            label=f"GPU{number}",
            uuid=key,
            vendor="NVIDIA",
            model="NVIDIA H200",
            memory_bytes=140 * GIB,
        )
        for number, key in enumerate(keys)
    )
    pairs = tuple(
        PairPath(pair=Pair(src=src, dst=dst), kind=PathKind.NVLINK, nvlink_count=18)
        for src in keys
        for dst in keys
        if src != dst
    )
    return Machine(sources=("fake",), gpus=gpus, pairs=pairs)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = request.to_jobs

    def fake_jobs(*arguments: Any) -> Any:
        names = {"driver": "fake_cuda:open_fake", "state": "fake_cuda:open_fake_state"}
        return tuple(structs.replace(job, **names) for job in whole(*arguments))

    monkeypatch.setattr(sources, "probe_machine", host)
    monkeypatch.setattr(request, "to_jobs", fake_jobs)
    monkeypatch.setattr(cuda, "require_gpu_extra", lambda: None)
    monkeypatch.setattr(state, "open_state", lambda *_name: fake_cuda.FakeState())
    monkeypatch.setattr(collective_records, "run_collectives", collectives())
    monkeypatch.setenv("PYTHONPATH", FOLDER)
    monkeypatch.setenv("FAKE_CUDA_FAULT", "")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("live")
def test_measured_curves_price_the_plans(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "llama-3.1-8b", "-C", "x.linkbound", "--concurrency", "1"]
    assert main.run(command) == 0
    out, err = capsys.readouterr()
    assert "Measured on this host" in out
    assert "recorded machine" not in out
    assert "links: running" in err
    with Study.open("x.linkbound") as study:
        assert study.verify() == []
        calls = read_forecasts(study, machine="this-host", arm=Arm.STAGED.value)
        constants = read_calibration(study, "this-host")[1]
        count = study.counts()
    (staged,) = [found for _, found in calls if found.plan.split.tp == 2]
    assert staged.decode is not None
    crossings = next(one for one in staged.decode.terms if one.kind.name == "CROSSINGS")
    # 65 calls of 9 us each: the fake's graph time at every size.
    assert crossings.time.value == pytest.approx(65 * 9e-6)
    assert crossings.provenance is Provenance.MEASURED
    assert "of another host" in constants.layer_s.basis
    assert main.run(command) == 0
    assert "links: already there" in capsys.readouterr().err
    with Study.open("x.linkbound") as study:
        assert study.counts() == count


@pytest.mark.usefixtures("live")
def test_links_measured_before_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["study", "llama-3.1-8b", "-C", "x.linkbound", "--until", "links"]) == 0
    with Study.open("x.linkbound") as study:
        curves = len(study.find("links.curve"))
    assert main.run(["study", "qwen3-32b", "-C", "x.linkbound", "--concurrency", "1"]) == 0
    capsys.readouterr()
    with Study.open("x.linkbound") as study:
        assert len(study.find("links.curve", machine="this-host")) == curves


@pytest.mark.usefixtures("live")
def test_without_the_extra_the_study_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise MissingExtra("cuda-bindings is not installed.", hint="pip install linkbound[gpu]")

    monkeypatch.setattr(cuda, "require_gpu_extra", missing)
    assert main.run(["study", "llama-3.1-8b", "-C", "x.linkbound", "--concurrency", "1"]) == 0
    capsys.readouterr()
    with Study.open("x.linkbound") as study:
        (record,) = study.find("links.skipped")
        verdict = read_verdicts(study, machine="this-host")[0][1]
    assert record.outcome.reason.code == "missing-extra"
    assert "linkbound[gpu]" in record.outcome.reason.text
    assert any("No time is known for all_reduce" in one for one in verdict.would_change)
    assert main.run(["report", "-C", "x.linkbound"]) == 0
    assert "cuda-bindings is not installed" in capsys.readouterr().out


@pytest.mark.usefixtures("live")
def test_what_was_skipped_is_measured_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise MissingExtra("cuda-bindings is not installed.", hint="pip install linkbound[gpu]")

    command = ["study", "llama-3.1-8b", "-C", "x.linkbound", "--concurrency", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(cuda, "require_gpu_extra", missing)
        assert main.run(command) == 0
        assert "UNDECIDED" in capsys.readouterr().out
    assert main.run(command) == 0
    out, err = capsys.readouterr()
    assert "links: running" in err
    assert "verdict: running" in err
    assert "No time is known" not in out
    with Study.open("x.linkbound") as study:
        assert study.find("links.curve", machine="this-host")
        found = read_verdicts(study, machine="this-host")[-1][1]
        report = gather(study, "this-host", "llama-3.1-8b", (found.load,))
    assert "linkbound links" not in [one.command for one in found.measurements]
    (shown,) = report.loads
    names = [one.plan.name for one in shown.forecasts]
    assert "tp2, staged" in names
    assert len(names) == len(set(names))
    assert not any("cuda-bindings" in one or "No time is known" in one for one in report.not_known)
    assert main.run(command) == 0
    err = capsys.readouterr().err
    assert "links: already there" in err
    assert "verdict: already there" in err


def quad() -> Machine:
    gpus = tuple(
        Gpu(key=f"k{number}", label=f"GPU{number}", uuid=f"k{number}", vendor="NVIDIA")
        for number in range(4)
    )
    return Machine(sources=("fake",), gpus=gpus)


def known(operation: Operation, group: tuple[str, ...], arm: Arm) -> Curve:
    return Curve(
        key=CurveKey(operation=operation, implementation="nccl", group=group, arm=arm),
        points=(CurvePoint(size_bytes=8192, time_s=1e-5),),
    )


def test_only_what_plans_need_and_nobody_measured_is_measured() -> None:
    machine = quad()
    labels = tuple(gpu.label for gpu in machine.gpus)
    copies, collectives = missing_jobs(machine, machine.gpus, ())
    assert {(job.group, job.arm, job.operations) for job in collectives} == {
        (group, arm, (Operation.ALL_REDUCE, Operation.SEND_RECV))
        for group in (labels[:2], labels)
        for arm in (Arm.P2P, Arm.STAGED)
    }
    pairs = [(src, dst) for src in labels for dst in labels if src != dst]
    assert {(cell.src, cell.dst) for job in copies for cell in job.cells} >= set(pairs)

    some = [
        known(Operation.ALL_REDUCE, labels[:2], Arm.P2P),
        known(Operation.ALL_REDUCE, labels, Arm.P2P),
        known(Operation.SEND_RECV, labels, Arm.P2P),
        *(known(Operation.COPY, pair, arm) for pair in pairs[1:] for arm in (Arm.P2P, Arm.STAGED)),
    ]
    copies, collectives = missing_jobs(machine, machine.gpus, some)
    assert {job.group: job.operations for job in collectives if job.arm is Arm.P2P} == {
        labels[:2]: (Operation.SEND_RECV,)
    }
    assert len([job for job in collectives if job.arm is Arm.STAGED]) == 2
    between = {(cell.src, cell.dst) for job in copies for cell in job.cells} & set(pairs)
    assert between == {pairs[0]}

    every = [
        *some,
        known(Operation.SEND_RECV, labels[:2], Arm.P2P),
        *(known(Operation.COPY, pairs[0], arm) for arm in (Arm.P2P, Arm.STAGED)),
        *(
            known(operation, group, Arm.STAGED)
            for operation in (Operation.ALL_REDUCE, Operation.SEND_RECV)
            for group in (labels[:2], labels)
        ),
    ]
    assert missing_jobs(machine, machine.gpus, every) == ((), ())
