"""`linkbound simulate`: what it prints, keeps and compares."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Measured, Predicted, Record, Skipped
from linkbound.links import Arm
from linkbound.predict.simulate import Simulation
from linkbound.predict.simulate.score import LoadScore
from linkbound.serve.contenders import Contender, ServeRun, cell_subject
from linkbound.serve.latency import LoadSummary, spread
from linkbound.serve.load_types import Arrival, Cell
from linkbound.serve.records import load_record
from linkbound.splits import Split
from linkbound.study.reading import convert

HERE = ("--machine", "h200-pair")
SHORT = ("--requests", "150", "--output", "32")


def test_every_split_and_who_is_better(tmp_path: Path, capsys: Any) -> None:
    path = str(tmp_path / "s.linkbound")
    assert run(["simulate", "llama-3.1-8b", *HERE, "--rate", "6", *SHORT, "-C", path]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Simulated: llama-3.1-8b on the recorded machine h200-pair.\n")
    assert "8,192 tokens and 256 sequences a step, prompts beside decodes." in out
    assert "6/s poisson, 150 requests, 1,024 in, 32 out, seed 1\n" in out
    for name in ("one GPU", "2 replicas", "tp2, p2p", "pp2, p2p"):
        assert f"\n{name} " in out
    assert ": tp2, p2p over " in out
    assert len(re.findall(r" ~[0-9.]+ times as good \(", out)) == 2
    with Study.open(Path(path)) as study:
        records = study.find("predict.simulation")
        assert len(records) == 4
        for record in records:
            assert isinstance(record.outcome, Predicted)
            assert record.outcome.low <= record.outcome.value <= record.outcome.high
            found = convert(record, "simulation", Simulation)
            assert found.outcome.requests == 150
            kinds = {study.get(parent).kind for parent in record.parents}
            assert {"topology.machine", "model.shape", "predict.calibration"} <= kinds
            assert ("links.curve" in kinds) == (record.subject["arm"] is not None)
        (verdict,) = study.find("verdict.rate")
        assert isinstance(verdict.outcome, Derived)
        assert set(verdict.parents) == {record.id for record in records}
    assert run(["check", path]) == 0
    capsys.readouterr()
    assert run(["verdict", "-C", path]) == 0
    shown = capsys.readouterr().out
    assert "llama-3.1-8b on h200-pair, simulated: 6/s poisson, 1,024 in, 32 out" in shown
    assert run(["verdict", "-C", path, "--gate"]) in (10, 11)
    assert run(["verdict", "-C", path, "--json"]) == 0


def test_the_document(capsys: Any) -> None:
    asked = ["--concurrency", "4", *SHORT, "--split", "one", "--slo", "ttft=1s", "--json"]
    assert run(["simulate", "llama-3.1-8b", *HERE, *asked]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["version"]) == ("linkbound.simulations", 1)
    (shown,) = document["cells"]
    assert shown["cell"]["arrival"] == "closed"
    (row,) = shown["plans"]
    assert (row["split"], row["arm"], row["overloaded"]) == ("one GPU", None, False)
    # In a closed loop the rate is the engine's: nothing can be more than it serves.
    assert row["capacity_per_s"] is None
    assert row["figures"]["goodput"]["value"] == 1
    for figure in row["figures"].values():
        assert figure["low"] <= figure["value"] <= figure["high"]
    assert 0 < row["cache_mean"] < row["cache_peak"] < 1
    assert shown["comparisons"] == []


def test_what_does_not_fit_says_so(capsys: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "s.linkbound")
    asked = ["--rate", "1", "--requests", "20", "--split", "one", "-C", path]
    assert run(["simulate", "llama-3.1-70b", *HERE, *asked]) == 0
    assert "Not simulated: one GPU: needs " in capsys.readouterr().out
    with Study.open(Path(path)) as study:
        (record,) = study.find("predict.simulation")
        assert isinstance(record.outcome, Skipped)
        assert record.outcome.reason.code == "does-not-fit"


def test_prefill_apart_and_a_trace(tmp_path: Path, capsys: Any) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 150 * at, "input_length": 300 + 7 * at, "output_length": 20}
        for at in range(60)
    ]
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    asked = ["--trace", str(trace), "--prefill-split", "one", "--arm", "staged"]
    assert run(["simulate", "llama-3.1-8b", *HERE, *asked]) == 0
    out = capsys.readouterr().out
    assert "trace of 60, 60 requests, lengths of the trace" in out
    assert "\none GPU after one GPU " in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "1", "--engine", "nothing"), "rules of 'nothing' are not known"),
        (("--rate", "1", "--engine", "transformers"), "rules of 'transformers' are not known"),
        ((), "No load was given"),
        (("--rate", "1", "--split", "one", "--arm", "staged"), "--arm staged has no effect"),
        (("--rate", "1", "--split", "tp4"), "needs 4 GPUs"),
        (("--rate", "1", "--score", "s.linkbound"), "--rate has no effect: --score is written"),
        (("--score", "missing.linkbound"), "no study missing.linkbound"),
    ],
)
def test_wrong_words_are_one_clear_error(
    arguments: tuple[str, ...], words: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", "llama-3.1-8b", *HERE, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("linkbound: ") == 1
    assert words in error


def test_other_engines_have_their_rules_and_borrowed_steps(capsys: Any) -> None:
    asked = ["--rate", "2", *SHORT, "--split", "one", "--engine", "sglang"]
    assert run(["simulate", "llama-3.1-8b", *HERE, *asked]) == 0
    out = capsys.readouterr().out
    assert "Scheduler of sglang: 8,192 tokens and 256 sequences a step, prompts alone" in out
    assert "Step times are vLLM's" in out
    asked[asked.index("one")] = "pp2"
    assert run(["simulate", "llama-3.1-8b", *HERE, *asked]) == 0
    assert "Not simulated: pp2, p2p under an engine whose prompts go alone" in (
        capsys.readouterr().out
    )


def test_one_request_has_no_percentile(capsys: Any) -> None:
    asked = ["--rate", "1", "--requests", "1", "--split", "one", "--split", "tp2", "--json"]
    assert run(["simulate", "llama-3.1-8b", *HERE, *asked]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["cells"]
    for row in shown["plans"]:
        assert {"output_tokens_per_s", "requests_per_s"} <= set(row["figures"])
        assert not [name for name in row["figures"] if name.startswith(("ttft", "e2e"))]
    (comparison,) = shown["comparisons"]
    assert comparison["figure"] == "requests_per_s"
    # One request says nothing of a rate, whatever its two times are.
    assert comparison["answer"] == "undecided"
    assert "It rests on 1 of the 36 requests that a verdict takes." in comparison["text"]


def test_so_many_at_once_of_fewer_is_no_load(capsys: Any) -> None:
    asked = ["--concurrency", "4,100000", "--requests", "10", "--split", "one"]
    assert run(["simulate", "llama-3.1-8b", *HERE, *asked]) == 2
    assert "100,000 requests at once of 10 in all." in capsys.readouterr().err


def measured_study(path: Path, factor: float) -> None:
    """A study with one measured cell in two repeats, and cells that cannot be compared."""
    run_asked = ServeRun(
        engine="vllm",
        model="models/llama8b",
        contenders=(),
        repeats=2,
        context_tokens=4096,
        sequences=256,
    )
    cell = Cell(
        arrival=Arrival.POISSON,
        requests=1000,
        prompt_tokens=1024,
        output_tokens=32,
        seed=1000,
        rate_per_s=5.0,
    )
    trace_cell = msgspec.structs.replace(
        cell, arrival=Arrival.CLOSED, rate_per_s=None, concurrency=3
    )
    times = spread([0.03 * factor + 2e-5 * at for at in range(1000)])
    summary = LoadSummary(
        requests=1000,
        failed=0,
        failures={},
        duration_s=200.0,
        output_tokens=32000,
        requests_per_s=5.0,
        output_tokens_per_s=160.0,
        chunks_per_s=160.0,
        ttft_from_schedule_s=times,
        ttft_from_send_s=times,
        tpot_s=times,
        chunk_gap_s=times,
        e2e_s=times,
        dispatch_lag_s=times,
        goodput=None,
        cached_share=None,
        wrong_lengths=0,
    )
    tp2 = Contender(split=Split(tp=2), arm=Arm.NCCL)
    outside = Contender(split=Split(), arm=None, label="theirs")
    measured = Measured(values=msgspec.to_builtins(summary))
    with Study.create(path) as study:
        for repeat in range(2):
            study.append(load_record(cell_subject(run_asked, tp2, cell, repeat), measured))
        study.append(load_record(cell_subject(run_asked, outside, trace_cell, 0), measured))


def test_measured_cells_are_simulated_and_compared(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "measured.linkbound"
    measured_study(path, 1.0)
    kept = tmp_path / "kept.linkbound"
    asked = ["simulate", "llama-3.1-8b", *HERE, "--score", str(path)]
    assert run([*asked, "-C", str(kept)]) == 0
    out = capsys.readouterr().out
    assert "5/s poisson, 1024 in, 32 out" in out
    assert "Not compared: theirs, 3 at once" in out
    assert run([*asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["figure"]: row for row in document["rows"]}
    assert {"ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "requests_per_s"} <= set(rows)
    for row in rows.values():
        assert row["contender"] == "tp2 nccl"
        assert row["n"] == 2
        assert len(row["record_ids"]) == 2
        value, end = row["predicted"]["value"], row["measured"]
        assert row["error"] == pytest.approx(abs(value - end) / end)
    assert rows["requests_per_s"]["error"] < 0.1
    with Study.open(kept) as study:
        (record,) = study.find("predict.load_score")
        assert len(convert(record, "score", LoadScore).rows) == len(rows)
        (simulated,) = study.find("predict.simulation")
        assert simulated.subject["arm"] == "nccl"
        assert simulated.subject["seed"] == 1000


def test_what_was_measured_changes_no_simulation(tmp_path: Path) -> None:
    figures = []
    for factor in (1.0, 7.0):
        path, kept = tmp_path / f"{factor}.linkbound", tmp_path / f"kept-{factor}.linkbound"
        measured_study(path, factor)
        arguments = ["--score", str(path), "-C", str(kept)]
        assert run(["simulate", "llama-3.1-8b", *HERE, *arguments]) == 0
        with Study.open(kept) as study:
            (record,) = study.find("predict.simulation")
            assert isinstance(record, Record)
            figures.append(convert(record, "simulation", Simulation))
    assert figures[0].figures == figures[1].figures


def test_cells_of_other_models_and_seeds_are_no_repeats(tmp_path: Path, capsys: Any) -> None:
    """They went into one row as repeats, all simulated as the model that was named."""
    path = tmp_path / "measured.linkbound"
    measured_study(path, 1.0)
    with Study.open(path) as study:
        first = study.find("serve.load")[0]
        others = ({"model": "models/qwen3-32b"}, {"seed": 2000})
        for other in others:
            subject = {**first.subject, **other}
            study.append(msgspec.structs.replace(first, subject=subject))
    model = tmp_path / "llama8b"
    model.mkdir()
    config = Path(__file__).parents[1] / "configs/meta-llama--Meta-Llama-3.1-8B/config.json"
    (model / "config.json").write_bytes(config.read_bytes())
    assert run(["simulate", str(model), *HERE, "--score", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "tp2 nccl, 5/s poisson, 1024 in, 32 out: it is of qwen3-32b." in document["skipped"]
    assert [row["n"] for row in document["rows"] if row["figure"] == "ttft_p50_s"] == [2, 1]


def test_no_ratio_is_told_over_a_plan_without_a_good_request(capsys: Any) -> None:
    """`~920,000,000 times as good`, and 0 of 0 was a reason to reject."""
    base = ["simulate", "llama-3.1-8b", *HERE, "--rate", "4", "--requests", "100", "--json"]
    for slo, texts in (
        ("ttft=1us", {"Neither tp2, p2p nor ": "undecided", "Neither pp2, p2p nor ": "undecided"}),
        ("tpot=4.7ms", {"tp2, p2p over 2 replicas: ~0.920 (": "keep", "Neither pp2": "undecided"}),
    ):
        assert run([*base, "--slo", slo]) == 0
        (shown,) = json.loads(capsys.readouterr().out)["cells"]
        assert len(shown["comparisons"]) == len(texts)
        for start, answer in texts.items():
            (found,) = [one for one in shown["comparisons"] if one["text"].startswith(start)]
            assert (found["answer"], found["gain"]) == (answer, None)
