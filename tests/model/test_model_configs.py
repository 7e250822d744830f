"""Every real configuration is read right, or refused with the keys."""

import json

import pytest
from model_cases import CONFIGS, NAMES, real

from linkbound.errors import ModelRefused
from linkbound.model import (
    Attention,
    LatentAttention,
    MoeFfn,
    Recurrent,
    Role,
    Shard,
    active_parameters,
    cache_bytes,
    kv_bytes_per_token,
)

GOLDEN = json.loads((CONFIGS / "golden.json").read_text(encoding="utf-8"))
REFUSED = {"deepseek-ai--DeepSeek-V4-Flash"}

# Language model alone, from the formulas of docs/models.md and the dimensions in the files.
TOTALS = {
    "MiniMaxAI--MiniMax-M2.5": 228_689_764_864,
    "Qwen--Qwen3-VL-8B-Instruct": 8_190_735_360,
    "google--gemma-4-26B-A4B": 25_233_141_760,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 107_769_861_120,
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": 49_867_145_216,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_940_288,
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": 32_762_123_264,
    "nvidia--DeepSeek-V3.1-NVFP4": 671_026_419_200,
    "moonshotai--Kimi-K2.5": 1_026_408_232_448,
}
KV_BYTES = {
    "meta-llama--Meta-Llama-3.1-8B": 131_072,
    "meta-llama--Meta-Llama-3.1-70B": 327_680,
    "Qwen--Qwen3-0.6B": 114_688,
    "Qwen--Qwen3-32B": 262_144,
    "Qwen--Qwen3-30B-A3B": 98_304,
    "mistralai--Mixtral-8x7B-v0.1": 131_072,
    "openai--gpt-oss-20b": 49_152,
    "openai--gpt-oss-120b": 73_728,
    "deepseek-ai--DeepSeek-V3": 70_272,
    "moonshotai--Kimi-K2.5": 70_272,
    "nvidia--DeepSeek-V3.1-NVFP4": 35_136,
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": 131_072,
    "Qwen--Qwen3.5-35B-A3B": 10 * 2 * 2 * 256 * 2,
    "nvidia--Qwen3.6-35B-A3B-NVFP4": 10 * 2 * 2 * 256,
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": 49 * 2 * 8 * 128 * 2,
    "zai-org--GLM-5": 78 * (512 + 64 + 128) * 2,
    "XiaomiMiMo--MiMo-V2-Flash": (9 * 4 + 39 * 8) * (192 + 128) * 2,
    "google--gemma-4-26B-A4B": (25 * 8 * 512 + 5 * 2 * 1024) * 2,
}


def test_twenty_seven_configurations_are_here():
    assert len(NAMES) == 27


@pytest.mark.parametrize("name", NAMES)
def test_read_or_refused(name):
    if name in REFUSED:
        with pytest.raises(ModelRefused) as caught:
            real(name)
        assert "compress_ratios" in caught.value.keys
        assert "--override" in caught.value.hint
        assert caught.value.exit_code == 2
    else:
        assert real(name).parameters > 0


@pytest.mark.parametrize(("name", "total"), sorted(GOLDEN.items()))
def test_golden_totals(name, total):
    assert real(name).parameters == total


@pytest.mark.parametrize(("name", "total"), sorted(TOTALS.items()))
def test_language_model_totals(name, total):
    towers = (Role.OTHER,)
    assert sum(w.parameters for w in real(name).all_weights if w.role not in towers) == total


@pytest.mark.parametrize(("name", "size"), sorted(KV_BYTES.items()))
def test_kv_bytes_per_token(name, size):
    assert kv_bytes_per_token(real(name)) == size


def test_size_of_qwen3_32b_as_vllm_reports_it():
    assert real("Qwen--Qwen3-32B").weight_bytes / 2**30 == pytest.approx(61.02, abs=0.01)


def test_windows_alternate_in_gpt_oss_and_cap_the_cache():
    shape = real("openai--gpt-oss-20b")
    windows = [layer.mixer.window for layer in shape.layers]
    assert windows == [128, None] * 12
    layer_bytes = 2 * 8 * 64 * 2
    assert cache_bytes(shape, 4096) == 12 * (4096 + 144) * layer_bytes
    assert cache_bytes(shape, 100) == 24 * 100 * layer_bytes


def test_gpt_oss_has_no_dtype_and_says_so():
    assert "The file states no dtype; 16 bits are taken." in real("openai--gpt-oss-20b").gaps


def test_mxfp4_holds_for_experts_only():
    layer = real("openai--gpt-oss-120b").layers[0]
    bits = {weights.name: weights.bits for weights in layer.weights}
    assert bits["experts"] == 4.25
    assert bits["expert biases"] == bits["q"] == bits["router"] == bits["sinks"] == 16


def test_active_parameters_as_published():
    assert active_parameters(real("openai--gpt-oss-20b")) / 1e9 == pytest.approx(3.6, abs=0.05)
    assert active_parameters(real("openai--gpt-oss-120b")) / 1e9 == pytest.approx(5.1, abs=0.1)
    assert active_parameters(real("deepseek-ai--DeepSeek-V3")) / 1e9 == pytest.approx(37, abs=0.6)


def test_latent_attention_ignores_kv_heads_and_head_dim():
    for name in ("deepseek-ai--DeepSeek-V3", "zai-org--GLM-5", "moonshotai--Kimi-K2.5"):
        mixers = {layer.mixer for layer in real(name).layers}
        assert all(isinstance(mixer, LatentAttention) for mixer in mixers)
        assert {(mixer.latent_dim, mixer.rope_dim) for mixer in mixers} == {(512, 64)}


def test_deepseek_divides_as_tensor_parallelism_does():
    weights = {w.name: w.shard for w in real("deepseek-ai--DeepSeek-V3").layers[5].weights}
    assert weights == {
        "q down": Shard.REPLICATED,
        "latent norms": Shard.REPLICATED,
        "q up": Shard.SPLIT,
        "kv down": Shard.REPLICATED,
        "kv up": Shard.SPLIT,
        "o": Shard.SPLIT,
        "router": Shard.REPLICATED,
        "experts": Shard.EXPERTS,
        "shared gate up": Shard.SPLIT,
        "shared down": Shard.SPLIT,
        "norms": Shard.REPLICATED,
    }


def test_llama_divides_as_tensor_parallelism_does():
    shape = real("meta-llama--Meta-Llama-3.1-8B")
    weights = {w.name: w.shard for w in shape.layers[0].weights}
    assert weights == {
        "q": Shard.SPLIT,
        "k": Shard.KV_HEADS,
        "v": Shard.KV_HEADS,
        "o": Shard.SPLIT,
        "gate up": Shard.SPLIT,
        "down": Shard.SPLIT,
        "norms": Shard.REPLICATED,
    }
    assert shape.embedding.shard is shape.head.shard is Shard.VOCABULARY
    assert [layer.reductions for layer in shape.layers] == [2] * 32


def test_first_layers_are_dense():
    kinds = [isinstance(layer.ffn, MoeFfn) for layer in real("deepseek-ai--DeepSeek-V3").layers]
    assert kinds == [False] * 3 + [True] * 58
    kinds = [isinstance(layer.ffn, MoeFfn) for layer in real("XiaomiMiMo--MiMo-V2-Flash").layers]
    assert kinds == [False] + [True] * 47


def test_second_geometry_of_window_layers():
    shape = real("XiaomiMiMo--MiMo-V2-Flash")
    full, windowed = shape.layers[0].mixer, shape.layers[1].mixer
    assert (full.kv_heads, full.key_dim, full.value_dim, full.window) == (4, 192, 128, None)
    assert (windowed.kv_heads, windowed.window) == (8, 128)
    names = [{w.name for w in layer.weights} for layer in shape.layers[:2]]
    assert ["sinks" in found for found in names] == [False, True]


def test_second_geometry_of_gemma_4():
    shape = real("google--gemma-4-26B-A4B")
    windowed, full = shape.layers[0].mixer, shape.layers[5].mixer
    assert (windowed.kv_heads, windowed.key_dim, windowed.window) == (8, 256, 1024)
    assert (full.kv_heads, full.key_dim, full.window, full.shared_kv) == (2, 512, None, False)
    assert "v" not in {w.name for w in shape.layers[5].weights}
    assert shape.tied
    assert any("engines cache both" in gap for gap in shape.gaps)


def test_chunked_layers_of_llama_4():
    shape = real("meta-llama--Llama-4-Scout-17B-16E-Instruct")
    assert [layer.mixer.window for layer in shape.layers[:4]] == [8192, 8192, 8192, None]
    assert not shape.tied
    assert shape.layers[0].ffn.shared_experts == 1


def test_layers_without_attention():
    shape = real("nvidia--Llama-3_3-Nemotron-Super-49B-v1")
    assert sum(layer.mixer is None for layer in shape.layers) == 31
    assert shape.layers[0].ffn.intermediate == 14336
    assert {layer.reductions for layer in shape.layers} == {1, 2}


def test_hybrid_pattern():
    shape = real("nvidia--Nemotron-H-56B-Base-8K")
    kinds = [type(layer.mixer) for layer in shape.layers]
    assert kinds.count(Recurrent) == 54
    assert kinds.count(Attention) == 10
    assert kinds.count(type(None)) == 54
    assert {layer.reductions for layer in shape.layers} == {1}
    channels, elements = 256 * 64 + 2 * 8 * 256, 256 * 64 * 256
    assert shape.layers[0].mixer.state_bytes == (channels * 3 + elements) * 2


def test_linear_attention_keeps_a_constant_state():
    shape = real("Qwen--Qwen3.5-35B-A3B")
    recurrent = [layer.mixer for layer in shape.layers if isinstance(layer.mixer, Recurrent)]
    assert len(recurrent) == 30
    assert recurrent[0].state_bytes == 8192 * 3 * 2 + 32 * 128 * 128 * 4
    grown = cache_bytes(shape, 2000) - cache_bytes(shape, 1000)
    assert grown == 1000 * kv_bytes_per_token(shape)


def test_context_is_stretched_only_where_the_file_leaves_it_out():
    contexts = {
        "meta-llama--Meta-Llama-3.1-8B": 131072,
        "deepseek-ai--DeepSeek-V3": 163840,
        "openai--gpt-oss-20b": 131072,
        "moonshotai--Kimi-K2.5": 262144,
    }
    assert {name: real(name).max_context for name in contexts} == contexts


def test_window_set_aside_by_use_sliding_window():
    shape = real("XiaomiMiMo--MiMo-7B-Base")
    assert {layer.mixer.window for layer in shape.layers} == {None}
    names = {w.name for w in shape.layers[0].weights}
    assert {"q bias", "kv bias"} <= names
    assert "o bias" not in names


def test_prediction_layers_are_named_and_not_counted():
    shape = real("stepfun-ai--Step-3.7-Flash")
    assert len(shape.layers) == 45
    assert any("multi-token prediction" in gap for gap in shape.gaps)
    assert any("tie_word_embeddings" in gap for gap in shape.gaps)


def test_vision_tower_is_memory_only():
    shape = real("Qwen--Qwen3-VL-8B-Instruct")
    tower = shape.extra[-1]
    assert tower.role is Role.OTHER
    assert tower.parameters == 27 * (4 * 1152**2 + 2 * 1152 * 4304)
    assert active_parameters(shape) == 8_190_735_360 - 151936 * 4096
