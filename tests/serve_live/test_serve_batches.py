"""Engines without HTTP: turns, times, faults, the runs file; a module stands for vLLM."""

import json
import os
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from serve_cases import plain_batch

from linkbound.cli.serve import command
from linkbound.errors import UsageError
from linkbound.evidence import Failed, Measured, Study
from linkbound.links.types import Arm
from linkbound.serve import parse_runs
from linkbound.serve.batch_records import held_batches
from linkbound.serve.batch_types import Batch, BatchTimes
from linkbound.serve.batches import moved_in, run_batches
from linkbound.serve.contenders import Contender, ServeRun
from linkbound.serve.orders import measure as measure_calls
from linkbound.serve.plan import plan_batches, plan_contenders
from linkbound.serve.types import EngineRun
from linkbound.serve.vllm_child import Engine
from linkbound.splits.types import Split

FAKE = Path(__file__).with_name("fake_vllm")
SHAPE = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
ONE = Contender(split=Split(), arm=None)
TWIN = Contender(split=Split(), arm=None, twin_of=Split(tp=2))


@pytest.fixture(autouse=True)
def _fake_vllm(monkeypatch):
    paths = [str(FAKE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def model(tmp_path, fault="good"):
    """A folder with a configuration that names what its engine does."""
    folder = tmp_path / f"model-{fault}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, "fault": fault}))
    return folder


def tp2(arm):
    return Contender(split=Split(tp=2), arm=arm)


def asked(tmp_path, fault="good", **changes):
    plain = {
        "engine": "vllm-offline",
        "model": str(model(tmp_path, fault)),
        "contenders": (ONE,),
        "batches": (plain_batch(), plain_batch(batch=3, output_tokens=1)),
        "repeats": 1,
        "devices": (0, 1),
        "context_tokens": 1024,
        "sequences": 256,
        "dummy_weights": True,
        "ready_limit_s": 60.0,
        "batch_limit_s": 30.0,
    }
    return ServeRun(**plain | changes)


def measure(tmp_path, run):
    """(records of batches, of starts, what was said); every record is sound."""
    said = []
    with Study.open_or_create(tmp_path / "s.linkbound") as study:
        run_batches(study, run, said.append)
        assert study.verify() == []
        return held_batches(study, run), study.find("serve.start"), said


def run_of(record):
    return msgspec.convert(record.outcome.values["run"], EngineRun)


def test_every_batch_of_every_contender_is_a_run(tmp_path):
    contenders = (ONE, tp2(Arm.P2P), tp2(Arm.STAGED))
    records, starts, _ = measure(tmp_path, asked(tmp_path, contenders=contenders))
    assert len(records) == 6
    assert len(starts) == 3
    runs = [run_of(record) for record in records]
    assert [(one.spec.tp, one.spec.arm, one.spec.batch) for one in runs] == [
        (1, None, 2),
        (1, None, 3),
        (2, Arm.P2P, 2),
        (2, Arm.P2P, 3),
        (2, Arm.STAGED, 2),
        (2, Arm.STAGED, 3),
    ]
    for one in runs:
        assert len(one.times.prefill_s) == 2
        assert len(one.times.total_s) == (2 if one.spec.output_tokens > 1 else 0)
        assert all(time_s > 0 for time_s in one.times.prefill_s)
    assert records[0].samples.column("call") == ("prefill", "prefill", "total", "total")


def test_calls_are_those_of_the_recorded_runs(tmp_path):
    """The first, the fixed prompt, one to warm up, then the timed ones: new prompts each."""
    run = asked(tmp_path, batches=(plain_batch(output_tokens=9),))
    measure(tmp_path, run)
    calls = [
        json.loads(line) for line in (Path(run.model) / "calls.jsonl").read_text().splitlines()
    ]
    assert [(one["tokens"], len(one["prompts"])) for one in calls] == [
        (8, 1),
        (48, 1),
        (4, 2),
        (1, 2),
        (1, 2),
        (9, 2),
        (9, 2),
    ]
    prompts = [tuple(ids) for one in calls[2:] for ids in one["prompts"]]
    assert len(set(prompts)) == len(prompts) == 10
    assert {len(ids) for ids in prompts} == {16}
    assert all(100 <= token < 512 for ids in prompts for token in ids)


def test_the_same_command_goes_on(tmp_path):
    first = asked(tmp_path, batches=(plain_batch(),))
    measure(tmp_path, first)
    more = asked(tmp_path, batches=(plain_batch(), plain_batch(batch=3)))
    _, starts, said = measure(tmp_path, more)
    assert "one GPU, 2 x 16 + 3: already there" in said
    assert len(starts) == 2
    _, starts, _ = measure(tmp_path, more)
    assert len(starts) == 2


def test_side_by_side_all_stand_before_the_first_batch_and_take_turns(tmp_path):
    contenders = (ONE, tp2(Arm.P2P), TWIN)
    run = asked(tmp_path, contenders=contenders, repeats=2, side_by_side=True)
    records, starts, said = measure(tmp_path, run)
    assert [line for line in said if line.endswith("starting vllm-offline")] == said[:3]
    assert [line.partition(",")[0] for line in said[3:]] == [
        *("one GPU", "tp2 p2p", "twin of tp2") * 2,
        *("twin of tp2", "tp2 p2p", "one GPU") * 2,
    ]
    assert len(starts) == 3
    assert len(records) == 12
    assert all(isinstance(record.outcome, Measured) for record in records)


def test_side_by_side_a_dead_engine_costs_its_own_batches(tmp_path):
    dead = asked(tmp_path, "dies-later", side_by_side=True, repeats=2)
    records, _, said = measure(tmp_path, dead)
    kinds = [type(record.outcome) for record in records]
    assert kinds == [Measured, Measured, Failed, Failed]
    assert "server-died" in said[-1]


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        ("dies-at-once", ["server-died", "server-died"]),
        ("falls-short", ["server-died", "server-died"]),
        ("ignores-arm", ["arm-not-kept", "arm-not-kept"]),
    ],
)
def test_what_goes_wrong_is_a_record(tmp_path, fault, codes):
    run = asked(tmp_path, fault, contenders=(tp2(Arm.STAGED),))
    records, _, _ = measure(tmp_path, run)
    assert [record.outcome.reason.code for record in records] == codes
    assert all(record.outcome.log is not None for record in records)


def test_after_a_death_the_next_batch_gets_a_fresh_engine(tmp_path):
    batches = tuple(plain_batch(batch=count) for count in (1, 2, 3))
    records, starts, _ = measure(tmp_path, asked(tmp_path, "dies-later", batches=batches))
    assert [type(record.outcome) for record in records] == [Measured, Failed, Measured]
    assert "EngineCore encountered an issue" in records[1].outcome.reason.text
    assert len(starts) == 2


def test_a_hang_is_ended_at_the_limit(tmp_path):
    run = asked(tmp_path, "hangs", batches=(plain_batch(),), batch_limit_s=0.5)
    (record,), _, _ = measure(tmp_path, run)
    # The batch is not over, and the child no longer answers.
    assert record.outcome.reason.code in ("server-silent", "time-limit")


def test_arms_of_random_weights_are_compared_inside_a_split_alone(tmp_path):
    contenders = (ONE, tp2(Arm.P2P), tp2(Arm.STAGED))
    run = asked(tmp_path, contenders=contenders, batches=(plain_batch(),))
    with Study.open_or_create(tmp_path / "s.linkbound") as study:
        run_batches(study, run, lambda _: None)
        outputs = study.find("serve.output")
    assert len(outputs) == 3
    assert all(isinstance(record.outcome, Measured) for record in outputs)
    assert outputs[0].outcome.values["tokens"][0]["token"] == "token_id:7"
    keys = [contender.model_key for contender in (*contenders, TWIN)]
    assert keys == ["one GPU", "tp2", "tp2", "twin of tp2"]


def test_words_of_batches():
    found = plan_batches("1,8,128x128,1x8192+1,1", 1024, 65, "100,512", 3, 1)
    assert [(one.batch, one.prompt_tokens, one.output_tokens) for one in found] == [
        (1, 1024, 65),
        (8, 1024, 65),
        (128, 128, 65),
        (1, 8192, 1),
        (1, 1024, 65),
    ]
    # Each point of a run draws its own prompts.
    assert len({one.seed for one in found}) == len(found)
    for text in ("", "0", "8x", "x8", "8+0", "1,,2", "8 x 8", "-1", "1e3", "9" * 30):
        with pytest.raises(UsageError, match="--batch"):
            plan_batches(text, 8, 8, "100,512", 3, 1)
    with pytest.raises(UsageError, match="none was given"):
        plan_batches(None, 8, 8, "100,512", 3, 1)


def test_a_twin_is_a_contender_of_one_gpu():
    found = plan_contenders(("tp2",), ("p2p",), None, ("tp2", "pp2"), external=False)
    assert [one.name for one in found] == ["tp2 p2p", "twin of tp2", "twin of pp2"]
    assert [one.split.gpus for one in found] == [2, 1, 1]
    (alone,) = plan_contenders((), (), None, ("tp2",), external=False)
    assert alone.name == "twin of tp2"


def test_what_a_batch_moves_includes_its_warm_up():
    moved = moved_in(Batch(batch=4, prompt_tokens=100, output_tokens=9, calls=2), 8192)
    # One call of 4 tokens, two of 1, two of 9.
    assert moved.prompt_tokens == 5 * 4 * 100
    assert moved.prompts == 5 * 4
    assert moved.decode_tokens == 4 * (3 + 2 * 8)
    assert (moved.fewest_in_step, moved.most_in_step) == (400, 400)
    alone = moved_in(Batch(batch=1, prompt_tokens=8192, output_tokens=1, calls=3), 8192)
    assert (alone.prompt_tokens, alone.decode_tokens) == (4 * 8192, 0)


def test_times_are_taken_inside_the_child(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    engine = Engine()
    folder = model(tmp_path)
    engine.build({"model": str(folder), "tensor_parallel_size": 1})
    times = measure_calls(engine, plain_batch())
    assert isinstance(times, BatchTimes)
    assert (len(times.prefill_s), len(times.total_s)) == (2, 2)
    alone = measure_calls(engine, plain_batch(output_tokens=1))
    assert (len(alone.prefill_s), alone.total_s) == (2, ())


def serve(tmp_path, *more):
    arguments = (
        *(model(tmp_path) / "config.json", "--engine", "vllm-offline", "--dummy-weights"),
        *("--gpus", "0,1", "--batch", "2,3x32+1", "--prompt", "16", "--output", "3"),
        *("--calls", "2", "--repeats", "1", "-C", tmp_path / "s.linkbound", *more),
    )
    words = [str(one) for one in arguments]
    return CliRunner().invoke(command, words, standalone_mode=False)


def test_verb_prints_and_writes_a_runs_file_that_is_read_again(tmp_path):
    file = tmp_path / "out" / "runs.jsonl"
    file.parent.mkdir()
    result = serve(tmp_path, "--split", "one", "--split", "tp2", "--twin", "tp2", "--runs", file)
    assert result.exception is None, result.output
    assert "Beyond the twin" in result.stdout
    assert "2 x 16 + 3  twin of tp2" in result.stdout
    runs = parse_runs(file.read_bytes(), "runs.jsonl")
    assert [(run.spec.model, run.spec.tp, run.spec.arm) for run in runs[::2]] == [
        ("model-good", 1, None),
        ("model-good", 2, Arm.P2P),
        ("model-good-shard-of-tp2", 1, None),
    ]
    shard = json.loads(
        (file.parent / "configs" / "model-good-shard-of-tp2" / "config.json").read_text()
    )
    assert (shard["num_attention_heads"], shard["head_dim"]) == (4, 64)
    whole = json.loads((file.parent / "configs" / "model-good" / "config.json").read_text())
    assert whole["num_attention_heads"] == 8


def test_verb_as_json_and_side_by_side(tmp_path):
    result = serve(tmp_path, "--split", "tp2", "--twin", "tp2", "--side-by-side", "--json")
    assert result.exception is None, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "linkbound.serve.batches"
    assert [row["contender"] for row in document["rows"]] == ["tp2 p2p", "twin of tp2"] * 2
    assert len(document["beyond_twins"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "1"), "--rate has no effect"),
        (("--slo", "ttft=1s"), "--slo has no effect"),
        (("--arm", "net", "--split", "tp2"), "no arm 'net'"),
        (("--split", "x2"), "no replicas"),
        (("--extra", "--enforce-eager"), "no argument of vLLM's LLM"),
        (("--twin", "tp3"), "tp 3 does not divide"),
    ],
)
def test_wrong_words_are_one_clear_error(tmp_path, arguments, words):
    result = serve(tmp_path, *arguments)
    assert isinstance(result.exception, UsageError), result.output
    assert words in str(result.exception)


def test_batches_are_refused_by_servers():
    words = ["m", "--engine", "vllm", "--rate", "1", "--batch", "8"]
    result = CliRunner().invoke(command, words, standalone_mode=False)
    assert "--batch has no effect" in str(result.exception)
