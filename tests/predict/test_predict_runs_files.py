"""One command over runs files of other models, splits, arms and engines: every row has a fate."""

import json
from pathlib import Path
from typing import Any

import pytest
from four_gpus import write_four_gpus
from runs_files import row, with_rows

from linkbound.cli.main import run

MODELS = {
    "8b": "meta-llama--Meta-Llama-3.1-8B",
    "70b": "meta-llama--Meta-Llama-3.1-70B",
    "mix": "Qwen--Qwen3-30B-A3B",
    "mixtral": "mistralai--Mixtral-8x7B-v0.1",
    "mla": "deepseek-ai--DeepSeek-V3",
    "fp8": "Qwen--Qwen3-32B-FP8-Static-PerTensor",
    "hybrid": "Qwen--Qwen3.5-35B-A3B",
    "windows": "openai--gpt-oss-20b",
}
ARMS = (
    {"custom_ar": 1, "p2p_disable": "0"},
    {"custom_ar": 0, "p2p_disable": "0"},
    {"custom_ar": 0, "p2p_disable": "1"},
)


def scored(path: Path, machine: str, capsys: Any) -> dict[str, Any]:
    assert run(["predict", "--score", str(path), "--machine", machine, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def is_sane(document: dict[str, Any]) -> bool:
    return all(0 < one["low"] < one["predicted"] < one["high"] < 1e4 for one in document["rows"])


@pytest.mark.parametrize("model", MODELS)
def test_every_model_in_every_split_and_arm_of_two_gpus(
    model: str, tmp_path: Path, capsys: Any
) -> None:
    splits: list[dict[str, int]] = [{}, {"tp": 2}, {"pp": 2}, {"tp": 2, "ep": 1}]
    rows = [row(model, **split, **arm) for split in splits for arm in ARMS]
    document = scored(with_rows(tmp_path, {model: MODELS[model]}, rows), "h200-pair", capsys)
    # Dense models have no experts to spread: those three rows are listed, no row is lost.
    assert len(document["rows"]) / 2 + len(document["skipped"]) == len(rows)
    assert len(document["skipped"]) in (0, 3)
    assert is_sane(document)
    arms = {(one["tp"], one["pp"], one["arm"]) for one in document["rows"]}
    assert arms == {
        (1, 1, None),
        *((2, 1, arm) for arm in ("p2p", "nccl", "staged")),
        *((1, 2, arm) for arm in ("p2p", "nccl", "staged")),
    }


def test_four_gpus_take_rows_that_two_cannot(tmp_path: Path, capsys: Any) -> None:
    rows = [row("70b", tp=4, **arm) for arm in ARMS] + [row("mix", tp=4, ep=1)]
    path = with_rows(tmp_path, {name: MODELS[name] for name in ("70b", "mix")}, rows)
    (tmp_path / "four").mkdir()
    four = scored(path, str(write_four_gpus(tmp_path / "four")), capsys)
    assert [(one["tp"], one["metric"]) for one in four["rows"][:2]] == [
        (4, "prefill_s"),
        (4, "tpot_s"),
    ]
    assert (len(four["rows"]), four["skipped"]) == (8, [])
    assert is_sane(four)
    two = scored(path, "h200-pair", capsys)
    assert two["rows"] == []
    assert len(two["skipped"]) == 4
    assert two["summary"]["tpot_s"]["reason"]["code"] == "no-rows"


def test_rows_that_cannot_be_scored_are_listed_and_the_others_are(
    tmp_path: Path, capsys: Any
) -> None:
    strange = tmp_path / "configs" / "strange"
    strange.mkdir(parents=True)
    (strange / "config.json").write_text(
        json.dumps(
            {
                "model_type": "never_seen",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 100,
                "intermediate_size": 128,
                "cache_compression_ratio": 7,
            }
        )
    )
    rows = [
        row("8b"),
        row("8b", engine="sglang"),
        row("8b", engine="vllm-offline", batch=8),
        row("8b", prefill_all=None, total_all=None, error="out of memory"),
        row("8b", tp=8),
        row("strange"),
        row("8b", tp=1, pp=2, p2p_disable="1", prefill_all=[0.07], total_all=None),
    ]
    path = with_rows(tmp_path, {"8b": MODELS["8b"]}, rows)
    document = scored(path, "h200-pair", capsys)
    shown = [(one["batch"], one["pp"], one["metric"]) for one in document["rows"]]
    assert shown == [
        (4, 1, "prefill_s"),
        (4, 1, "tpot_s"),
        (8, 1, "prefill_s"),
        (8, 1, "tpot_s"),
        (4, 2, "prefill_s"),
    ]
    assert run(["predict", "--score", str(path), "--machine", "h200-pair"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {one}\n" in text for one in document["skipped"])
    starts = [one.split(":")[0] for one in document["skipped"]]
    assert starts == [
        "line 2, one GPU",
        "line 5, tp8",
        "line 6, one GPU",
        "line 4, one GPU",
    ]
    assert "sglang are not known" in document["skipped"][0]
    assert "cache_compression_ratio" in document["skipped"][2]
    assert document["skipped"][3].endswith("it has no time.")


def test_a_machine_without_curves_lists_its_splits(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "four").mkdir()
    folder = write_four_gpus(tmp_path / "four")
    for one in folder.glob("*.p2p-*.txt"):
        one.unlink()
    path = with_rows(tmp_path, {"8b": MODELS["8b"]}, [row("8b"), row("8b", tp=4)])
    document = scored(path, str(folder), capsys)
    assert {one["tp"] for one in document["rows"]} == {1}
    (line,) = document["skipped"]
    assert line.startswith("line 2, tp4: No time is known for all_reduce")
