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


def crafted(path: Path, *changes: dict[str, Any]) -> Path:
    """13/s of tp2 p2p, and the same with other words or another machine."""
    head, requests = next(one for one in cells(ARMS) if one[0]["subject"]["contender"] == "tp2 p2p")
    values = msgspec.to_builtins(summarise(requests))
    with Study.open_or_create(path) as study:
        for change in ({}, *changes):
            machine, more = change.pop("machine", None), change.pop("values", {})
            study.append(
                load_record(
                    {**head["subject"], **change},
                    Measured(values={**values, **more}),
                    requests=requests,
                    machine=machine,
                )
            )
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
    assert "7 more say nothing either." in said


ASKED = ("--split", "tp2", "--rate", "20", "--requests", "100", "--json")


def pace_of(capsys: Any, path: Path, *more: str) -> Any:
    assert run([*SIMULATE, *ASKED, "--host-pace", str(path), *more]) == 0
    return json.loads(capsys.readouterr().out)["host_pace"]


def test_cells_that_cannot_be_used_are_named(tmp_path: Path, capsys: Any) -> None:
    path = crafted(
        tmp_path / "mixed.linkbound",
        {"split": "tp8", "contender": "tp8 p2p", "gpus": 8},
        {"split": "banana", "contender": "banana"},
        {"engine": "sglang", "contender": "of another engine"},
        {"model": "qwen3-32b", "contender": "of another model"},
        {"arrival": "closed", "concurrency": 8, "rate_per_s": None, "contender": "full"},
        {"contender": "failing", "seed": 7, "values": {"failed": 140}},
    )
    pace = pace_of(capsys, path)
    assert [one["contender"] for one in pace["cells"]] == ["tp2 p2p"]
    left = dict(one.split(", ", 1) for one in pace["left_out"])
    for contender, words in (
        ("tp8 p2p", "tp8 needs 8 GPUs"),
        ("banana", "banana"),
        ("of another engine", "it is of sglang."),
        ("of another model", "it is of qwen3-32b."),
        ("full", "a full engine hides what its host does."),
        ("failing", "140 of its requests failed."),
    ):
        assert words in left[contender]


def test_what_is_asked_of_a_plan_changes_no_host(tmp_path: Path, capsys: Any) -> None:
    path = low(tmp_path)
    assert pace_of(capsys, path) == pace_of(capsys, path, "--sequences", "4")


def test_a_load_at_the_floor_says_how_slow_the_host_can_be(tmp_path: Path, capsys: Any) -> None:
    """tp2 staged at 13/s was as fast as steps that wait for no host; others say about the same."""
    path = keep(
        tmp_path / "quick.linkbound",
        lambda cell: cell.startswith("13/"),
        OTHERS,
    )
    shares = {one["contender"]: one["share"] for one in pace_of(capsys, path)["cells"]}
    assert 0.5 < shares["tp2 staged"] < 0.7
    assert 0.3 < shares["tp2 p2p"] < 0.45


def test_loads_of_several_machines_have_no_one_pace(tmp_path: Path, capsys: Any) -> None:
    two = crafted(
        tmp_path / "two.linkbound", {"machine": "a" * 16, "seed": 7}, {"machine": "b" * 16}
    )
    assert run([*SIMULATE, *ASKED, "--host-pace", str(two)]) == 2
    assert f"loads of 2 machines: {'a' * 16}, {'b' * 16}" in capsys.readouterr().err
    one = crafted(tmp_path / "one.linkbound", {"machine": "a" * 16, "seed": 7})
    assert pace_of(capsys, one)["elsewhere"] == "a" * 16
    assert run([*SIMULATE, *ASKED[:-1], "--host-pace", str(one)]) == 0
    assert "which is not the one simulated" in capsys.readouterr().out


def test_a_copy_is_the_same_load(tmp_path: Path, capsys: Any) -> None:
    path = low(tmp_path)
    copy = tmp_path / "copy.linkbound"
    copy.write_bytes(path.read_bytes())
    assert run([*SIMULATE, "--score", str(copy), "--host-pace", str(path)]) == 2
    assert "holds loads that --host-pace" in capsys.readouterr().err


def test_a_pace_leads_back_to_its_loads(tmp_path: Path) -> None:
    path = low(tmp_path)
    asked = [*SIMULATE, *ASKED, "--host-pace", str(path), "-C", str(path)]
    assert run(asked) == 0
    with Study.open(path) as study:
        (pace,) = study.find("predict.host_pace")
        loads = {one.id for one in study.find("serve.load")}
        used = [one for cell in pace.outcome.values["pace"]["cells"] for one in cell["record_ids"]]  # type: ignore[union-attr]
        assert len(used) == 8
        assert set(used) <= loads & set(pace.parents)
        assert pace.machine is not None
        assert study.verify() == []
