"""Transformers under a `device_map`: its child with stand-ins, and with the libraries if here."""

import importlib.util
import json
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from serve_cases import plain_batch

from fake_ports import FakePorts
from linkbound.cli.serve import command
from linkbound.evidence import Failed, Study
from linkbound.evidence.types import Severity
from linkbound.links.live.meter import TrafficMeter
from linkbound.links.types import Arm
from linkbound.model.read_model import read_model
from linkbound.serve.batch_findings import batch_findings
from linkbound.serve.batch_records import HAND_OVER_KIND, held_batches
from linkbound.serve.batch_types import HandOver, HandOvers
from linkbound.serve.batches import run_batches
from linkbound.serve.compare_batches import BatchRow, Middle
from linkbound.serve.contenders import Contender, ServeRun, breaks_arm
from linkbound.serve.expected import expected_copies
from linkbound.serve.hand_over_rows import HandOverRow
from linkbound.serve.moved import moved_by_batch
from linkbound.serve.path_watch import PathWatch
from linkbound.serve.traffic_rows import TrafficRow
from linkbound.serve.transformers_child import device_map
from linkbound.serve.types import EngineRun
from linkbound.splits.layer_map import layer_map_crossings
from linkbound.splits.ranks import stage_bounds
from linkbound.splits.types import CrossingKind, Phase, Split
from linkbound.splits.wire import Wire

FAKE = Path(__file__).with_name("fake_transformers")
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
LLAMA_TOKEN_BYTES = 2 * 8192 + 17 * 8 + 32 * 256
LLAMA_LOGITS_BYTES = 128256 * 2


@pytest.fixture
def _fake(monkeypatch):
    paths = [str(FAKE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def model(tmp_path, fault="good"):
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, "fault": fault}))
    return folder


def pp2(arm):
    return Contender(split=Split(pp=2), arm=arm)


def measure(tmp_path, *contenders, fault="good", **changes):
    """(runs, hand-overs, the calls of the child)"""
    folder = model(tmp_path, fault)
    run = ServeRun(
        engine="transformers-offline",
        model=str(folder),
        contenders=contenders,
        batches=(plain_batch(),),
        repeats=1,
        devices=(0, 1),
        context_tokens=1024,
        sequences=256,
        dummy_weights=True,
        ready_limit_s=60.0,
        batch_limit_s=30.0,
        **changes,
    )
    with Study.open_or_create(tmp_path / "s.linkbound") as study:
        run_batches(study, run, lambda _: None)
        assert study.verify() == []
        lines = (folder / "calls.jsonl").read_text().splitlines()
        return (
            held_batches(study, run),
            held_batches(study, run, HAND_OVER_KIND),
            [json.loads(line) for line in lines],
        )


@pytest.mark.usefixtures("_fake")
def test_one_gpu_and_a_split_are_runs_of_this_engine(tmp_path):
    records, handed, calls = measure(tmp_path, ONE, pp2(Arm.P2P), extra=("revision=3",))
    runs = [msgspec.convert(record.outcome.values["run"], EngineRun) for record in records]
    assert [(run.spec.engine, run.spec.pp, run.spec.arm) for run in runs] == [
        ("transformers", 1, None),
        ("transformers", 2, Arm.P2P),
    ]
    assert all(len(run.times.total_s) == 2 for run in runs)
    assert records[0].method == "linkbound.serve.transformers_child"
    built = [line for line in calls if line.get("built")]
    first = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 0}
    last = {"model.layers.2": 1, "model.layers.3": 1}
    last |= {"model.norm": 1, "model.rotary_emb": 1, "lm_head": 1}
    assert [line["map"] for line in built] == [
        {"": 0},
        {**first, **last},
    ]
    assert built[0]["arguments"] == {"revision": 3}
    # Nothing is handed over on one GPU.
    assert [record.subject["contender"] for record in handed] == ["pp2 p2p"]


@pytest.mark.usefixtures("_fake")
def test_copies_of_both_kinds_of_steps_are_counted_and_timed(tmp_path):
    records, (record,), _ = measure(tmp_path, pp2(Arm.P2P))
    found = msgspec.convert(record.outcome.values, HandOvers)
    # One hidden state, two embeddings for two layers each, the logits of two sequences.
    assert (found.prefill.tensors, found.token.tensors) == (6, 6)
    assert found.prefill.size_bytes == 2 * 16 * 1024 + 4 * 2 * 16 * 128 + 2 * 2048
    assert found.token.size_bytes == 2 * 1024 + 4 * 2 * 128 + 2 * 2048
    assert found.prefill.time_s > 0
    assert record.parents[0] == records[0].id


@pytest.mark.usefixtures("_fake")
def test_only_the_staged_arm_goes_through_pinned_memory(tmp_path):
    _, _, calls = measure(tmp_path, pp2(Arm.P2P), pp2(Arm.STAGED))
    direct, staged = (
        [line for line in calls if "pinned" in line][part] for part in (slice(9), slice(9, None))
    )
    assert {line["pinned"] for line in direct} == {0}
    # The first call of 8 tokens: six copies a step, each waits once.
    assert (staged[0]["pinned"], staged[0]["waits"]) == (48, 48)


@pytest.mark.usefixtures("_fake")
def test_arms_answer_alike(tmp_path):
    measure(tmp_path, pp2(Arm.P2P), pp2(Arm.STAGED))
    with Study.open_or_create(tmp_path / "s.linkbound") as study:
        outputs = [record.outcome for record in study.find("serve.output")]
        assert study.find("serve.finding") == []
    assert [outcome.values["tokens"][0]["token"] for outcome in outputs] == ["token_id:7"] * 2


@pytest.mark.usefixtures("_fake")
def test_a_model_that_does_not_fit_is_a_record(tmp_path):
    (record,), handed, _ = measure(tmp_path, ONE, fault="dies-at-once")
    assert isinstance(record.outcome, Failed)
    assert "CUDA out of memory" in record.outcome.reason.text
    assert handed == ()


@pytest.mark.usefixtures("_fake")
def test_verb_prints_what_is_copied(tmp_path):
    words = [
        *(str(model(tmp_path) / "config.json"), "--engine", "transformers-offline"),
        *("--dummy-weights", "--gpus", "0,1", "--batch", "2", "--prompt", "16", "--output", "3"),
        *("--calls", "2", "--split", "one", "--split", "pp2", "--arm", "p2p", "--arm", "staged"),
        *("--side-by-side", "-C", str(tmp_path / "s.linkbound"), "--runs", str(tmp_path / "r")),
    ]
    result = CliRunner().invoke(command, words, standalone_mode=False)
    assert result.exception is None, result.output
    assert "Copied from GPU to GPU in one step" in result.stdout
    rows = [line.split()[6:10] for line in result.stdout.splitlines() if "pp2" in line]
    assert ["p2p", "token", "6", "0.007"] in rows
    assert ["staged", "prefill", "6", "0.053"] in rows
    assert json.loads((tmp_path / "r").read_text().splitlines()[0])["engine"] == "transformers"


@pytest.fixture(scope="module")
def llama():
    return read_model("llama-3.1-8b")


def test_copies_of_a_step_of_llama(llama):
    found = layer_map_crossings(llama, Split(pp=2), Phase.DECODE, 8, 8)
    assert sum(one.count for one in found) == 1 + 1 + 1 + 16 + 32 + 1
    assert sum(one.count * one.size_bytes for one in found) == 8 * (
        LLAMA_TOKEN_BYTES + LLAMA_LOGITS_BYTES
    )
    (state,) = [one for one in found if one.kind is CrossingKind.PIPELINE]
    assert (state.ranks, state.size_bytes) == ((0, 1), 8 * 8192)
    assert layer_map_crossings(llama, Split(), Phase.DECODE, 8, 8) == ()


def test_copies_over_three_stages_start_and_end_at_the_first(llama):
    found = layer_map_crossings(llama, Split(pp=3), Phase.PREFILL, 1, 1)
    states = [one.ranks for one in found if one.kind is CrossingKind.PIPELINE]
    assert states == [(0, 1), (1, 2)]
    embeddings = {one.ranks: one.count for one in found if one.size_bytes == 256}
    assert embeddings == {(2, 0): 22, (2, 1): 22}
    (logits,) = [one for one in found if one.kind is CrossingKind.LOGITS]
    assert logits.ranks == (2, 0)


def test_expected_bytes_are_exact_and_linear(llama):
    moved = moved_by_batch(8, 1024, 33, 8 * 1024, calls=2)
    wire = Wire(split=Split(pp=2), arm=Arm.P2P, copies=True)
    found = expected_copies(llama, wire, moved)
    prefill, decoded = 2 * 8 * 1024, 2 * 8 * 32
    assert found.payload_bytes == found.low_bytes == found.high_bytes
    assert found.payload_bytes == pytest.approx(
        (prefill + decoded) * LLAMA_TOKEN_BYTES + (2 * 8 + decoded) * LLAMA_LOGITS_BYTES
    )


@pytest.mark.parametrize(
    ("arm", "passed", "answer"),
    [
        (Arm.P2P, {"nvlink": (1.0, 0.0)}, "direct"),
        (Arm.STAGED, {"pcie": (1.1, 1.1)}, "staged"),
        (Arm.P2P, {"pcie": (1.1, 1.1)}, "staged"),
    ],
)
def test_counters_alone_tell_the_path_of_copies(arm, passed, answer):
    run = ServeRun(
        engine="transformers-offline",
        model="llama-3.1-8b",
        contenders=(pp2(arm),),
        repeats=1,
        devices=(0, 1),
        context_tokens=2048,
        sequences=256,
    )
    ports = FakePorts("GPU0", "GPU1", rate=1.0)
    watch = PathWatch(TrafficMeter(ports, sleep=lambda _: None, period_s=3600.0), run, pp2(arm))
    watch.rest()
    watch.begin()
    payload = 8 * 1024 * LLAMA_TOKEN_BYTES + 8 * LLAMA_LOGITS_BYTES
    sent, received = (round(payload * share) for share in passed.get("nvlink", (0, 0)))
    out, into = (round(payload * share) for share in passed.get("pcie", (0, 0)))
    ports.move("GPU0", sent, received, out, 0)
    ports.move("GPU1", received, sent, 0, into)
    seen = watch.end(moved_by_batch(8, 1024, 1, 8 * 1024), {})
    assert seen.check.expected.payload_bytes == payload
    assert seen.verdict.answer == answer
    assert breaks_arm(arm, seen.verdict.answer) is (answer == "staged" and arm is Arm.P2P)


def test_layers_without_positions_of_one_width_are_not_counted(llama):
    layers = (replace(llama.layers[0], mixer=None), *llama.layers[1:])
    with pytest.raises(ValueError, match="not counted"):
        layer_map_crossings(replace(llama, layers=layers), Split(pp=2), Phase.DECODE, 1, 1)


def test_places_of_modules():
    assert device_map(((0, 4),), [0]) == {"": 0}
    assert device_map(((0, 2), (2, 4)), ["cpu"]) == {"": "cpu"}
    found = device_map(((0, 1), (1, 2), (2, 3)), [0, 1, 2])
    assert (found["model.embed_tokens"], found["model.layers.1"], found["lm_head"]) == (0, 1, 2)


def row(contender, low, value, high, **changes):
    split = contender.split()[0]
    whole = Middle(value=value, low=low, high=high, n=4)
    plain = {
        "contender": contender,
        "split": split,
        "twin": False,
        "gpus": 1 if split == "one" else 2,
        "batch": 8,
        "prompt_tokens": 1024,
        "output_tokens": 33,
        "prefill_s": Middle(value=0.2, low=0.2, high=0.2, n=4),
        "token_s": Middle(value=0.04, low=0.04, high=0.04, n=4),
        "whole_s": whole,
        "problems": (),
        "record_ids": (contender,),
    }
    return BatchRow(**plain | changes)


def handed(contender, prefill_s, token_s):
    return HandOverRow(
        contender=contender,
        batch=8,
        prompt_tokens=1024,
        output_tokens=33,
        last=HandOvers(
            prefill=HandOver(tensors=52, size_bytes=204_000_000, time_s=prefill_s),
            token=HandOver(tensors=52, size_bytes=2_250_000, time_s=token_s),
        ),
        prefill_share=prefill_s / 0.2,
        token_share=token_s / 0.04,
        record_ids=(f"handed {contender}",),
    )


def found(*rows, handed=(), traffic=(), in_turn=True):
    return {one.code: one for one in batch_findings(rows, handed, traffic, in_turn=in_turn)}


def test_a_path_that_changes_nothing_is_said_with_what_crosses():
    pair = row("pp2 p2p", 1.39, 1.40, 1.42), row("pp2 staged", 1.40, 1.42, 1.44)
    copies = handed("pp2 p2p", 0.001, 0.0008), handed("pp2 staged", 0.016, 0.002)
    finding = found(*pair, handed=copies)["link-does-not-matter"]
    assert finding.severity is Severity.INFO
    assert finding.seen == (
        "8 x 1,024 + 33: pp2 staged takes 1.01 (0.99 to 1.04) times as long as pp2 p2p."
    )
    assert finding.why.startswith(
        "A prefill hands over 204.00 MB in 52 copies, alone 1.00 ms direct and 16.00 ms staged, "
        "0.5% and 8.0% of its time; a token's step 2.25 MB in 52 copies, alone 0.80 ms direct and "
        "2.00 ms staged, 2.0% and 5.0% of its time."
    )
    assert "One GPU computes while the other waits" in finding.why
    assert finding.record_ids == (
        *("pp2 p2p", "pp2 staged", "handed pp2 p2p", "handed pp2 staged"),
    )


def test_without_hand_overs_the_counters_say_what_crossed():
    pair = row("pp2 p2p", 1.39, 1.40, 1.42), row("pp2 staged", 1.40, 1.42, 1.44)

    def counted(contender, nvlink, host):
        return TrafficRow(
            contender=contender,
            cell="batch of 8, 1024 in, 33 out",
            n=1,
            nvlink_bytes=nvlink,
            host_bytes=host,
            over=None,
            low_bytes=None,
            high_bytes=None,
            deviation=None,
            agrees=None,
            reasons=(),
            record_ids=(),
        )

    traffic = counted("pp2 p2p", 0.75e9, 0.0), counted("pp2 staged", 0.0, 0.85e9)
    finding = found(*pair, traffic=traffic, in_turn=False)["link-does-not-matter"]
    assert "0.750 GB over NVLink in all calls of this point, 0.850 GB to the host" in finding.why
    assert "waits" not in finding.why
    bare = found(*pair, in_turn=False)["link-does-not-matter"]
    assert bare.why == (
        "Only what a layer gives to the next one crosses, once a boundary. This rests on the "
        "calls: their medians are close, and no pair of them is far apart."
    )


@pytest.mark.parametrize(
    ("staged", "said"),
    [
        (("pp2 staged", 1.50, 1.52, 1.54), False),  # told apart, and 8 % longer
        (("pp2 staged", 1.43, 1.44, 1.45), True),  # told apart, by less than 5 %
        (("pp2 staged", 0.90, 1.41, 1.95), False),  # alike by chance: calls spread too far
        (("tp2 staged", 1.39, 1.40, 1.42), False),  # another split
    ],
)
def test_alike_needs_close_calls_of_one_split_by_layers(staged, said):
    assert ("link-does-not-matter" in found(row("pp2 p2p", 1.39, 1.40, 1.42), row(*staged))) is said
    tensor = row("tp2 p2p", 1.39, 1.40, 1.42), row("tp2 staged", 1.39, 1.40, 1.42)
    assert found(*tensor) == {}


def test_stages_in_turn_explain_why_two_gpus_are_no_faster():
    one, two = row("one GPU", 1.38, 1.40, 1.42), row("pp2 p2p", 1.39, 1.41, 1.43)
    finding = found(one, two)["stages-take-turns"]
    assert finding.seen.startswith("8 x 1,024 + 33: pp2 p2p takes 1.01 (0.98 to 1.04) times")
    assert "others wait" in finding.why
    assert found(one, two, in_turn=False) == {}
    slower = row("pp2 p2p", 1.59, 1.61, 1.63)
    assert list(found(one, slower)) == ["more-gpus-slower"]
    assert "stage after stage" in found(one, slower)["more-gpus-slower"].why
    assert "cost more than it saved" in found(one, slower, in_turn=False)["more-gpus-slower"].why
    assert found(one, row("pp2 p2p", 0.79, 0.8, 0.81)) == {}


@pytest.mark.parametrize("family", ["llama", "mistral", "mixtral", "qwen3", "qwen3_moe"])
@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "transformers", "accelerate")),
    reason="torch, transformers and accelerate are not installed",
)
def test_real_hooks_copy_what_is_counted(tmp_path, monkeypatch, family):
    """On a processor and on the device of shapes without data, which stands for another GPU."""
    import accelerate
    import torch
    import transformers
    from accelerate import hooks
    from accelerate.utils import operations

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    more = {"qwen3_moe": experts, "mixtral": {"num_local_experts": 4}}.get(family, {})
    sizes = {**SHAPE, "num_hidden_layers": 5, "head_dim": 64, "tie_word_embeddings": False}
    config = transformers.AutoConfig.for_model(**{**sizes, "model_type": family, **more})
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "dtype": "bfloat16"}))
    shape = read_model(str(tmp_path / "config.json"))
    split = Split(pp=2)
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    made = kind.from_pretrained(
        None, config=config, state_dict={}, dtype=torch.bfloat16, device_map={"": "cpu"}
    )
    plain, sent = operations.send_to_device, []

    def send(value, device, non_blocking=False, skip_keys=None):
        if isinstance(value, torch.Tensor) and value.device != torch.device(device):
            sent.append(value.nbytes)
            return torch.zeros(value.shape, dtype=value.dtype, device=device)
        return plain(value, device, non_blocking=non_blocking, skip_keys=skip_keys)

    for module in (operations, hooks):
        monkeypatch.setattr(module, "send_to_device", send)
    places = device_map(stage_bounds(split, 5), ["cpu", "meta"])
    accelerate.dispatch_model(made, places, main_device="cpu", skip_keys="past_key_values")
    made.generation_config = transformers.GenerationConfig(pad_token_id=0)
    given = torch.randint(5, 900, (3, 10))

    def copied(tokens):
        sent.clear()
        made.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=tokens,
            do_sample=False,
        )
        return list(sent)

    prefill = copied(1)
    token = copied(2)[len(prefill) :]
    for phase, tokens, seen in ((Phase.PREFILL, 30, prefill), (Phase.DECODE, 3, token)):
        counted = layer_map_crossings(shape, split, phase, tokens, 3)
        assert len(seen) == sum(one.count for one in counted)
        assert sum(seen) == sum(one.count * one.size_bytes for one in counted)
