"""How much of a simulated p99 is due to the link: the same draw without crossings (D3)."""

import json
from typing import Any

import pytest

from linkbound.cli.main import run

WORDS = ["simulate", "llama-3.1-8b", "--machine", "h200-pair", "--concurrency", "64"]
WORDS += ["--prompt", "512", "--output", "64", "--requests", "400"]
WORDS += [word for split in ("one", "x2", "tp2", "pp2") for word in ("--split", split)]
WORDS += ["--arm", "p2p", "--arm", "staged"]


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str | None], Any]:
    from click.testing import CliRunner

    from linkbound.cli.simulate import command

    found = CliRunner().invoke(command, [*WORDS[1:], "--json"])
    (cell,) = json.loads(found.output)["cells"]
    return {(one["split"], one["arm"]): one for one in cell["plans"]}


def links_part(plan: Any, name: str) -> float:
    whole_s = plan["figures"][name]["value"]
    return float((whole_s - plan["uncrossed"][name]) / whole_s)


def test_staged_tensors_take_half_of_p99(plans: dict[tuple[str, str | None], Any]) -> None:
    staged, direct = plans["tp2", "staged"], plans["tp2", "p2p"]
    for name in ("ttft_p99_s", "tpot_p99_s", "e2e_p99_s"):
        assert 0.4 < links_part(staged, name) < 0.7
        assert 0.05 < links_part(direct, name) < 0.2
        # Without the link the arms differ by what the resting GPU computes faster, and no more.
        assert staged["uncrossed"][name] == pytest.approx(direct["uncrossed"][name], rel=0.05)


def test_stages_take_next_to_nothing(plans: dict[tuple[str, str | None], Any]) -> None:
    assert abs(links_part(plans["pp2", "p2p"], "tpot_p99_s")) < 0.02


def test_where_nothing_crosses_nothing_is_due(plans: dict[tuple[str, str | None], Any]) -> None:
    assert plans["one GPU", None]["uncrossed"] is None
    assert plans["2 replicas", None]["uncrossed"] is None


def test_the_text_says_whose_it_is(capsys: Any) -> None:
    assert run(WORDS) == 0
    out = capsys.readouterr().out
    assert "tp2, staged: of ttft p99 ~" in out
    assert "pp2, p2p: of ttft p99 less than 1 %" in out
    assert out.count("is the link's.") == 4
