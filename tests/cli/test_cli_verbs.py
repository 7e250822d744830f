"""The verbs around a study: verdict with its gate, report, predict; whose figures, in every one."""

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from conftest import Studied
from linkbound.cli.main import run
from linkbound.cli.verdict import GATE_REJECT, GATE_UNDECIDED

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "src/linkbound/recorded/h200-pair/vllm-0.24.0/runs.jsonl"
ON_H200 = ("--machine", "h200-pair")
SHORT = ("--prompt", "128", "--output", "8", "--concurrency", "1")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("load", "code"),
    [
        (("1024", "65", "1,8"), 0),
        (("1024", "65", "24"), GATE_UNDECIDED),
        (("1024", "65", "1,24,32"), GATE_REJECT),
        (("128", "65", "1,128"), GATE_REJECT),
    ],
)
def test_the_gate_is_the_weakest_verdict(
    load: tuple[str, str, str], code: int, capsys: Any
) -> None:
    prompt, output, concurrency = load
    words = ["--prompt", prompt, "--output", output, "--concurrency", concurrency]
    assert run(["study", "llama-3.1-8b", *ON_H200, "-q", *words]) == 0
    assert run(["verdict", "--gate"]) == code
    assert run(["verdict"]) == 0
    capsys.readouterr()
    assert run(["verdict", "--json", "--gate"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "linkbound.verdict"


def test_every_model_of_a_study_is_shown_and_gated(capsys: Any) -> None:
    for model, load in (
        ("llama-3.1-8b", ["--prompt", "128", "--output", "65", "--concurrency", "128"]),
        ("qwen3-32b", ["--concurrency", "1"]),
    ):
        assert run(["study", model, *ON_H200, "-q", *load, "-C", "m.linkbound"]) == 0
    capsys.readouterr()
    # The first model's split is rejected, whatever the last one's verdict is.
    assert run(["verdict", "--gate", "-C", "m.linkbound"]) == GATE_REJECT
    out = capsys.readouterr().out
    assert "llama-3.1-8b on h200-pair: 128 in, 65 out, 128 at once\nREJECT" in out
    assert "qwen3-32b on h200-pair: 1,024 in, 256 out, 1 at once\nKEEP" in out
    assert run(["verdict", "--json", "-C", "m.linkbound"]) == 0
    loads = json.loads(capsys.readouterr().out)["loads"]
    assert [(one["model"], one["machine"], one["answer"]) for one in loads] == [
        ("llama-3.1-8b", "h200-pair", "reject"),
        ("qwen3-32b", "h200-pair", "keep"),
    ]
    assert run(["report", "-C", "m.linkbound"]) == 0
    assert "also holds verdicts of llama-3.1-8b on h200-pair" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (["--prompt", "131072"], "131,328 tokens a sequence are asked for"),
        (["--concurrency", "100000"], "of 100,000 sequences at once; the rest would queue"),
    ],
)
def test_a_load_that_no_plan_holds_is_no_rejected_split(
    load: list[str], why: str, capsys: Any
) -> None:
    assert run(["study", "llama-3.1-8b", *ON_H200, "-q", *load]) == 0
    out = capsys.readouterr().out
    assert "UNDECIDED: no plan holds the load. Nothing here runs it, neither one GPU nor" in out
    assert why in out
    assert out.count("at once do not fit") == 0
    assert run(["verdict", "--gate"]) == GATE_UNDECIDED


def test_the_command_of_a_verdict_runs(capsys: Any) -> None:
    assert run(["study", "llama-3.1-8b", *ON_H200, "-q", "--concurrency", "1"]) == 0
    text = capsys.readouterr().out.replace("\\\n", " ")
    commands = [line.split()[2:] for line in text.splitlines() if "$ linkbound serve" in line]
    assert commands
    for command in commands:
        assert run([*command, "--dry-run"]) == 0, capsys.readouterr().err


def test_gate_codes() -> None:
    assert (GATE_REJECT, GATE_UNDECIDED) == (10, 11)


def test_a_study_without_a_verdict_has_none_to_show(capsys: Any) -> None:
    assert run(["study", "llama-3.1-8b", *ON_H200, "-q", "--until", "links"]) == 0
    capsys.readouterr()
    for verb in (["verdict"], ["report"]):
        assert run(verb) == 1
        assert "holds no verdict. Its stages were stopped before." in capsys.readouterr().err


def test_every_output_says_whose_figures_it_shows(
    studied: Studied, tmp_path: Path, capsys: Any
) -> None:
    path = str(studied.copy(tmp_path))
    for words in (
        ["verdict", "-C", path],
        ["verdict", "--json", "-C", path],
        ["report", "-C", path],
        ["show", "-C", path],
        ["show", "--json", "-C", path],
        ["predict", "llama-3.1-8b", *SHORT, *ON_H200],
        ["predict", "llama-3.1-8b", *SHORT, *ON_H200, "--json"],
        ["predict", "llama-3.1-8b", *SHORT],
        ["predict", "--score", str(RUNS)],
    ):
        assert run(words) == 0
        found = capsys.readouterr()
        assert "h200-pair" in found.out + found.err, words


def test_reports_of_each_kind(studied: Studied, tmp_path: Path, capsys: Any) -> None:
    path = str(studied.copy(tmp_path))
    names = [f"out.{ending}" for ending in ("txt", "md", "json", "html")]
    assert run(["report", "-C", path, *(word for name in names for word in ("-o", name))]) == 0
    assert capsys.readouterr().err.split() == [word for name in names for word in ("Wrote", name)]
    texts = [Path(name).read_text() for name in names]
    assert all("h200-pair" in text for text in texts)
    assert json.loads(texts[2])["schema"].startswith("linkbound.")
    assert texts[3] == studied.page.read_text()
    assert run(["report", "-C", path]) == 0
    assert capsys.readouterr().out == texts[0] + "\n"
    assert run(["report", "-C", path, "-o", "out.md"]) == 2
    assert "out.md exists. It would be lost. Add --force" in capsys.readouterr().err
    assert run(["report", "-C", path, "-o", "out.md", "--force"]) == 0
    assert run(["report", "-C", path, "-o", "out.pdf"]) == 2


def test_rendering_never_changes_a_study(studied: Studied, tmp_path: Path) -> None:
    path = studied.copy(tmp_path)
    before = path.read_bytes()
    assert run(["report", "-C", str(path), "-o", "a.html"]) == 0
    assert run(["verdict", "-C", str(path)]) == 0
    assert path.read_bytes() == before


def test_predicting_writes_nothing_unless_a_study_is_named(tmp_path: Path, capsys: Any) -> None:
    assert run(["predict", "--score", str(RUNS), *ON_H200]) == 0
    assert run(["predict", "llama-3.1-8b", *SHORT, *ON_H200]) == 0
    out = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    # A figure that was not measured carries a tilde.
    assert re.search(r"~[0-9]", out)
    assert run(["predict", "--score", str(RUNS), *ON_H200, "-C", "kept.linkbound"]) == 0
    connection = sqlite3.connect("kept.linkbound")
    (count,) = connection.execute(
        "SELECT count(*) FROM records WHERE kind = 'predict.score'"
    ).fetchone()
    connection.close()
    assert count == 1


def test_predictions_as_a_document(capsys: Any) -> None:
    words = ["predict", "llama-3.1-8b", *ON_H200, "--json", "--concurrency", "2"]
    assert run(words) == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert document["schema"].startswith("linkbound.")
    assert "tp2" in text
    assert "NaN" not in text
    assert "Infinity" not in text


def test_a_folder_of_posted_files_is_a_machine(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "rig"
    folder.mkdir()
    recorded = ROOT / "src/linkbound/recorded/h200-pair"
    for name in ("topo-m.txt", "smi-q.txt"):
        (folder / name).write_bytes((recorded / name).read_bytes())
    words = ["study", "llama-3.1-8b", "--machine", str(folder), "-q", *SHORT]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "rig: a folder of tool output" in out
    assert out.splitlines()[-1] == "llama-3.1-8b-on-rig.html"
