"""A made machine of eight GPUs, NVLink islands on two sockets: study, verdict, page, search."""

import json
from pathlib import Path
from typing import Any

import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.splits.types import Split
from linkbound.study.latest import latest_forecasts
from linkbound.study.reading import read_verdicts
from machines_made import EIGHT, write

LOAD = ("--prompt", "1024", "--output", "64", "--concurrency", "8")


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the machine and a study of a model that one GPU does not hold."""
    folder = tmp_path_factory.mktemp("eight")
    machine = write(folder, EIGHT)
    study = folder / "eight.linkbound"
    words = ["study", "llama-3.1-70b", "--machine", str(machine), "-q", "-C", str(study), *LOAD]
    assert run(words) == 0
    return study


def test_the_study_runs_to_a_verdict_and_a_page(eight: Path) -> None:
    with Study.open(eight) as study:
        assert study.verify() == []
        ((_, verdict),) = read_verdicts(study)
    assert verdict.plan is not None
    # Four GPUs of one island hold it, and their link is NVLink.
    assert verdict.plan.split == Split(tp=4)
    assert verdict.plan.arm is Arm.P2P
    page = eight.with_suffix(".html").read_text()
    assert "<h1" in page
    assert "eight: made up" in page
    for number in range(8):
        assert f"GPU{number}" in page


def test_what_was_not_timed_is_priced_by_what_is_joined_alike(eight: Path) -> None:
    """Collectives were timed over GPUs 0-3, not over 4-7: two copies need both."""
    with Study.open(eight) as study:
        calls = {(found.plan.split, found.plan.arm): found for _, found in latest_forecasts(study)}
        carried = [
            record
            for record in study.find("links.curve")
            if record.subject["group"] == ["GPU4", "GPU5", "GPU6", "GPU7"]
        ]
    assert carried == []
    one, two = calls[Split(tp=4), Arm.P2P], calls[Split(tp=4, replicas=2), Arm.P2P]
    # Half of the sequences each: no slower than all of them on one.
    assert two.latency_s.value < one.latency_s.value


def test_plans_that_are_not_worth_judging_are_named(eight: Path, capsys: Any) -> None:
    assert run(["report", "-C", str(eight)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "splits are not judged, since others on as many GPUs or on fewer are faster: " in out
    with Study.open(eight) as study:
        judged = {found.plan.split for _, found in latest_forecasts(study)}
        (left,) = study.find("predict.left_out")
    assert len(judged) <= 10
    assert not {split.name for split in judged} & set(left.outcome.values["splits"])  # type: ignore[union-attr]


def test_the_search_says_the_same_and_looks_at_all_of_them(eight: Path, capsys: Any) -> None:
    machine = str(eight.parent / EIGHT.name)
    capsys.readouterr()
    assert run(["search", "llama-3.1-70b", "--machine", machine, *LOAD, "--json"]) == 0
    (search,) = json.loads(capsys.readouterr().out)["searches"]
    assert search["exhaustive"]
    best = search["best"]
    assert best["split"] == "tp4 x2"
    assert {tuple(sorted(best["gpus"][at : at + 4])) for at in (0, 4)} == {
        ("GPU0", "GPU1", "GPU2", "GPU3"),
        ("GPU4", "GPU5", "GPU6", "GPU7"),
    }
    with Study.open(eight) as study:
        judged = [found for _, found in latest_forecasts(study)]
    assert best["latency_s"]["value"] <= min(one.latency_s.value for one in judged) * 1.0001
