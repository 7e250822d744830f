"""What a study holds, for other programs: the figures of its records and no others."""

import csv
import io
import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from conftest import Studied
from linkbound.cli.main import run
from linkbound.errors import StudyError
from linkbound.evidence.study import Study
from linkbound.links import Arm, Operation
from linkbound.predict.score_types import Score
from linkbound.study.aiconfigurator import TABLE, all_reduces
from linkbound.study.predicting import book_of
from linkbound.study.reading import convert
from parquet_reader import read


def table(study: Path, name: str, capsys: Any) -> list[dict[str, str]]:
    assert run(["export", "csv", "-C", str(study), "--table", name]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_curves_are_those_of_the_records(studied: Studied, capsys: Any) -> None:
    rows = table(studied.path, "curves", capsys)
    with Study.open(studied.path) as study:
        records = study.find("links.curve")
        first = records[0]
        count = sum(len(record.samples.rows) for record in records if record.samples)
        count += sum(
            len(record.samples.rows) for record in study.find("predict.curve") if record.samples
        )
    assert len(rows) == count
    assert rows[0]["record"] == first.id[:12]
    assert first.samples is not None
    cells = dict(zip(first.samples.columns, first.samples.rows[0], strict=True))
    assert float(rows[0]["time_s"]) == cells["time_s"]
    assert int(rows[0]["size_bytes"]) == cells["size_bytes"]
    assert {row["provenance"] for row in rows} == {"measured"}


def test_calls_verdicts_and_scores(studied: Studied, capsys: Any) -> None:
    calls = table(studied.path, "calls", capsys)
    assert {row["concurrency"] for row in calls} == {"1", "8", "32"}
    for row in calls:
        assert float(row["ttft_low_s"]) < float(row["ttft_s"]) < float(row["ttft_high_s"])
        assert (row["split"] in ("one GPU", "2 replicas")) is (row["arm"] == "")
    verdicts = table(studied.path, "verdicts", capsys)
    assert {row["answer"] for row in verdicts} <= {"keep", "reject", "undecided"}
    scores = table(studied.path, "score", capsys)
    with Study.open(studied.path) as study:
        (record,) = study.find("predict.score")
        found = convert(record, "score", Score)
    assert [float(row["measured_s"]) for row in scores] == [one.measured for one in found.rows]
    assert {row["tag"] for row in scores if row["seen"] == "yes"} == {
        one.tag for one in found.rows if one.seen
    }


def test_prometheus_has_every_table(studied: Studied, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "linkbound.prom"
    words = ["export", "prometheus", "-C", str(studied.path), "-o", str(file)]
    assert run(words) == 0
    text = file.read_text()
    for metric in (
        "linkbound_curve_time_seconds{",
        "linkbound_predicted_tpot_seconds{",
        "linkbound_predicted_tokens_per_second{",
        "linkbound_verdict_gain{",
        "linkbound_score_error{",
    ):
        assert metric in text
    samples = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line[0] != "#"]
    assert len(samples) == len(set(samples))
    capsys.readouterr()
    assert run(words) == 2
    assert "linkbound.prom exists" in capsys.readouterr().err


def test_a_study_without_what_is_asked(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "s.linkbound"
    with Study.create(path):
        pass
    assert run(["export", "csv", "-C", str(path)]) == 1
    assert "holds no machine" in capsys.readouterr().err
    words = ["study", "llama-3.1-8b", "--machine", "h200-pair", "--until", "links", "-q"]
    assert run([*words, "-C", str(path)]) == 0
    capsys.readouterr()
    assert run(["export", "csv", "-C", str(path), "--table", "verdicts"]) == 1
    assert "has nothing for the table verdicts" in capsys.readouterr().err


SYSTEM = """# a comment
data_dir: data/h200_sxm # relative to systems_dir
misc:
  nccl_version: '2.26.2'
"""


@pytest.fixture
def systems(tmp_path: Path) -> Path:
    """A systems directory as AIConfigurator 0.12.0 lays it out, its tables made up."""
    folder = tmp_path / "systems"
    for name in ("vllm/0.24.0", "vllm/0.19.0", "sglang/0.5.14"):
        place = folder / "data" / "h200_sxm" / "comm" / name
        place.mkdir(parents=True)
        (place / TABLE).write_bytes(b"theirs")
        (place / "collection_meta.yaml").write_text("meta")
    (folder / "data" / "h200_sxm" / "gemm").mkdir()
    (folder / "data" / "h200_sxm" / "gemm" / "gemm_perf.parquet").write_bytes(b"gemm")
    (folder / "h200_sxm.yaml").write_text(SYSTEM)
    (folder / "query_versions.yaml").write_text("schema_version: 1\n")
    (folder / "l4.yaml").write_text("data_dir: data/l4\n")
    return folder


def export(study: Path, systems: Path, out: Path, *more: str) -> int:
    words = ["export", "aiconfigurator", "-C", str(study), "--systems", str(systems)]
    return run([*words, "--system", "h200_sxm", "-o", str(out), *more])


@pytest.mark.parametrize("arm", ["p2p", "nccl", "staged"])
def test_measured_all_reduces_take_the_place_of_the_table(
    arm: str, studied: Studied, systems: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out"
    assert export(studied.path, systems, out, "--arm", arm) == 0
    assert f"--systems-paths {out} --system h200_sxm" in capsys.readouterr().out
    comm = out / "data" / "h200_sxm" / "comm"
    found = read((comm / "vllm" / "0.24.0" / TABLE).read_bytes())
    rows = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
    with Study.open(studied.path) as study:
        book = book_of(study, "h200-pair")
        for row in rows:
            size = row["message_size"] * 2
            time_s, _ = book.read(Operation.ALL_REDUCE, ("GPU0", "GPU1"), Arm(arm), size) or (0, 0)
            assert row["latency"] == pytest.approx(time_s.time_s * 1e3)  # type: ignore[union-attr]
    same = {"op_name": "all_reduce", "kernel_source": "vLLM_custom_graph", "num_gpus": 2}
    same |= {"framework": "vLLM", "allreduce_dtype": "bfloat16", "backend": "vllm_graph"}
    assert all(same.items() <= row.items() for row in rows)
    # NCCL was timed from 16 bytes on, the engine's own kernel from 8 KiB.
    assert rows[0]["message_size"] == (4096 if arm == "p2p" else 8)
    # Sizes that are not in the table would be filled from other versions: they have none now.
    assert not (comm / "vllm" / "0.19.0" / TABLE).exists()
    assert (comm / "vllm" / "0.19.0" / "collection_meta.yaml").exists()
    assert (comm / "sglang" / "0.5.14" / TABLE).read_bytes() == b"theirs"
    gemm = out / "data" / "h200_sxm" / "gemm" / "gemm_perf.parquet"
    assert gemm.read_bytes() == b"gemm"
    assert (out / "h200_sxm.yaml").read_text() == SYSTEM
    assert not (out / "l4.yaml").exists()
    manifest = json.loads((out / "linkbound.json").read_text())
    assert (manifest["machine"], manifest["arm"]) == ("h200-pair", arm)
    with Study.open(studied.path) as study:
        assert all(study.has(one) for row in manifest["rows"] for one in row["record_ids"])


def test_what_was_not_measured_is_not_exported(systems: Path, tmp_path: Path, capsys: Any) -> None:
    # Without a sweep of it the engine's own all-reduce below 8 MiB is a published prior.
    with as_file(files("linkbound") / "recorded" / "h200-pair") as pair:
        ignored = shutil.ignore_patterns("engine*")
        shutil.copytree(pair, tmp_path / "pair", ignore=ignored)
    study = tmp_path / "s.linkbound"
    words = ["study", "llama-3.1-8b", "--machine", str(tmp_path / "pair"), "--until", "links"]
    assert run([*words, "-q", "-C", str(study)]) == 0
    assert export(study, systems, tmp_path / "out", "--arm", "p2p") == 1
    err = capsys.readouterr().err
    assert "GPU0 GPU1: below 8,388,608 bytes" in err
    assert not (tmp_path / "out").exists()


def test_rooflines_are_not_exported(desktop_study: Study) -> None:
    with pytest.raises(StudyError, match="were not measured on 5060ti-pair"):
        all_reduces(desktop_study, "5060ti-pair", Arm.STAGED)


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["--system", "h100_sxm"], "h100_sxm.yaml is no system of AIConfigurator."),
        (["--system", "../systems/h200_sxm"], "is no system of AIConfigurator."),
        (["--version", "0.1.0"], "has no data/h200_sxm/comm/vllm/0.1.0/"),
        (["--machine", "other"], "The study has no machine 'other'."),
    ],
)
def test_wrong_words(
    words: list[str], seen: str, studied: Studied, systems: Path, tmp_path: Path, capsys: Any
) -> None:
    assert export(studied.path, systems, tmp_path / "out", *words) == 2
    assert seen in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["/etc", "../../etc", "data/none"])
def test_a_system_that_points_elsewhere_is_refused(
    folder: str, studied: Studied, systems: Path, tmp_path: Path, capsys: Any
) -> None:
    (systems / "h200_sxm.yaml").write_text(f"data_dir: {folder}\n")
    assert export(studied.path, systems, tmp_path / "out") == 2
    assert "which is no folder beside it" in capsys.readouterr().err


def test_a_folder_that_is_there_is_left_alone(
    studied: Studied, systems: Path, tmp_path: Path, capsys: Any
) -> None:
    shutil.copytree(systems, tmp_path / "out")
    assert export(studied.path, systems, tmp_path / "out") == 2
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "out" / "linkbound.json").exists()
