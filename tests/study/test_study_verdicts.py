"""Verdicts of whole studies: machines without curves, faults on links, what flips an answer."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.evidence.types import Finding, Level, Severity
from linkbound.links.live.records import Origin, append_finding
from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.predict.plans import candidate_splits
from linkbound.report.types import Report
from linkbound.splits.types import Placement, Split
from linkbound.study.commands import binding_words
from linkbound.study.gather import gather
from linkbound.study.reading import read_machine_record
from linkbound.study.sources import read_recorded, read_sources
from linkbound.study.stages import request, run_stages
from linkbound.verdict.types import Aim, Answer


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(prompt: int = 1024, output: int = 64, concurrency: int = 8) -> Load:
    return Load(prompt_tokens=prompt, output_tokens=output, concurrency=concurrency)


def recorded_files(machine: str, *names: str) -> Path:
    """A folder with some files of a recorded machine, NVLink edited to a path over the host."""
    folder = Path("box")
    folder.mkdir()
    for name in names:
        text = (files("linkbound") / "recorded" / machine / name).read_text()
        (folder / name).write_text(text.replace("NV18", "SYS"))
    return folder


def report_of(source: str, model: str, *loads: Load) -> Report:
    sources = read_sources(source)
    with Study.create(Path("a.linkbound")) as study:
        run_stages(study, request(model, sources, loads), lambda _stage, _held: None)
        return gather(study, sources.name, model, loads)


def test_a_machine_without_curves_does_not_reject_its_split() -> None:
    folder = recorded_files("h200-pair", "nvidia-smi.txt", "smi-q.txt", "topo-m.txt")
    verdict = report_of(str(folder), "llama-3.1-8b", load()).loads[0].verdict
    by_name = {one.plan.name: one for one in verdict.plans}
    assert by_name["tp2, p2p"].answer is Answer.UNDECIDED
    assert by_name["tp2, staged"].answer is Answer.UNDECIDED
    assert [one.code for one in by_name["tp2, staged"].reasons] == ["no-curve"]
    assert verdict.answer is Answer.UNDECIDED
    assert "linkbound links" in [one.command for one in verdict.measurements]
    (shown,) = [one for one in verdict.measurements if one.command == "linkbound links"]
    assert "tp2, staged" in shown.what


def test_a_machine_without_curves_keeps_what_only_a_split_holds() -> None:
    folder = recorded_files("5060ti-pair", "topo-m.txt", "topo-p2p.txt", "machine.toml")
    devices = (files("linkbound") / "recorded" / "5060ti-pair" / "p2p-test.txt").read_text()
    (folder / "devices.txt").write_text("".join(devices.splitlines(keepends=True)[:10]))
    verdict = report_of(str(folder), "llama-3.1-8b", load(concurrency=1)).loads[0].verdict
    assert verdict.answer is Answer.KEEP
    assert verdict.plan is not None
    assert verdict.plan.split == Split(tp=2)
    assert "nothing here runs it" not in verdict.headline
    kept = [one for one in verdict.plans if one.answer is Answer.KEEP]
    assert {one.comparisons[0].aim for one in kept} == {Aim.CAPACITY}
    assert all(one.reasons[0].code == "capacity-only" for one in kept)


def test_the_break_even_is_over_what_decides() -> None:
    """With 32 at once tp2 beats one GPU well; two copies decide, and one flip is over them."""
    verdict = report_of("h200-pair", "llama-3.1-8b", load(concurrency=32)).loads[0].verdict
    by_name = {one.plan.name: one for one in verdict.plans}
    direct = by_name["tp2, p2p"]
    assert direct.break_even is not None
    assert direct.break_even.baseline.name == "2 replicas"
    assert direct.break_even.bytes_per_s is not None or direct.break_even.latency_s is not None
    # No link makes a pipeline of this model pay against two copies.
    assert by_name["pp2, p2p"].break_even is None


def test_experts_inside_a_tensor_group_are_no_plan_of_their_own() -> None:
    with Study.create(Path("a.linkbound")) as study:
        sources = read_recorded("h200-pair")
        asked = request("mixtral-8x7b", sources, (load(),))
        run_stages(study, asked, lambda _stage, _held: None)
        machine = read_machine_record(study, sources.name).machine
        names = [one.name for one in candidate_splits(machine, read_model("mixtral-8x7b"), ())]
        assert names == ["one GPU", "tp2", "pp2", "2 replicas", "ep2 x2"]
        (found,) = gather(study, sources.name, "mixtral-8x7b", (load(),)).loads
    codes = [one.text for one in found.verdict.reasons if one.code.startswith("link-")]
    assert len([text for text in codes if "tp2" in text]) == 1


FAULT = Finding(
    code="p2p-corruption",
    level=Level.SEEN,
    severity=Severity.ERROR,
    seen="GPU0 -> GPU1, pull, 4,096 bytes: the owner of the memory found 3 wrong elements.",
    why="A model that is split over these GPUs would compute with wrong numbers, in silence.",
    remedy="Do not trust this path.",
)


def put_fault(path: Path, machine: str, finding: Finding = FAULT) -> None:
    with Study.open_or_create(path) as study:
        held = read_machine_record(study, machine)
        origin = Origin(
            machine_name=machine,
            machine_id=held.fingerprint.id,
            command=("linkbound", "links"),
            environment={},
            started="2026-01-01T00:00:00+00:00",
            parents=(held.record_id,),
        )
        append_finding(study, origin, finding, "")


def test_a_fault_on_a_link_is_told_everywhere_and_the_study_exits_with_4(capsys: Any) -> None:
    words = ["study", "llama-3.1-8b", "--machine", "h200-pair", "-q", "--concurrency", "1"]
    words += ["-C", "a.linkbound"]
    assert run([*words, "--until", "links"]) == 0
    put_fault(Path("a.linkbound"), "h200-pair")
    capsys.readouterr()
    assert run(words) == 4
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "a.html"
    assert "p2p-corruption" in err
    page = Path("a.html").read_text()
    assert "p2p-corruption" in page
    assert "3 wrong elements" in page
    assert "tp2, p2p is not to be trusted" in " ".join(out.split())
    with Study.open(Path("a.linkbound")) as study:
        loads = (Load(prompt_tokens=1024, output_tokens=256, concurrency=1),)
        report = gather(study, "h200-pair", "llama-3.1-8b", loads)
        (record,) = study.find("links.finding")
    (told,) = [one for one in report.findings if one.code == "p2p-corruption"]
    assert told == msgspec.structs.replace(FAULT, record_ids=(record.id,))
    answers = {one.plan.name: one.answer for one in report.loads[0].verdict.plans}
    assert answers["tp2, p2p"] is Answer.UNDECIDED
    assert answers["tp2, nccl"] is Answer.UNDECIDED
    assert answers["tp2, staged"] is Answer.KEEP
    assert run(["report", "-C", "a.linkbound"]) == 0
    assert "p2p-corruption" in capsys.readouterr().out


def test_a_finding_without_a_wrong_result_is_no_exit_code(capsys: Any) -> None:
    words = ["study", "llama-3.1-8b", "--machine", "h200-pair", "-q", "--concurrency", "1"]
    words += ["-C", "a.linkbound"]
    assert run([*words, "--until", "links"]) == 0
    put_fault(
        Path("a.linkbound"), "h200-pair", msgspec.structs.replace(FAULT, code="transfer-error")
    )
    assert run(words) == 0
    assert "not to be trusted" not in capsys.readouterr().out


def test_commands_bind_to_what_is_near_and_state_layers_that_were_stated(studied: Any) -> None:
    loads = (Load(prompt_tokens=1024, output_tokens=65, concurrency=1),)
    near = "numactl --cpunodebind=0 --membind=0 taskset -c 0-31 vllm serve MODEL"
    with Study.open(studied.path) as study:
        report = gather(study, "h200-pair", "llama-3.1-8b", loads)
        held = read_machine_record(study, "h200-pair")
    (command,) = report.commands
    assert f" {near} " in command
    assert "--tensor-parallel-size 2" in command
    assert "VLLM_PP_LAYER_PARTITION" not in command
    assert held.machine.gpus[0].cpu_affinity == "0-31"


@pytest.mark.parametrize(
    ("cores", "nodes", "binding"),
    [
        ({"a": "0-7", "b": "8-15"}, {"a": 0, "b": 1}, ["taskset -c 0-7,8-15"]),
        ({"a": "0-7"}, {"a": 0}, []),
        ({}, {}, []),
        ({}, {"a": 1, "b": 1}, ["numactl --cpunodebind=1 --membind=1"]),
    ],
)
def test_what_is_not_known_of_every_gpu_binds_nothing(
    cores: dict[str, str], nodes: dict[str, int], binding: list[str]
) -> None:
    placement = Placement(gpus=("a", "b"), cores=cores, numa_nodes=nodes)
    assert binding_words(placement) == binding


def test_studies_named_after_versions_have_a_page_each(capsys: Any) -> None:
    for name in ("llama-3.1-8b", "llama-3.1-70b"):
        words = ["study", "llama-3.1-8b", "--machine", "h200-pair", "-q", "-C", name]
        assert run([*words, "--concurrency", "1"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"{name}.html"
        assert Path(f"{name}.html").is_file()
