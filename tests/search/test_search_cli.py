"""`linkbound search`: recorded machines, its outputs, and what it keeps."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived
from linkbound.predict.types import Plan
from linkbound.report.search_text import gpu_words, short_gpus
from linkbound.splits.types import Placement, Split

H200 = ("--machine", "h200-pair", "--prompt", "1024", "--output", "64")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def document(capsys: Any, *words: str) -> Any:
    capsys.readouterr()
    assert run(["search", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_on_the_recorded_pair_one_request_is_split_and_many_are_not(capsys: Any) -> None:
    found = document(capsys, "llama-3.1-8b", *H200, "--concurrency", "1,128", "--prompt", "128")
    one, many = found["searches"]
    assert one["best"]["split"] == "tp2"
    assert one["best"]["gpus"] == ["GPU0", "GPU1"]
    assert many["best"]["split"] == "2 replicas"
    assert all(search["exhaustive"] for search in found["searches"])
    for search in found["searches"]:
        for choice in search["front"]:
            for name in ("latency_s", "ttft_s", "tokens_per_s"):
                assert choice[name]["low"] <= choice[name]["value"] <= choice[name]["high"]
            assert choice["goodput_per_s"] is None


def test_the_text_says_that_all_is_predicted_and_whose_machine_it_is(capsys: Any) -> None:
    assert run(["search", "llama-3.1-8b", *H200, "--concurrency", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Predicted: llama-3.1-8b on the recorded machine h200-pair.\n")
    assert "tp2, p2p has the lowest latency, ~" in out
    assert "It runs on GPU0, GPU1." in out
    assert "every placement compared" in out


def test_a_gpu_of_unknown_memory_is_left_out_and_said(capsys: Any) -> None:
    found = document(capsys, "llama-3.1-8b", "--machine", "5060ti-pair", "--concurrency", "1")
    (search,) = found["searches"]
    assert set(search["left_out"]) == {"GPU0"}
    assert all("GPU0" not in choice["gpus"] for choice in search["front"])


def test_nothing_that_fits_is_said_once_with_its_reason(capsys: Any) -> None:
    assert run(["search", "llama-3.1-70b", "--machine", "5060ti-pair", "--concurrency", "1"]) == 0
    out = capsys.readouterr().out
    assert "holds one sequence of the load. pp2: needs 67." in out
    assert "ruled out" not in out


def test_an_engine_that_is_none_is_refused_before_the_search(capsys: Any) -> None:
    assert run(["search", "llama-3.1-8b", *H200, "--engine", "fooengine"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "No command is known for 'fooengine'." in told.err


def test_demands_ask_for_goodput(capsys: Any) -> None:
    found = document(capsys, "qwen3-32b", *H200, "--concurrency", "32", "--slo", "tpot=30ms")
    (search,) = found["searches"]
    assert search["objective"] == "goodput"
    assert search["slo"]["tpot_s"] == 0.03
    best = search["best"]
    assert best["goodput_per_s"]["value"] > 0
    assert best["tpot_s"]["value"] <= 0.03
    assert run(["search", "qwen3-32b", *H200, "--for", "goodput"]) == 2
    assert "--for goodput needs --slo." in capsys.readouterr().err


def test_a_demand_that_an_interval_crosses(capsys: Any) -> None:
    """tp2 takes ~1.83 s (1.74-1.92) of the 1.9; two replicas, which it beats, keep them surely."""
    words = ("qwen3-32b", "--machine", "h200-pair", "--concurrency", "32")
    slo = ("--slo", "ttft=1.9s,tpot=30ms")
    (search,) = document(capsys, *words, *slo)["searches"]
    best = search["best"]
    assert (best["split"], best["limit"]) == ("tp2", 32)
    assert best["full_ttft_s"]["value"] < 1.9 < best["full_ttft_s"]["high"]
    goodput = best["goodput_per_s"]
    assert goodput["low"] == 0 < goodput["value"] < goodput["high"]
    assert goodput["high"] == pytest.approx(best["tokens_per_s"]["high"] / 256)
    assert "though whether it keeps the demands is inside the error" in search["reason"]
    assert "; 2 replicas is next with ~4.79 requests/s" in search["reason"]
    (stricter,) = document(capsys, *words, "--slo", "ttft=1.7s,tpot=30ms")["searches"]
    assert stricter["best"]["split"] == "2 replicas"
    assert stricter["best"]["goodput_per_s"]["value"] == pytest.approx(4.795, abs=0.005)
    assert stricter["best"]["goodput_per_s"]["low"] == 0
    assert run(["search", *words, *slo]) == 0
    out = capsys.readouterr().out
    assert re.search(r"full_tok/s +held +full_ttft_ms +full_tpot_ms +full_good_req/s\n", out)
    assert "full_: with every replica at its limit and nothing waiting;" in out


def test_what_it_keeps_rests_on_constants_curves_and_model() -> None:
    assert run(["search", "llama-3.1-8b", *H200, "--concurrency", "1", "-C", "a.linkbound"]) == 0
    with Study.open("a.linkbound") as study:
        assert study.verify() == []
        (record,) = study.find("search.load")
        assert isinstance(record.outcome, Derived)
        kinds = {study.get(parent).kind for parent in record.parents}
        assert {"topology.machine", "model.shape", "predict.calibration"} <= kinds
        assert kinds & {"links.curve", "predict.curve"}
        found = record.outcome.values["found"]
        assert found["best"]["plan"]["split"]["tp"] == 2


@pytest.mark.parametrize(
    ("split", "gpus", "short", "words"),
    [
        (Split(tp=4), "0123", "0-3", "GPU0, GPU1, GPU2, GPU3"),
        (Split(tp=2, replicas=2), "0213", "0,2 1,3", "GPU0, GPU2 and GPU1, GPU3"),
        (Split(replicas=3), "012", "0 1 2", "GPU0 and GPU1 and GPU2"),
        (Split(pp=3), "210", "2,1,0", "GPU2, GPU1, GPU0"),
    ],
)
def test_gpus_in_rank_order(split: Split, gpus: str, short: str, words: str) -> None:
    plan = Plan(split=split, placement=Placement(gpus=tuple(f"k{one}" for one in gpus)), arm=None)
    labels = {f"k{one}": f"GPU{one}" for one in gpus}
    assert short_gpus(plan, labels) == short
    assert gpu_words(plan, labels) == words
