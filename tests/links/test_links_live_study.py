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
from linkbound.links.live import collective_records, cuda, request, state
from linkbound.links.types import Arm
from linkbound.study import sources
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
