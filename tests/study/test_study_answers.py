"""Verbs that need no study write nothing unasked, and with -C all that their answers rest on."""

import json
from pathlib import Path
from typing import Any

import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Measured, Stated

RECORDED = Path(__file__).parents[2] / "src/linkbound/recorded/h200-pair"
TOPO = str(RECORDED / "topo-m.txt")
VERBS = {
    "topo": ["topo", TOPO],
    "doctor": ["doctor", TOPO, "--symptom", "slow"],
    "fit": ["fit", "llama-3.1-8b", "--machine", "h200-pair"],
    "splits": ["splits", "llama-3.1-8b", "--machine", "h200-pair", "--split", "tp2"],
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_written_unasked(verb: str, tmp_path: Path) -> None:
    assert run(VERBS[verb]) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_answer_is_kept_with_what_it_rests_on(verb: str, capsys: Any) -> None:
    for _ in range(2):
        assert run([*VERBS[verb], "--json", "-C", "a.linkbound"]) == 0
    said = capsys.readouterr().out
    printed = json.loads(said[: len(said) // 2])
    with Study.open("a.linkbound") as study:
        assert study.verify() == []
        (answer,) = study.find(f"{verb}.answer")
        sources = [study.get(parent) for parent in answer.parents]
        assert {one.kind for one in sources} == {f"{verb}.source"}
        assert isinstance(answer.outcome, Derived)
        assert json.loads(json.dumps(answer.outcome.values)) == printed
        files = [one for one in sources if isinstance(one.outcome, Measured)]
        for one in files:
            (blob,) = one.blobs
            assert study.blob(blob) == (RECORDED / one.subject["name"]).read_bytes()
        assert files


def test_what_was_stated_is_no_measurement() -> None:
    words = ["fit", "llama-3.1-8b", "--gpus", "2x24GiB", "--split", "tp2"]
    assert run([*words, "-C", "a.linkbound"]) == 0
    with Study.open("a.linkbound") as study:
        (answer,) = study.find("fit.answer")
        sources = [study.get(parent) for parent in answer.parents]
        assert {one.subject["name"] for one in sources} == {
            "model llama-3.1-8b",
            "stated: 2x24GiB",
        }
        assert all(isinstance(one.outcome, Stated) for one in sources)
        assert answer.subject["splits"] == ["tp2"]


def test_a_file_is_read_and_kept_also_under_a_recorded_name(capsys: Any) -> None:
    mine = Path("5060ti-pair")
    mine.mkdir()
    (mine / "topo.txt").write_bytes(Path(TOPO).read_bytes())
    assert run(["topo", "5060ti-pair", "-C", "a.linkbound"]) == 0
    assert "NV18" in capsys.readouterr().out
    with Study.open("a.linkbound") as study:
        (answer,) = study.find("topo.answer")
        (parent,) = answer.parents
        assert study.get(parent).subject["name"] == "topo.txt"


def test_an_input_that_was_not_read_is_no_source() -> None:
    Path("huge.txt").write_bytes(b"x" * (64 * 1024**2 + 100))
    assert run(["doctor", TOPO, "huge.txt", "-C", "a.linkbound"]) == 0
    with Study.open("a.linkbound") as study:
        (answer,) = study.find("doctor.answer")
        names = [study.get(parent).subject["name"] for parent in answer.parents]
        assert names == ["topo-m.txt"]
        assert isinstance(answer.outcome, Derived)
        assert [one["name"] for one in answer.outcome.values["unread"]] == ["huge.txt"]


def test_memory_that_a_manifest_states_is_a_source() -> None:
    assert run(["topo", "--machine", "5060ti-pair", "-C", "a.linkbound"]) == 0
    with Study.open("a.linkbound") as study:
        (answer,) = study.find("topo.answer")
        stated = [one for one in map(study.get, answer.parents) if isinstance(one.outcome, Stated)]
        assert [one.subject["name"] for one in stated] == ["machine.toml"]


def test_a_file_that_is_no_study_is_left_alone(capsys: Any) -> None:
    Path("a.linkbound").write_text("mine")
    assert run(["topo", TOPO, "-C", "a.linkbound"]) == 1
    out, err = capsys.readouterr()
    assert "GPU0" in out
    assert "a.linkbound" in err
    assert Path("a.linkbound").read_text() == "mine"
