"""Copies that share experts are a split: they are compared with copies that share nothing."""

from pathlib import Path
from typing import Any

import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.study.reading import read_verdicts
from linkbound.verdict.types import Aim


@pytest.mark.parametrize(
    ("model", "machine"), [("mixtral-8x7b", "h200-pair"), ("gpt-oss-20b", "5060ti-pair")]
)
def test_shared_experts_are_compared_with_replicas(
    model: str, machine: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "x.linkbound"
    words = ["study", model, "-q", "--machine", machine, "--concurrency", "32", "-C", str(path)]
    assert run(words) == 0
    capsys.readouterr()
    with Study.open(path) as study:
        verdict = read_verdicts(study, machine=machine)[0][1]
    shared = [one for one in verdict.plans if one.plan.split.ep > one.plan.split.tp]
    assert shared
    for one in shared:
        baselines = {
            each.baseline.split.name for each in one.comparisons if each.aim is Aim.THROUGHPUT
        }
        assert baselines == {"2 replicas"}
