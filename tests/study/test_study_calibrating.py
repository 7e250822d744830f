"""A short run on one GPU becomes constants: chosen, kept, used, and never scored."""

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Provenance, Record
from linkbound.predict.calibration import Calibration
from linkbound.serve import EngineRun, RunSpec, RunTimes
from linkbound.study.reading import read_calibration

RECORDED = files("linkbound") / "recorded" / "h200-pair"
RUNS = "vllm-0.24.0/runs.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded pair with its engine runs put aside: a machine nobody calibrated."""
    place = tmp_path_factory.mktemp("machines")
    with as_file(RECORDED) as source:
        shutil.copytree(source, place / "pair")
    shutil.move(place / "pair" / "vllm-0.24.0", place / "vllm-0.24.0")
    (place / "pair" / "machine.toml").write_text('note = "a pair"\n')
    return place


@pytest.fixture(scope="module")
def calibrated(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of that machine, calibrated by the recorded runs on one GPU."""
    study = tmp_path_factory.mktemp("calibrated") / "s.linkbound"
    words = ["calibrate", str(folder / RUNS), "--machine", str(folder / "pair"), "--json"]
    assert run([*words, "-C", str(study)]) == 0
    return study


def constants(study: Path) -> tuple[Record, Calibration]:
    with Study.open(study) as held:
        return read_calibration(held, "pair")


def test_constants_rest_on_the_runs_on_one_gpu(calibrated: Path) -> None:
    record, found = constants(calibrated)
    with Study.open(calibrated) as held:
        (choice,) = held.find("predict.calibrating")
        tags = [held.get(one).subject["tag"] for one in choice.parents]
        first = held.find("predict.calibration")[0]
    assert tags == ["llama8b_tp1"] * 5
    assert set(choice.parents) <= set(record.parents)
    assert not set(choice.parents) & set(first.parents)
    assert found.stream_bytes_per_s.provenance is Provenance.CALIBRATED
    # One GPU says nothing of what ranks wait for, nor of how splits are launched.
    assert found.wait_s.provenance is Provenance.PRIOR
    assert found.host_layer_split_s.provenance is Provenance.PRIOR
    assert found.seen is not None
    assert not found.seen.splits
    assert run(["check", str(calibrated)]) == 0


def test_splits_are_predicted_from_one_gpu_alone(
    calibrated: Path, folder: Path, capsys: Any
) -> None:
    words = ["predict", "--score", str(folder / RUNS), "--machine", str(folder / "pair"), "--json"]
    assert run([*words, "-C", str(calibrated)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {one["tag"] for one in document["rows"] if one["seen"]} == {"llama8b_tp1"}
    tpot, prefill = document["summary"]["tpot_s"], document["summary"]["prefill_s"]
    assert (tpot["rows"], prefill["rows"]) == (12, 15)
    assert tpot["median_error"] <= 0.05
    assert tpot["worst_error"] <= 0.12
    assert prefill["median_error"] <= 0.08
    covered = tpot["rows"] * tpot["coverage"] + prefill["rows"] * prefill["coverage"]
    assert covered / 27 >= 0.85
    assert document["summary"]["staged_minus_nccl"]["median_error"] <= 0.10
    assert all(one["helps"] is one["predicted_helps"] for one in document["signs"])


def one_gpu(study: Path, folder: Path, capsys: Any) -> dict[str, float]:
    words = ["predict", "llama-3.1-8b", "--machine", str(folder / "pair"), "--concurrency", "4"]
    assert run([*words, "-C", str(study), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    found: dict[str, float] = next(one["latency_s"] for one in rows if one["split"] == "one GPU")
    return found


def test_a_study_predicts_again_with_what_was_calibrated(
    folder: Path, tmp_path: Path, capsys: Any
) -> None:
    study = tmp_path / "s.linkbound"
    before = one_gpu(study, folder, capsys)
    words = ["calibrate", str(folder / RUNS), "--machine", str(folder / "pair")]
    assert run([*words, "-C", str(study)]) == 0
    out = capsys.readouterr().out
    assert "from 5 runs: llama8b_tp1 1 x 1,024, " in out
    assert "The runs tell 6 of 13 constants" in out
    after = one_gpu(study, folder, capsys)
    widths = [one["high"] / one["value"] for one in (before, after)]
    assert widths[1] - 1 < 0.5 * (widths[0] - 1)
    assert before["low"] < after["value"] < before["high"]


def test_tags_choose_other_runs(folder: Path, tmp_path: Path, capsys: Any) -> None:
    study = tmp_path / "s.linkbound"
    words = ["calibrate", str(folder / RUNS), "--machine", str(folder / "pair")]
    tags = ["--tag", "llama8b_tp1", "--tag", "llama8b_tp2_nccl"]
    assert run([*words, *tags, "-C", str(study), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {one["tag"] for one in document["runs"]} == {"llama8b_tp1", "llama8b_tp2_nccl"}
    assert document["after"]["seen"]["splits"]
    # A machine whose own runs are the same rows has the same constants.
    with as_file(RECORDED) as source:
        shutil.copytree(source, tmp_path / "own")
    named = f'[[runs]]\nfile = "{RUNS}"\ncalibrate = ["llama8b_tp1", "llama8b_tp2_nccl"]\n'
    (tmp_path / "own" / "machine.toml").write_text(named)
    shipped = ["predict", "--score", str(tmp_path / "own" / RUNS), "--machine"]
    words = [*shipped, str(tmp_path / "own"), "-C", str(tmp_path / "own.linkbound")]
    assert run([*words, "--json"]) == 0
    with Study.open(tmp_path / "own.linkbound") as held:
        own = read_calibration(held, "own")[1]
    _, mine = constants(study)
    assert mine.stream_bytes_per_s.value == pytest.approx(own.stream_bytes_per_s.value, rel=1e-6)
    assert mine.model_error == pytest.approx(own.model_error, rel=1e-6)


def measured(machine: str, repeat: int, *, label: str = "llama-3.1-8b", **changes: Any) -> Record:
    """A batch that the study's own `serve` ran, as it keeps one."""
    spec = RunSpec(
        model=label,
        tp=1,
        pp=1,
        expert_parallel=False,
        custom_all_reduce=True,
        p2p_disabled=False,
        batch=8,
        prompt_tokens=1024,
        output_tokens=65,
    )
    times = RunTimes(prefill_s=(0.187 + repeat * 0.001,), total_s=(0.525 + repeat * 0.001,))
    found = EngineRun(tag="llama-3.1-8b_one_GPU", line=1, spec=spec, times=times)
    subject = {
        "machine": machine,
        "engine": "vllm-offline",
        "model": "llama-3.1-8b",
        "twin": False,
        "repeat": repeat,
        "calibrates": False,
        **changes,
    }
    return Record(
        kind="serve.run",
        subject=subject,
        outcome=Measured(values={"run": msgspec.to_builtins(found)}),
        method="linkbound.serve.vllm_child",
        started="2026-11-30T12:00:00+00:00",
    )


def test_runs_that_the_study_measured_itself(folder: Path, tmp_path: Path, capsys: Any) -> None:
    study = tmp_path / "s.linkbound"
    words = ["calibrate", "--machine", str(folder / "pair"), "-C", str(study)]
    assert run(words) == 2
    assert "There is no run of vllm on one GPU of pair." in capsys.readouterr().err
    with Study.create(study) as held:
        ids = held.append_many([measured("pair", repeat) for repeat in (0, 1)])
        held.append(measured("pair", 2, twin=True, label="llama-3.1-8b-shard-of-tp2"))
        held.append(measured("elsewhere", 0))
    assert run(words) == 0
    record, found = constants(study)
    assert set(ids) <= set(record.parents)
    assert found.seen is not None
    assert found.seen.longest_tokens == 1024 + 65
    with Study.open(study) as held:
        (choice,) = held.find("predict.calibrating")
        (shape,) = held.find("serve.shape", machine="pair")
    # A twin's shape is not that of the model that it was cut from.
    assert list(choice.parents) == ids
    assert shape.subject["model"] == "llama-3.1-8b"


def test_tags_that_are_not_there(folder: Path, capsys: Any) -> None:
    words = ["calibrate", str(folder / RUNS), "--machine", str(folder / "pair")]
    assert run([*words, "--tag", "none"]) == 2
    err = capsys.readouterr().err
    assert "No run has the tag 'none'." in err
    assert "llama8b_tp2_off" in err


def test_another_model_under_a_known_name_is_refused(
    folder: Path, calibrated: Path, tmp_path: Path, capsys: Any
) -> None:
    shutil.copytree(folder / "vllm-0.24.0", tmp_path / "runs")
    config = tmp_path / "runs" / "configs" / "llama8b" / "config.json"
    changed = json.loads(config.read_text())
    changed["num_hidden_layers"] = 16
    config.write_text(json.dumps(changed))
    study = Path(shutil.copy(calibrated, tmp_path / "s.linkbound"))
    words = ["calibrate", str(tmp_path / "runs" / "runs.jsonl"), "-C", str(study)]
    assert run([*words, "--machine", str(folder / "pair")]) == 2
    assert "'llama8b' has 16 layers of 4096" in capsys.readouterr().err


def scaled(folder: Path, place: Path, factor: float) -> Path:
    """The recorded runs with every time multiplied, and their configs beside them."""
    shutil.copytree(folder / "vllm-0.24.0", place)
    rows = [json.loads(line) for line in (folder / RUNS).read_text().splitlines()]
    for row in rows:
        for key in ("prefill_all", "total_all"):
            row[key] = [time_s * factor for time_s in row.get(key, [])]
    file = place / "runs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.mark.parametrize("factor", [0.9, 1.25])
def test_runs_of_another_start_are_fitted_whether_faster_or_slower(
    factor: float, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    runs, study = scaled(folder, tmp_path / "runs", factor), tmp_path / "s.linkbound"
    assert run(["calibrate", str(runs), "--machine", "h200-pair", "-C", str(study), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["used_before"] == []
    moved = [
        document["after"][name]["estimate"]["value"] / document["before"][name]["estimate"]["value"]
        for name in ("stream_bytes_per_s", "matrix_flops_per_s")
    ]
    assert moved == pytest.approx([1 / factor] * 2, rel=0.05)
    words = ["predict", "--score", str(runs), "--machine", "h200-pair", "-C", str(study), "--json"]
    assert run(words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    errors = [row["error"] for row in rows if row["tag"] == "llama8b_tp1"]
    assert len(errors) == 9
    assert max(errors) < 0.05
    # The model error is that of these runs: 1.645 root mean squares of what is left.
    assert document["after"]["model_error"] < 0.07


@pytest.mark.parametrize(
    ("machine", "factor"), [("h200-pair", 0.8), ("h200-pair", 0.1), ("5060ti-pair", 1.0)]
)
def test_runs_that_the_gpu_cannot_have_made_are_refused_and_not_kept(
    machine: str, factor: float, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    runs, study = scaled(folder, tmp_path / "runs", factor), tmp_path / "s.linkbound"
    words = ["calibrate", str(runs), "--machine", machine, "-C", str(study)]
    assert run(words) == 2
    assert not study.exists()
    with Study.create(study):
        pass
    capsys.readouterr()
    assert run(words) == 2
    err = capsys.readouterr().err
    assert "These runs make stream_bytes_per_s " in err
    assert "reaches 4,800." in err if machine == "h200-pair" else "reaches 448." in err
    with Study.open(study) as held:
        assert not held.find("predict.calibrating")
        kept = held.find("serve.run", machine=machine)
    # The recorded pair's own rows; none of what was refused.
    assert len(kept) == (20 + 15 if machine == "h200-pair" else 0)


def test_runs_that_calibrated_already_move_nothing(capsys: Any) -> None:
    with as_file(RECORDED) as source:
        words = ["calibrate", str(source / RUNS), "--machine", "h200-pair"]
        assert run(words) == 0
        out = capsys.readouterr().out
        assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "5 runs had calibrated the constants of the recorded machine h200-pair already" in out
    assert "The runs tell" not in out
    assert document["runs"] == []
    assert len(document["used_before"]) == 5
    assert document["before"] == document["after"]


def test_what_one_gpu_cannot_tell_is_a_prior_again(
    folder: Path, tmp_path: Path, capsys: Any
) -> None:
    runs = scaled(folder, tmp_path / "runs", 0.98)
    assert run(["calibrate", str(runs), "--machine", "h200-pair", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)["after"]
    for name in ("wait_s", "host_layer_split_s", "mixture_layer_s"):
        assert after[name]["provenance"] == "prior"
    assert after["stream_bytes_per_s"]["provenance"] == "calibrated"
    assert not after["seen"]["splits"]


def test_a_runs_file_that_is_not_there(capsys: Any, tmp_path: Path) -> None:
    assert run(["calibrate", "nosuch", "--machine", "h200-pair"]) == 2
    new = tmp_path / "new.linkbound"
    assert run(["calibrate", "nosuch", "--machine", "h200-pair", "-C", str(new)]) == 2
    assert not new.exists()
    err = capsys.readouterr().err
    assert "Constants are calibrated from its runs." in err
    assert "scored" not in err
