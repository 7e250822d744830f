"""What each adapter starts: command and environment of every arm, exactly; and what it refuses."""

import json
import re

import pytest

from linkbound.errors import UsageError
from linkbound.links.types import Arm
from linkbound.serve.contenders import Contender, ServeRun, breaks_arm, turns
from linkbound.serve.engines import ENGINES
from linkbound.serve.engines.listing import render_engines
from linkbound.serve.engines.types import ServerPlan
from linkbound.serve.path_types import PathAnswer
from linkbound.serve.servers import Servers, device_shares
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Split

STARTED = [name for name, engine in ENGINES.items() if engine.starts]


def plan(split="tp2", arm=Arm.P2P, **changes):
    plain = {
        "model": "m",
        "split": parse_split(split),
        "arm": arm,
        "devices": (0, 1),
        "port": 8123,
        "folder": "/f",
        "context_tokens": 2048,
        "sequences": 64,
    }
    return ServerPlan(**plain | changes)


def launch(name, **changes):
    return ENGINES[name].launch(plan(**changes))


def has(launched, *flags):
    joined = "\0".join(launched.argv)
    return "\0".join(flags) in joined


def test_vllm_switches_off_every_consumer_in_the_staged_arm():
    staged = launch("vllm", arm=Arm.STAGED)
    assert staged.environment["NCCL_P2P_DISABLE"] == "1"
    for name in ("SYMM_MEM", "FLASHINFER"):
        assert staged.environment[f"VLLM_ALLREDUCE_USE_{name}"] == "0"
    assert staged.environment["VLLM_USE_NCCL_SYMM_MEM"] == "0"
    assert has(staged, "--disable-custom-all-reduce")
    assert has(staged, "--compilation-config", '{"pass_config": {"fuse_allreduce_rms": false}}')
    net = launch("vllm", arm=Arm.NET)
    assert net.environment["NCCL_SHM_DISABLE"] == "1"


def test_vllm_arms_differ_only_where_they_should():
    p2p, nccl = launch("vllm"), launch("vllm", arm=Arm.NCCL)
    assert p2p.environment["NCCL_P2P_LEVEL"] == nccl.environment["NCCL_P2P_LEVEL"] == "SYS"
    assert not has(p2p, "--disable-custom-all-reduce")
    # FlashInfer's ways may use multicast: closed in every arm, the pass of the compiler too.
    for arm in (p2p, nccl):
        assert arm.environment["VLLM_ALLREDUCE_USE_FLASHINFER"] == "0"
        assert has(arm, "--compilation-config", '{"pass_config": {"fuse_allreduce_rms": false}}')
    assert has(nccl, "--disable-custom-all-reduce")
    assert "NCCL_P2P_DISABLE" not in {**p2p.environment, **nccl.environment}
    assert p2p.environment["VLLM_SKIP_P2P_CHECK"] == "0"


def test_vllm_command():
    made = launch("vllm", split="tp2 pp2:20,12", devices=(3, 2, 1, 0), dummy_weights=True)
    assert made.argv[:3] == ("vllm", "serve", "m")
    assert has(made, "--host", "127.0.0.1", "--port", "8123")
    assert has(made, "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")
    assert has(made, "--load-format", "dummy", "--skip-tokenizer-init")
    assert made.environment["VLLM_PP_LAYER_PARTITION"] == "20,12"
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "3,2,1,0"
    assert made.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert made.environment["NCCL_DEBUG_FILE"] == "/f/nccl.%h.%p.log"
    assert has(launch("vllm", extra=("--enforce-eager",)), "--enforce-eager")


def test_vllm_names_its_model_as_it_was_asked_for():
    made = launch("vllm", model="llama-3.1-8b", dummy_weights=True)
    assert has(made, "serve", "/f/model", "--served-model-name", "llama-3.1-8b")
    assert list(made.files) == ["/f/model/config.json"]
    # Without FlashInfer an engine ends at its sampler unless this is off.
    assert made.environment["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


def test_vllm_tokens_have_names_without_a_tokeniser():
    assert ENGINES["vllm"].extra["return_tokens_as_token_ids"] is True


def offline(**changes):
    made = launch("vllm-offline", model="llama-3.1-8b", dummy_weights=True, **changes)
    return made, json.loads(made.files["/f/engine.json"])


def test_vllm_offline_is_built_as_the_recorded_runs_were():
    made, built = offline(context_tokens=9216, sequences=256)
    assert made.argv[1:] == (
        *("-m", "linkbound.serve.vllm_child", "--engine", "/f/engine.json", "--port", "8123"),
    )
    assert built == {
        "model": "/f/model",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "gpu_memory_utilization": 0.92,
        "max_model_len": 9216,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "compilation_config": {
            "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128],
            "pass_config": {"fuse_allreduce_rms": False},
        },
        "load_format": "dummy",
        "skip_tokenizer_init": True,
    }


def test_vllm_offline_arms_and_arguments():
    _, built = offline(arm=Arm.STAGED, extra=("enforce_eager=true", 'dtype="half"'))
    assert built["disable_custom_all_reduce"] is True
    assert (built["enforce_eager"], built["dtype"]) == (True, "half")
    assert "disable_custom_all_reduce" not in offline()[1]
    assert offline(arm=Arm.STAGED)[0].environment["NCCL_P2P_DISABLE"] == "1"
    _, beside = offline(cache_bytes=10**9)
    assert beside["kv_cache_memory_bytes"] == 10**9
    # Others fill the GPU meanwhile: next to nothing has to be free.
    assert beside["gpu_memory_utilization"] == 0.05
    _, twin = offline(split="one", arm=None, shard_of=Split(tp=2))
    assert twin["tensor_parallel_size"] == 1


def test_sglang_staged():
    made = launch("sglang", arm=Arm.STAGED)
    assert made.environment["NCCL_P2P_DISABLE"] == "1"
    flags = ("--disable-custom-all-reduce", "--enforce-disable-flashinfer-allreduce-fusion")
    assert has(made, *flags)
    assert not any("symm" in one or "nvls" in one for one in made.argv)
    assert has(launch("sglang"), "--enable-p2p-check")


def test_llama_cpp_unsets_what_is_tested_for_presence():
    p2p, staged = launch("llama.cpp"), launch("llama.cpp", arm=Arm.STAGED)
    assert p2p.environment["GGML_CUDA_P2P"] == "1"
    # GGML_CUDA_P2P=0 would turn it on.
    assert "GGML_CUDA_P2P" not in staged.environment
    assert "GGML_CUDA_P2P" in staged.drop
    assert staged.environment["NCCL_P2P_DISABLE"] == "1"
    assert has(launch("llama.cpp", split="pp2:20,12"), "-sm", "layer", "-ts", "20,12")
    assert has(launch("llama.cpp", split="tp2:3,1"), "-sm", "tensor", "-ts", "3,1")
    assert has(p2p, "-c", str(2048 * 64), "-np", "64")


def test_tensorrt_llm_has_its_strategy_in_a_file():
    for arm, strategy in ((Arm.P2P, "AUTO"), (Arm.STAGED, "NCCL")):
        made = launch("tensorrt-llm", arm=arm, dummy_weights=True)
        assert has(made, "--config", "/f/trtllm.yaml")
        assert made.files["/f/trtllm.yaml"].splitlines() == [
            f"allreduce_strategy: {strategy}",
            "kv_cache_config:",
            "  enable_block_reuse: false",
            "load_format: dummy",
        ]


def layers(**changes):
    plain = {"model": "llama-3.1-8b", "split": "pp2", "dummy_weights": True}
    made = launch("transformers-offline", **plain | changes)
    return made, json.loads(made.files["/f/engine.json"])


def test_transformers_offline_is_told_stages_and_how_they_copy():
    made, job = layers(extra=('attn_implementation="eager"',))
    assert made.argv[1:] == (
        *("-m", "linkbound.serve.transformers_child"),
        *("--engine", "/f/engine.json", "--port", "8123"),
    )
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert job == {
        "folder": "/f/model",
        "dummy_weights": True,
        "stages": 2,
        "stage_layers": None,
        "staged": False,
        "arguments": {"attn_implementation": "eager"},
    }
    assert list(made.files) == ["/f/model/config.json", "/f/engine.json"]
    assert layers(arm=Arm.STAGED)[1]["staged"] is True
    assert layers(split="pp2:20,12")[1]["stage_layers"] == [20, 12]
    _, real = layers(model="/models/real", dummy_weights=False)
    assert (real["folder"], real["dummy_weights"]) == ("/models/real", False)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("vllm", {"split": "tp2:3,1"}, "no tensor ratios"),
        ("llama.cpp", {"arm": Arm.NET}, "no arm 'net'"),
        ("llama.cpp", {"split": "tp2pp2"}, "cannot run 'tp2 pp2'"),
        ("llama.cpp", {"split": "tp2 ep2"}, "cannot run 'tp2 ep2'"),
        ("xllamacpp", {}, "one processor"),
        ("transformers", {"arm": Arm.STAGED, "split": "pp2"}, "no arm 'staged'"),
        ("transformers", {}, "cannot run 'tp2'"),
        ("transformers", {"split": "pp2", "dummy_weights": True}, "real weights"),
        ("transformers-offline", {"dummy_weights": True}, "cannot run 'tp2' here"),
        ("transformers-offline", {"split": "pp2", "arm": Arm.NCCL}, "no arm 'nccl'"),
        ("transformers-offline", {"split": "pp2", "extra": ("dtype",)}, "of from_pretrained"),
        ("tensorrt-llm", {"split": "tp2:3,1"}, "no tensor ratios"),
    ],
)
def test_what_would_be_dropped_is_refused(name, changes, words):
    with pytest.raises(UsageError, match=words) as refused:
        launch(name, **changes)
    assert refused.value.hint


@pytest.mark.parametrize("name", STARTED)
def test_every_command_stays_on_loopback_and_without_multicast(name, monkeypatch):
    split, arm = ("one", None) if name == "xllamacpp" else ("pp2", Arm.P2P)
    made = launch(name, split=split, arm=arm)
    assert "0.0.0.0" not in made.argv
    assert "8123" in made.argv
    if arm is not None:
        assert made.environment["NCCL_NVLS_ENABLE"] == "0"
    assert not any(re.search(r"[;|&`]", one) for one in made.argv)
    # A guard that is set here reaches the child whatever the adapter says.
    monkeypatch.setenv("VLLM_ALLREDUCE_USE_SYMM_MEM", "0")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    whole = made.whole_environment()
    assert whole["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"
    assert "NCCL_P2P_DISABLE" not in whole


@pytest.mark.parametrize("name", list(ENGINES))
def test_every_engine_says_all_of_it(name):
    engine = ENGINES[name]
    assert set(engine.arms) == set(Arm)
    assert engine.name == name
    for words in (engine.title, engine.ready, engine.death, engine.dummy_weights, engine.splits):
        assert words
    for switch in engine.arms.values():
        said = switch.impossible or switch.switches_off or switch.cannot or switch.environment
        assert said


def test_list_marks_what_was_never_run():
    text = render_engines(ENGINES.values())
    heads = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert len(heads) == 9
    unverified = [line.split(":")[0] for line in heads if line.endswith("[unverified]")]
    assert unverified == ["llama.cpp", "sglang", "transformers", "tensorrt-llm"]
    assert "arm staged: none. Tensors move by `.to()`" in text


def test_devices_of_replicas():
    assert device_shares(parse_split("tp2 x2"), (0, 1, 2, 3)) == ((0, 1), (2, 3))
    assert device_shares(parse_split("x3"), ()) == ((), (), ())
    with pytest.raises(UsageError, match="needs 4 GPUs, 2 were named"):
        device_shares(parse_split("tp2 x2"), (0, 1))


def test_servers_get_a_plan_a_replica(tmp_path):
    run = ServeRun(
        engine="vllm",
        model="m",
        contenders=(),
        cells=(),
        repeats=1,
        devices=(4, 5, 6, 7),
        context_tokens=128,
        sequences=8,
    )
    contender = Contender(split=parse_split("tp2 x2"), arm=Arm.STAGED)
    plans = Servers(run, contender, tmp_path).plans()
    assert [one.devices for one in plans] == [(4, 5), (6, 7)]
    assert {one.split for one in plans} == {Split(tp=2)}
    assert len({one.port for one in plans}) == len({one.folder for one in plans}) == 2


def test_turns_are_abba():
    a, b, c = (Contender(split=Split(tp=n), arm=None) for n in (1, 2, 4))
    order = [one.split.tp for _, one in turns((a, b, c), 3)]
    assert order == [1, 2, 4, 4, 2, 1, 1, 2, 4]


@pytest.mark.parametrize(
    ("arm", "answer", "broken"),
    [
        (Arm.P2P, PathAnswer.STAGED, True),
        (Arm.P2P, PathAnswer.MIXED, False),
        (Arm.P2P, PathAnswer.UNKNOWN, False),
        (Arm.STAGED, PathAnswer.DIRECT, True),
        (Arm.STAGED, PathAnswer.MIXED, True),
        (Arm.STAGED, PathAnswer.STAGED, False),
        (None, PathAnswer.DIRECT, False),
    ],
)
def test_evidence_against_an_arm(arm, answer, broken):
    assert breaks_arm(arm, answer) is broken
