"""Options that a form of a verb does not read, and numbers that are none: refused, with a word."""

from pathlib import Path
from typing import Any

import pytest

from linkbound.cli.main import run

HERE = ("--machine", "h200-pair")
LOAD = ("simulate", "llama-3.1-8b", *HERE, "--rate", "4", "--requests", "10", "--split", "one")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--reuse", "nan"),
        ("--spread", "nan"),
        ("--burstiness", "nan"),  # drew arrivals for ever
        ("--burstiness", "inf"),
        ("--min-gain", "nan"),
        ("--min-gain", "-3"),
    ],
)
def test_what_is_no_finite_number_of_its_range_is_refused(
    option: str, value: str, capsys: Any
) -> None:
    assert run([*LOAD, option, value]) == 2
    assert option in capsys.readouterr().err


def test_limits_are_finite_too(capsys: Any) -> None:
    assert run(["trace", "--limit", "nan", "--", "true"]) == 2
    assert "nan is no finite number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--score", "r.jsonl", "--prompt", "5"], "--prompt has no effect: --score is written."),
        (
            ["--score", "r.jsonl", "--override", "a=1"],
            "--override has no effect: --score is written.",
        ),
        (
            ["--points", "r.jsonl", "--freeze", "f.json", "--concurrency", "7"],
            "--concurrency has no effect: --points is written.",
        ),
        (
            ["--score", "r.jsonl", "--frozen", "f.json", *HERE],
            "--machine has no effect: --frozen is written.",
        ),
    ],
)
def test_predict_refuses_what_it_would_not_read(words: list[str], said: str, capsys: Any) -> None:
    assert run(["predict", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--score", "s", "--cache-tokens", "7"],
            "--cache-tokens has no effect: --score is written.",
        ),
        (["--score", "s", "--reuse", "0.5"], "--reuse has no effect: --score is written."),
        (["--score", "s", "--seed", "2"], "--seed has no effect: --score is written."),
        (["--score", "s", "--engine", "sglang"], "--engine has no effect: --score is written."),
        (["--score", "s", "--frozen", "f", *HERE], "--machine has no effect: --frozen is written."),
        (
            ["--score", "s", "--frozen", "f", "--sequences", "9"],
            "--sequences has no effect: --frozen is written.",
        ),
        (
            ["--concurrency", "2", "--burstiness", "2"],
            "--burstiness has no effect: no --rate is written.",
        ),
        (
            ["--trace", "t.jsonl", "--prompt", "7"],
            "--prompt has no effect: --trace alone is written.",
        ),
    ],
)
def test_simulate_refuses_what_it_would_not_read(words: list[str], said: str, capsys: Any) -> None:
    assert run(["simulate", "llama-3.1-8b", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_frozen_set_is_scored_by_the_verb_that_froze_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = ["predict", "llama-3.1-8b", *HERE, "--concurrency", "1", "--freeze", "calls.json"]
    assert run(calls) == 0
    assert run([*LOAD, "--freeze", "loads.json", "-C", "kept.linkbound"]) == 0
    (tmp_path / "runs.jsonl").write_text("{}\n")
    capsys.readouterr()
    for words, said in (
        (["predict", "--score", "runs.jsonl", "--frozen", "loads.json"], "loads over time, and no"),
        (
            ["simulate", "qwen3-32b", "--score", "kept.linkbound", "--frozen", "loads.json"],
            "loads.json holds loads of llama-3.1-8b, none of qwen3-32b.",
        ),
        (
            ["simulate", "llama-3.1-8b", "--score", "kept.linkbound", "--frozen", "calls.json"],
            "calls.json holds calls and steps, and no load over time.",
        ),
        (
            ["simulate", "llama-3.1-8b", "--score", "kept.linkbound", "--frozen", "loads.json"],
            "kept.linkbound holds no load that `serve` measured.",
        ),
    ):
        assert run(words) == 2
        assert said in capsys.readouterr().err
