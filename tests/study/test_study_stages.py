"""A study end to end: stages run once, answers under one name never mix, every figure resolves."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import Studied
from linkbound.cli.main import run
from linkbound.errors import StudyError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Skipped
from linkbound.model.read_model import bundled_names
from linkbound.model.types import Load
from linkbound.study.gather import gather
from linkbound.study.machines import machine_files
from linkbound.study.sources import read_recorded, recorded_names
from linkbound.study.stages import Stage, request, run_stages

ON_H200 = ("--machine", "h200-pair", "-q")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ids(path: Path) -> list[str]:
    with Study.open(path) as study:
        assert study.verify() == []
        return [record.id for record in study.records()]


def asked(*concurrencies: int, model: str = "llama-3.1-8b", **options: Any) -> Any:
    loads = tuple(
        Load(prompt_tokens=128, output_tokens=16, concurrency=one) for one in concurrencies
    )
    return request(model, read_recorded("h200-pair"), loads, **options)


def test_stopping_and_going_on_repeats_nothing(capsys: Any) -> None:
    path = Path("llama-3.1-8b-on-h200-pair.linkbound")
    assert run(["study", "llama-3.1-8b", *ON_H200, "--until", "links"]) == 0
    out = capsys.readouterr()
    assert out.out == f"{path}\n"
    first = ids(path)
    with Study.open(path) as study:
        assert study.find("links.curve")
        assert study.find("predict.call") == []
    assert run(["study", "llama-3.1-8b", "--machine", "h200-pair", "--until", "links"]) == 0
    assert "topology: already there" in capsys.readouterr().err
    assert ids(path) == first
    assert run(["study", "llama-3.1-8b", *ON_H200]) == 0
    page = capsys.readouterr().out.splitlines()[-1]
    assert page == "llama-3.1-8b-on-h200-pair.html"
    assert Path(page).read_text().startswith("<!doctype html>")
    whole = ids(path)
    assert whole[: len(first)] == first
    assert run(["study", "llama-3.1-8b", *ON_H200]) == 0
    assert ids(path) == whole
    # In one go the same records come out.
    assert run(["study", "llama-3.1-8b", *ON_H200, "-C", "other.linkbound"]) == 0
    assert sorted(ids(Path("other.linkbound"))) == sorted(whole)


def test_each_stage_once_and_in_order(tmp_path: Path) -> None:
    calls: list[tuple[str, bool]] = []
    with Study.create(tmp_path / "a.linkbound") as study:
        for until in (Stage.MODEL, Stage.SERVE, Stage.VERDICT):
            run_stages(study, asked(1), lambda stage, held: calls.append((stage, held)), until)
    names = [stage.value for stage in Stage]
    assert calls == [
        *((name, False) for name in names[:3]),
        *((name, True) for name in names[:3]),
        *((name, False) for name in names[3:5]),
        *((name, True) for name in names[:5]),
        *((name, False) for name in names[5:]),
    ]


def test_more_loads_and_models_go_into_one_file(tmp_path: Path) -> None:
    with Study.create(tmp_path / "a.linkbound") as study:
        for one in (asked(1), asked(1, 2), asked(1, model="qwen3-32b"), asked(1)):
            run_stages(study, one, lambda _stage, _held: None)
        assert len(study.find("verdict.load", model="llama-3.1-8b")) == 2
        assert len(study.find("verdict.load", model="qwen3-32b")) == 1
        assert len(study.find("topology.machine")) == 1
        report = gather(study, "h200-pair", "llama-3.1-8b", asked(1, 2).loads)
        plans = [len(shown.forecasts) for shown in report.loads]
        assert plans == [7, 7]


@pytest.mark.parametrize(
    "other",
    [
        lambda: asked(1, min_gain=0.2),
        lambda: asked(1, overrides={"max_position_embeddings": "4096"}),
        lambda: _without_runs(asked(1)),
    ],
    ids=["min gain", "override", "files of the machine"],
)
def test_other_inputs_under_the_same_names_are_refused(other: Any, tmp_path: Path) -> None:
    with Study.create(tmp_path / "a.linkbound") as study:
        run_stages(study, asked(1), lambda _stage, _held: None)
        before = study.counts()
        with pytest.raises(StudyError, match=r"already holds the stage .* made from other inputs"):
            run_stages(study, other(), lambda _stage, _held: None)
        assert study.counts() == before


def _without_runs(one: Any) -> Any:
    sources = msgspec.structs.replace(one.sources, runs=None)
    return msgspec.structs.replace(one, sources=sources)


def referred(value: object) -> set[str]:
    """Every record id inside the values of a report."""
    if isinstance(value, dict):
        found: set[str] = set()
        for key, inner in value.items():
            if str(key).endswith("record_ids") or key == "parents":
                found |= set(inner)
            else:
                found |= referred(inner)
        return found
    if isinstance(value, list | tuple):
        return {one for inner in value for one in referred(inner)}
    return set()


def test_every_record_that_the_report_names_is_in_the_study(studied: Studied) -> None:
    loads = tuple(Load(prompt_tokens=1024, output_tokens=65, concurrency=one) for one in (1, 8, 32))
    with Study.open(studied.path) as study:
        report = gather(study, "h200-pair", "llama-3.1-8b", loads)
        named = referred(msgspec.to_builtins(report))
        assert len(named) > 50
        assert [one for one in named if not study.has(one)] == []
        assert {one.id for one in report.evidence} == {record.id for record in study.records()}
        for shown in report.loads:
            for forecast in shown.forecasts:
                assert forecast.record_ids
            assert all(reason.text for reason in shown.verdict.reasons)
        # From a verdict every chain ends at a file that somebody recorded.
        for record in study.find("verdict.load"):
            roots = {study.get(one).kind for one in _roots(study, record.id)}
            assert {"serve.run", "topology.source", "links.source", "model.shape"} <= roots


def _roots(study: Study, record_id: str) -> set[str]:
    seen, todo, roots = set(), [record_id], set()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        parents = study.get(one).parents
        todo += parents
        if not parents:
            roots.add(one)
    return roots


def test_every_record_id_in_the_page_resolves(studied: Studied) -> None:
    text = studied.page.read_text()
    with Study.open(studied.path) as study:
        known = {record.id for record in study.records()}
        blobs = {blob for record in study.records() for blob in record.blobs}
    whole = set(re.findall(r"\b[0-9a-f]{64}\b", text))
    assert whole - known - blobs == set()
    # Twelve decimal digits may as well be a size in bytes.
    short = {one for one in re.findall(r"\b[0-9a-f]{12}\b", text) if not one.isdigit()}
    assert len(short) > 50
    assert [one for one in short if not any(full.startswith(one) for full in known | blobs)] == []


def test_an_edited_record_shows(studied: Studied, tmp_path: Path, capsys: Any) -> None:
    path = studied.copy(tmp_path)
    assert run(["check", str(path)]) == 0
    capsys.readouterr()
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name FROM sqlite_master WHERE type='trigger'").fetchall()
    for (name,) in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(
        "UPDATE records SET content = replace(content, '\"keep\"', '\"reject\"') "
        "WHERE kind = 'verdict.load'"
    )
    connection.commit()
    connection.close()
    assert run(["check", str(path)]) == 1
    assert "verdict.load" in capsys.readouterr().out
    assert run(["verdict", "-C", str(path)]) == 1
    assert "linkbound check" in capsys.readouterr().err


def test_the_last_line_is_the_page_and_the_machine_is_named(studied: Studied) -> None:
    lines = studied.out.splitlines()
    assert lines[-1] == studied.page.name
    assert "recorded machine" in studied.out
    assert "h200-pair" in studied.out
    assert "No GPU here: figures are from the recorded machine h200-pair" in studied.err
    assert "predict: running" in studied.err
    assert "\x1b" not in studied.out + studied.err


def test_verdicts_of_the_issue_in_the_text(studied: Studied) -> None:
    heads = [
        line for line in studied.out.splitlines() if re.match(r"(KEEP|REJECT|UNDECIDED)", line)
    ]
    assert [head.split(":")[0] for head in heads] == ["KEEP", "KEEP", "REJECT"]


@pytest.mark.parametrize("machine", recorded_names())
@pytest.mark.parametrize("model", bundled_names())
def test_every_page_is_below_the_budget(model: str, machine: str, tmp_path: Path) -> None:
    path = tmp_path / "s.linkbound"
    assert run(["study", model, "--machine", machine, "-q", "-C", str(path)]) == 0
    assert path.with_suffix(".html").stat().st_size < 500_000


def test_a_second_machine(capsys: Any) -> None:
    assert run(["study", "llama-3.1-8b", "--machine", "5060ti-pair", "-q"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "llama-3.1-8b-on-5060ti-pair.html"
    assert "5060ti-pair" in out
    assert "gains latency, not bandwidth" in out
    with Study.open("llama-3.1-8b-on-5060ti-pair.linkbound") as study:
        loads = tuple(
            Load(prompt_tokens=1024, output_tokens=256, concurrency=one) for one in (1, 32)
        )
        report = gather(study, "5060ti-pair", "llama-3.1-8b", loads)
    assert dict(report.excluded) == {
        "GPU0": "GPU0 is NVIDIA GeForce RTX 5070, the others are NVIDIA GeForce RTX 5060 Ti: "
        "the slower sets the pace; CUDA refuses peer access between it and GPU1, GPU2 "
        "although nvidia-smi says OK."
    }
    assert [finding.code for finding in report.findings].count("gpu-excluded") == 1
    assert all("CUDA_VISIBLE_DEVICES=1,2" in one for one in report.commands)
    assert all("CUDA_DEVICE_ORDER=PCI_BUS_ID" in one for one in report.commands)
    labels = {key: gpu.label for gpu in report.machine.gpus for key in (gpu.key,)}
    for shown in report.loads:
        assert shown.forecasts
        for forecast in shown.forecasts:
            assert "GPU0" not in {labels[key] for key in forecast.plan.placement.gpus}
            width = forecast.latency_s.high - forecast.latency_s.low
            assert width / 2 / forecast.latency_s.value > 0.15


def test_any_verdict_is_a_success(capsys: Any) -> None:
    big = ["study", "llama-3.1-70b", "--machine", "5060ti-pair", "-q", "--concurrency", "1"]
    assert run(big) == 0
    out = capsys.readouterr().out
    assert "UNDECIDED: no plan holds the load. Nothing here runs it" in out
    load = ["--prompt", "128", "--output", "65", "--concurrency", "128"]
    assert run(["study", "llama-3.1-8b", *ON_H200, *load]) == 0
    assert "REJECT" in capsys.readouterr().out


def test_what_does_not_fit_at_once_is_said(tmp_path: Path) -> None:
    with Study.create(tmp_path / "a.linkbound") as study:
        one = request(
            "llama-3.1-8b",
            read_recorded("h200-pair"),
            (Load(prompt_tokens=8192, output_tokens=8, concurrency=180),),
        )
        run_stages(study, one, lambda _stage, _held: None)
        calls = study.find("predict.call")
        skipped = {
            record.subject["split"]: record.outcome.reason
            for record in calls
            if isinstance(record.outcome, Skipped)
        }
        # One GPU holds about 112 such sequences, two copies twice as many.
        assert set(skipped) == {"one GPU"}
        assert skipped["one GPU"].code == "does-not-fit-at-once"
        assert "180 sequences at once do not fit, at most ~11" in skipped["one GPU"].text
        report = gather(study, "h200-pair", "llama-3.1-8b", one.loads)
        assert any("180 sequences at once" in text for text in report.not_known)


def test_commands_of_a_plan_open_and_close_what_its_arm_says(tmp_path: Path) -> None:
    with Study.create(tmp_path / "a.linkbound") as study:
        run_stages(study, asked(1, 200), lambda _stage, _held: None)
        report = gather(study, "h200-pair", "llama-3.1-8b", asked(1, 200).loads)
    assert [one.verdict.plan.name for one in report.loads if one.verdict.plan] == [
        "tp2, p2p",
        "2 replicas",
    ]
    split, one, other = report.commands
    for each in (split, one, other):
        assert "NCCL_NVLS_ENABLE=0" in each
        assert "TORCH_SYMM_MEM_DISABLE_MULTICAST=1" in each
    assert "CUDA_VISIBLE_DEVICES=0,1 " in split
    assert "--tensor-parallel-size 2 " in split
    assert "NCCL_P2P_LEVEL=SYS" in split
    # Two copies are two servers, each on its own GPU.
    assert "CUDA_VISIBLE_DEVICES=0 " in one
    assert "CUDA_VISIBLE_DEVICES=1 " in other
    assert "--port 8000" in one
    assert "--port 8001" in other


def test_what_belongs_to_runs_tells_nothing_of_the_machine() -> None:
    names = [file.name for file in machine_files(read_recorded("h200-pair"))]
    assert "engine-reduce.jsonl" in names
    assert not [name for name in names if name.startswith("vllm-0.24.0/")]
