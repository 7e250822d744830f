"""What predict shows beside its sums: hidden sends, what has no row and why, both errors."""

import json
from typing import Any

import pytest
from predict_cases import PP2, engine_on, plan

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.model.types import Load
from linkbound.predict.forecast import forecast
from linkbound.predict.types import TermKind

LOAD = Load(prompt_tokens=1024, output_tokens=256, concurrency=32)


def test_sends_behind_other_groups_are_hidden_and_not_counted(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    found = forecast(engine, plan(engine, PP2, Arm.STAGED), LOAD)
    assert found.decode is not None
    sent = next(one.time.value for one in found.decode.terms if one.kind is TermKind.CROSSINGS)
    # Two groups of 16, 255 decode steps each; prefills send a little more. A send of 16 sequences
    # takes no longer than one of 32, and no less than half of it.
    assert 0.5 * 2 * 254 * sent < found.hidden_sends_s < 2 * 255 * sent + 0.05
    assert found.hidden_sends_s > found.parts[TermKind.CROSSINGS].value
    total = sum(one.value for one in found.parts.values())
    assert total == pytest.approx(found.latency_s.value)


def test_one_sequence_hides_nothing(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    load = Load(prompt_tokens=1024, output_tokens=16, concurrency=1)
    assert forecast(engine, plan(engine, PP2, Arm.STAGED), load).hidden_sends_s == 0
    assert forecast(engine, plan(engine), LOAD).hidden_sends_s == 0


def test_the_outputs_name_hidden_sends_and_what_products_take(capsys: Any) -> None:
    words = ["predict", "llama-3.1-8b", "--machine", "h200-pair", "--concurrency", "32"]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "pp2, p2p: ~10.3 ms of sends between stages are hidden in the call" in out
    # 16 GFLOP take longer than this: it is what they add to the weights' time.
    assert "matrix products beyond the weights' time" in out


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (["--prompt", "200000"], "200,256 tokens a sequence are asked for, the model takes"),
        (["--concurrency", "100000"], "tp2, p2p: 100000 sequences at once do not fit"),
    ],
)
def test_what_is_not_predicted_says_why(asked: list[str], reason: str, capsys: Any) -> None:
    words = ["predict", "llama-3.1-8b", "--machine", "h200-pair", *asked]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert reason in out
    assert "ttft_ms" not in out
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == []
    assert any(reason in one for one in document["not_predicted"])


def test_a_score_has_the_ordinary_error_beside_its_own(capsys: Any, recorded_runs: str) -> None:
    words = ["predict", "--score", recorded_runs, "--machine", "h200-pair"]
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for row in document["rows"]:
        expected = abs(row["predicted"] - row["measured"]) / row["measured"]
        assert row["to_median"] == pytest.approx(expected)
        assert row["error"] <= row["to_median"] + 1e-12
    counted = [
        one["to_median"]
        for one in document["rows"]
        if not one["seen"] and one["metric"] == "tpot_s"
    ]
    assert document["summary"]["tpot_s"]["worst_to_median"] == pytest.approx(max(counted))
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "To median: the distance to the repeats' median over that median." in out


@pytest.fixture
def recorded_runs() -> Any:
    from importlib.resources import as_file, files

    with as_file(files("linkbound") / "recorded" / "h200-pair") as folder:
        yield str(folder / "vllm-0.24.0" / "runs.jsonl")
