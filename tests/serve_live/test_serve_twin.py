"""A shard as a model, the folder an engine is given, and what a split takes beyond its twin."""

import json

import msgspec
import pytest

from linkbound.errors import InputError, UsageError
from linkbound.evidence.types import Measured, Record
from linkbound.model.parse_config import parse_config
from linkbound.model.read_model import bundled_names, bundled_text
from linkbound.serve.batch_findings import slower_batches
from linkbound.serve.compare_batches import batch_rows, beyond_twins
from linkbound.serve.engines.model_files import configuration, model_files
from linkbound.serve.engines.types import ServerPlan
from linkbound.serve.runs import parse_runs
from linkbound.serve.runs_file import runs_lines
from linkbound.serve.twin import FAMILIES, shard_config, twin_name
from linkbound.serve.types import EngineRun, RunSpec, RunTimes
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Split

LLAMA = json.loads(bundled_text("llama-3.1-8b"))


def plan(model, **changes):
    plain = {
        "model": model,
        "split": Split(),
        "arm": None,
        "devices": (0,),
        "port": 1,
        "folder": "/f",
        "context_tokens": 64,
        "sequences": 1,
    }
    return ServerPlan(**plain | changes)


def test_shard_of_tp2():
    shard = shard_config(LLAMA, parse_split("tp2"))
    assert shard["num_attention_heads"] == 16
    assert shard["num_key_value_heads"] == 4
    assert shard["intermediate_size"] == 7168
    assert shard["vocab_size"] == 64128
    # The hidden size is whole, and the heads stay as wide as they were: 4096 / 32.
    assert (shard["hidden_size"], shard["head_dim"]) == (4096, 128)
    assert shard["num_hidden_layers"] == 32
    assert LLAMA["num_attention_heads"] == 32


@pytest.mark.parametrize(
    ("split", "layers"), [("pp2", 16), ("pp3", 11), ("pp2:20,12", 20), ("tp2pp2", 16)]
)
def test_shard_of_stages_has_the_layers_of_the_largest(split, layers):
    assert shard_config(LLAMA, parse_split(split))["num_hidden_layers"] == layers


def test_fewer_key_value_heads_than_ranks_stay_one():
    qwen = json.loads(bundled_text("qwen3-30b-a3b"))
    shard = shard_config(qwen, parse_split("tp8"))
    assert qwen["num_key_value_heads"] == 4
    assert shard["num_key_value_heads"] == 1
    assert shard["moe_intermediate_size"] == qwen["moe_intermediate_size"] // 8


def test_a_shard_holds_its_share_of_the_parameters():
    """Two halves are the whole, but for the norms, which each holds."""
    whole = parse_config(json.dumps(LLAMA), "whole")
    half = parse_config(json.dumps(shard_config(LLAMA, parse_split("tp2"))), "half")
    norms = (2 * 32 + 1) * 4096
    assert 2 * half.parameters == whole.parameters + norms


@pytest.mark.parametrize(
    ("changes", "split", "words"),
    [
        ({"model_type": "gemma2"}, "tp2", "'gemma2' is none of"),
        ({"model_type": None}, "tp2", "'None' is none of"),
        ({}, "tp3", "tp 3 does not divide"),
        ({"vocab_size": 128257}, "tp2", "vocab_size is 128257"),
        ({}, "tp2ep2", "for even tp and for pp alone"),
        ({}, "tp2:3,1", "for even tp and for pp alone"),
        ({}, "x2", "for even tp and for pp alone"),
    ],
)
def test_what_has_no_twin(changes, split, words):
    with pytest.raises(UsageError, match=words):
        shard_config({**LLAMA, **changes}, parse_split(split))


def test_families_are_those_whose_heads_keep_their_width():
    assert "qwen2" not in FAMILIES
    named = {json.loads(bundled_text(name))["model_type"] for name in bundled_names()}
    assert named - set(FAMILIES) == {"gpt_oss"}
    assert twin_name("llama-3.1-8b", parse_split("tp2pp2")) == "llama-3.1-8b-shard-of-tp2pp2"


def test_a_bundled_name_becomes_a_folder_beside_the_logs():
    made = model_files(plan("llama-3.1-8b", dummy_weights=True))
    assert made.folder == "/f/model"
    assert json.loads(made.files["/f/model/config.json"]) == LLAMA
    twin = model_files(plan("llama-3.1-8b", dummy_weights=True, shard_of=Split(tp=2)))
    assert json.loads(twin.files["/f/model/config.json"])["vocab_size"] == 64128
    with pytest.raises(UsageError, match="no weights"):
        model_files(plan("llama-3.1-8b"))


def test_a_folder_is_taken_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert model_files(plan(str(tmp_path))).folder == str(tmp_path)
    assert model_files(plan("org/some-model")).files == {}
    file = str(tmp_path / "config.json")
    assert model_files(plan(file, dummy_weights=True)).folder == "/f/model"
    assert json.loads(configuration(str(tmp_path), Split(pp=2)))["num_hidden_layers"] == 16
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="not a JSON object"):
        configuration(file, Split(tp=2))


def record(contender, *, prefill, total, gpus=1, split="tp2", twin=False):
    run = EngineRun(
        tag=contender,
        line=1,
        spec=RunSpec(
            model="m",
            tp=gpus,
            pp=1,
            expert_parallel=False,
            custom_all_reduce=True,
            p2p_disabled=False,
            batch=8,
            prompt_tokens=1024,
            output_tokens=11,
        ),
        times=RunTimes(prefill_s=prefill, total_s=total),
    )
    return Record(
        kind="serve.run",
        subject={
            "contender": contender,
            "split": split,
            "twin": twin,
            "gpus": gpus,
            "batch": 8,
            "prompt_tokens": 1024,
            "output_tokens": 11,
        },
        outcome=Measured(values={"run": msgspec.to_builtins(run)}),
        method="test",
    )


def test_a_split_beyond_its_twin():
    rows = batch_rows(
        [
            record("tp2 p2p", prefill=(0.12, 0.13), total=(0.42, 0.43), gpus=2),
            record("tp2 p2p", prefill=(0.125,), total=(0.425,), gpus=2),
            record("twin of tp2", prefill=(0.1,), total=(0.3,), twin=True),
        ]
    )
    split, twin = rows
    assert split.prefill_s.n == 3
    assert (split.prefill_s.value, split.prefill_s.low, split.prefill_s.high) == (0.125, 0.12, 0.13)
    # A token of the split: (0.425 - 0.125) / 10; of the twin: (0.3 - 0.1) / 10.
    assert split.token_s.value == pytest.approx(0.03)
    assert split.token_s.low == pytest.approx((0.42 - 0.13) / 10)
    assert split.token_s.high == pytest.approx((0.43 - 0.12) / 10)
    assert twin.token_s.value == pytest.approx(0.02)
    (beyond,) = beyond_twins(rows)
    assert beyond.contender == "tp2 p2p"
    assert beyond.prefill.value == pytest.approx(0.025)
    assert beyond.prefill_share == pytest.approx(0.2)
    assert beyond.token.value == pytest.approx(0.01)
    assert beyond.token.low == pytest.approx(0.029 - 0.02)
    assert beyond.token_share == pytest.approx(1 / 3)


def test_more_gpus_slower_only_where_no_calls_overlap():
    one = record("one GPU", prefill=(0.1, 0.11), total=(0.40, 0.44), split="one GPU")
    slow = record("tp2 staged", prefill=(0.2, 0.21), total=(0.50, 0.52), gpus=2)
    near = record("tp2 nccl", prefill=(0.1, 0.11), total=(0.43, 0.50), gpus=2)
    (finding,) = slower_batches(batch_rows([one, slow, near]))
    assert finding.code == "more-gpus-slower"
    assert "tp2 staged takes 1.18 times as long as one GPU" in finding.seen
    # A twin is no plan to fall back to.
    twin = record("twin of tp2", prefill=(0.05,), total=(0.2,), twin=True)
    assert slower_batches(batch_rows([near, twin])) == ()


def test_rows_of_a_runs_file_are_read_as_they_were_written():
    spec = RunSpec(
        model="llama-3.1-8b",
        tp=2,
        pp=1,
        expert_parallel=False,
        custom_all_reduce=False,
        p2p_disabled=True,
        batch=8,
        prompt_tokens=1024,
        output_tokens=65,
    )
    times = RunTimes(prefill_s=(0.25, 0.375), total_s=(0.5, 0.75))
    runs = (
        EngineRun(
            tag="llama-3.1-8b_tp2_staged",
            line=1,
            spec=spec,
            times=times,
            started="2026-11-30T12:00:00+00:00",
        ),
        EngineRun(tag="x", line=2, spec=spec, times=RunTimes(prefill_s=(0.25,))),
    )
    assert parse_runs(runs_lines(runs).encode(), "runs.jsonl") == runs
    row = json.loads(runs_lines(runs).splitlines()[0])
    assert (row["prefill_s"], row["total_s"]) == (0.375, 0.75)
    assert row["tpot_ms"] == pytest.approx(0.375 / 64 * 1e3)
    assert row["tok_s"] == pytest.approx(8 * 65 / 0.75)
