"""Families without a real configuration here: totals from published dimensions."""

import json

import pytest
from model_cases import written

from linkbound.errors import InputError, ModelRefused
from linkbound.model import LatentAttention, cache_bytes, kv_bytes_per_token, parse_config

TOTALS = {
    "qwen2.5-7b": 7_615_616_512,
    "mistral-7b": 7_241_732_096,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "phi-3-mini-4k": 3_821_079_552,
    "falcon-7b": 6_921_720_704,
    "deepseek-v2-lite": 15_706_484_224,
    "glm-4-9b": 9_399_951_360,
}
SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def small(overrides=None, **changes):
    text = json.dumps({**SMALL, **changes})
    return parse_config(text, "small.json", None, overrides)


@pytest.mark.parametrize(("name", "total"), sorted(TOTALS.items()))
def test_totals(name, total):
    assert written(name).parameters == total


def test_falcon_adds_attention_and_ffn_together():
    shape = written("falcon-7b")
    assert {layer.reductions for layer in shape.layers} == {1}
    assert {layer.mixer.kv_heads for layer in shape.layers} == {1}
    assert kv_bytes_per_token(shape) == 32 * 2 * 64 * 2


def test_windows_by_family():
    assert {layer.mixer.window for layer in written("mistral-7b").layers} == {4096}
    assert {layer.mixer.window for layer in written("phi-3-mini-4k").layers} == {2047}
    assert [layer.mixer.window for layer in written("gemma-2-2b").layers[:3]] == [4096, None, 4096]
    gemma = [layer.mixer.window for layer in written("gemma-3-1b").layers[:6]]
    assert gemma == [512] * 5 + [None]
    assert {layer.mixer.window for layer in written("qwen2.5-7b").layers} == {None}


def test_yarn_stretches_the_context():
    assert written("qwen2.5-7b").max_context == 131072


def test_float32_doubles_everything():
    shape = written("gemma-2-2b")
    assert shape.weight_bytes == 4 * TOTALS["gemma-2-2b"]
    assert shape.activation_bits == 32
    assert cache_bytes(shape, 1) == 26 * 2 * 4 * 256 * 4


def test_latent_attention_without_a_query_rank():
    mixer = written("deepseek-v2-lite").layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert kv_bytes_per_token(written("deepseek-v2-lite")) == 27 * 576 * 2


@pytest.mark.parametrize(
    ("name", "key"), [("granite-4-hybrid", "layer_types"), ("jamba", "attn_layer_period")]
)
def test_unknown_caches_are_refused(name, key):
    with pytest.raises(ModelRefused) as caught:
        written(name)
    assert key in caught.value.keys
    assert key in str(caught.value)


def test_unknown_family_is_read_as_llama_and_says_so():
    shape = small(model_type="brand_new")
    assert shape.parameters == small().parameters
    assert "brand_new" in shape.gaps[0]


def test_unknown_family_with_a_window_is_refused_until_overridden():
    with pytest.raises(ModelRefused) as caught:
        small(model_type="brand_new", sliding_window=32)
    assert caught.value.keys == ("sliding_window",)
    shape = small({"sliding_window": "null"}, model_type="brand_new", sliding_window=32)
    assert shape.layers[0].mixer.window is None
    assert "--override sliding_window=null was applied." in shape.gaps
    shape = small({"model_type": "mistral"}, model_type="brand_new", sliding_window=32)
    assert {layer.mixer.window for layer in shape.layers} == {32}


def test_override_takes_the_place_of_a_key_at_either_level():
    assert small({"num_hidden_layers": "3"}).layers[2] == small().layers[0]
    nested = {"model_type": "llava", "text_config": SMALL, "tie_word_embeddings": True}
    shape = parse_config(json.dumps(nested), "nested.json", None, {"vocab_size": "200"})
    assert shape.vocabulary == 200
    assert shape.tied


def test_override_that_changes_nothing_is_an_error():
    with pytest.raises(InputError, match="hiden_size=64 changes nothing"):
        small({"hiden_size": "64"})
    with pytest.raises(InputError, match="compress_ratios=null changes nothing"):
        small({"compress_ratios": "null"})


def test_heads_may_be_left_out_for_multi_head_attention():
    shape = small()
    assert shape.layers[0].mixer.kv_heads == 4
    assert shape.layers[0].mixer.key_dim == 16


def test_experts_every_second_layer():
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shape = small(model_type="qwen3_moe", decoder_sparse_step=2, num_hidden_layers=4, **moe)
    assert [layer.ffn.__class__.__name__ for layer in shape.layers] == ["DenseFfn", "MoeFfn"] * 2
    shape = small(model_type="qwen3_moe", mlp_only_layers=[1], **moe)
    assert [layer.ffn.__class__.__name__ for layer in shape.layers] == ["MoeFfn", "DenseFfn"]


def test_qwen2_moe_shared_expert_has_a_gate():
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shape = small(model_type="qwen2_moe", shared_expert_intermediate_size=48, **moe)
    sums = {w.name: w.parameters for w in shape.layers[0].weights}
    assert sums["router"] == 64 * 4 + 64
    assert sums["shared gate up"] + sums["shared down"] == 3 * 64 * 48
    assert sums["experts"] == 4 * 3 * 64 * 32
