"""Loads measured on a host tell its pace, and the loads beside them come out nearer (E3).

The lower rates of `served_h200_arms.jsonl` and of `served_h200_others.jsonl` (test_study_served.py)
set the pace, 40/s is compared.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_study_served import ARMS, OTHERS, cells

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured
from linkbound.serve.latency import summarise
from linkbound.serve.records import load_record

SIMULATE = ("simulate", "llama-3.1-8b", "--machine", "h200-pair")


def keep(path: Path, wanted: Callable[[str], bool], served: Path = ARMS) -> Path:
    """The cells of a measured load whose names are wanted."""
    with Study.open_or_create(path) as study:
        for head, requests in cells(served):
            if wanted(head["subject"]["cell"]):
                outcome = Measured(values=msgspec.to_builtins(summarise(requests)))
                study.append(load_record(head["subject"], outcome, requests=requests))
    return path


def low(path: Path, served: Path = ARMS) -> Path:
    return keep(path / "low.linkbound", lambda cell: cell.startswith(("13/", "27/")), served)


def high(path: Path, served: Path = ARMS) -> Path:
    return keep(path / "high.linkbound", lambda cell: cell.startswith("40/"), served)


def test_lower_rates_bring_a_higher_one_nearer(tmp_path: Path, capsys: Any) -> None:
    words = [*SIMULATE, "--score", str(high(tmp_path)), "--json"]
    assert run(words) == 0
    before = errors(json.loads(capsys.readouterr().out))
    assert run([*words, "--host-pace", str(low(tmp_path)), "-C", str(tmp_path / "own")]) == 0
    document = json.loads(capsys.readouterr().out)
    after = errors(document)
    pace = document["host_pace"]
    assert pace["value"] == pytest.approx(0.748, abs=0.01)
    assert len(pace["cells"]) == 8
    assert len(pace["left_out"]) == 2
    assert all("hardly wait for the host" in one for one in pace["left_out"])
    # docs/simulation.md has these.
    assert sum(after.values()) < 0.8 * sum(before.values())
    for contender, error in (
        ("tp2 p2p", 0.18), ("tp2 nccl", 0.26), ("tp2 staged", 0.01), ("pp2 p2p", 0.16),
    ):  # fmt: skip
        assert after[contender] == pytest.approx(error, abs=0.01)
    assert all(row["predicted"]["low"] <= row["measured"] for row in document["rows"])
    with Study.open(tmp_path / "own") as study:
        (kept,) = study.find("predict.host_pace")
        assert study.find("predict.simulation")[-1].parents.count(kept.id) == 1
        assert study.verify() == []


def test_a_quick_host_is_seen_as_one(tmp_path: Path, capsys: Any) -> None:
    words = [*SIMULATE, "--score", str(high(tmp_path, OTHERS)), "--json"]
    assert run([*words, "--host-pace", str(low(tmp_path, OTHERS))]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["host_pace"]["value"] == pytest.approx(0.716, abs=0.01)
    # As calibrated they are off by 1.01, 0.66 and 0.66.
    found = errors(document)
    for contender, error in (("tp2 p2p", 0.24), ("pp2 p2p", 0.16), ("pp2 staged", 0.15)):
        assert found[contender] == pytest.approx(error, abs=0.01)
    assert all(
        row["predicted"]["low"] <= row["measured"] <= row["predicted"]["high"]
        for row in document["rows"]
        if "_per_s" not in row["figure"]
    )


def errors(document: Any) -> dict[str, float]:
    return {
        row["contender"]: row["error"] for row in document["rows"] if row["figure"] == "tpot_p99_s"
    }


def test_a_pace_is_told_where_it_is_used(tmp_path: Path, capsys: Any) -> None:
    asked = ["--split", "tp2", "--rate", "20", "--requests", "100"]
    assert run([*SIMULATE, *asked, "--host-pace", str(low(tmp_path))]) == 0
    text = capsys.readouterr().out
    assert "The host launches in ~0.748 (0.458-1.34) of the time that the constants say" in text
    assert "Not used for it: 2 replicas, 13/s poisson, 512 in, 64 out: its steps hardly" in text


@pytest.mark.parametrize("option", ["--score", "--frozen"])
def test_what_was_fitted_is_not_compared_with_itself(
    tmp_path: Path, capsys: Any, option: str
) -> None:
    path = str(low(tmp_path))
    words = [*SIMULATE[:2], "--score", path, "--host-pace", path]
    if option == "--frozen":
        frozen = Path(__file__).parents[2] / "docs/frozen/llama-3.1-8b-served-3.json"
        words += ["--frozen", str(frozen)]
    assert run(words) == 2
    said = capsys.readouterr().err
    assert "--host-pace" in said


def test_a_study_without_such_a_load_is_refused(tmp_path: Path, capsys: Any) -> None:
    closed = keep(tmp_path / "closed.linkbound", lambda cell: cell.startswith("64 at once"))
    asked = ["--split", "tp2", "--rate", "20", "--host-pace", str(closed)]
    assert run([*SIMULATE, *asked]) == 2
    said = capsys.readouterr().err
    assert "closed.linkbound holds no load of llama-3.1-8b from which the host's pace" in said
    empty = tmp_path / "empty.linkbound"
    with Study.open_or_create(empty):
        pass
    assert run([*SIMULATE, *asked[:-1], str(empty)]) == 2
    assert "The host's pace follows from its cells." in capsys.readouterr().err
    # Loads of another model say nothing of this one, nor those of the whole of its half.
    half = ["--override", "num_hidden_layers=16", "--host-pace", str(low(tmp_path))]
    assert run([*SIMULATE, *asked[:-2], *half]) == 2
    assert "--host-pace" in capsys.readouterr().err
    other = ["simulate", "qwen3-32b", *SIMULATE[2:], "--split", "tp2", "--rate", "2"]
    assert run([*other, "--host-pace", str(tmp_path / "low.linkbound")]) == 2
    assert "holds no load of qwen3-32b" in capsys.readouterr().err


def test_a_frozen_load_names_the_pace_that_it_rests_on(tmp_path: Path) -> None:
    frozen, own = tmp_path / "f.json", tmp_path / "own.linkbound"
    asked = ["--split", "tp2", "--rate", "20", "--requests", "100", "-C", str(own)]
    assert run([*SIMULATE, *asked, "--host-pace", str(low(tmp_path)), "--freeze", str(frozen)]) == 0
    with Study.open(own) as study:
        (pace,) = study.find("predict.host_pace")
    assert pace.id in json.loads(frozen.read_text())["content"]["inputs"]


def test_an_error_names_a_few_cells(tmp_path: Path, capsys: Any) -> None:
    # What steps of another GPU take hides any launch of these loads.
    elsewhere = ["simulate", "llama-3.1-8b", "--machine", "5060ti-pair", "--split", "tp2"]
    assert run([*elsewhere, "--rate", "2", "--host-pace", str(low(tmp_path))]) == 2
    said = capsys.readouterr().err
    assert said.count("in, 64 out: ") == 3
    assert "So are 7 more." in said
