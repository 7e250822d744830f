"""Bits of weights and caches in every scheme, scales included."""

import json

import pytest
from model_cases import real

from linkbound.errors import InputError, ModelRefused
from linkbound.model import Role, kv_bytes_per_token, parse_config
from linkbound.model.modules import ModulePatterns

BASE = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def bits_of(table, side=None, layer=0):
    text = json.dumps({**BASE, "quantization_config": table})
    shape = parse_config(text, "config.json", None if side is None else json.dumps(side))
    found = {weights.name: weights.bits for weights in shape.layers[layer].weights}
    return {**found, "head": shape.head.bits, "embedding": shape.embedding.bits}


def int_weights(**more):
    return {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", **more}}}}


@pytest.mark.parametrize(
    ("table", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "fbgemm_fp8"}, 8 + 32 / 4096),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, 8 + 24 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        (
            {"quant_method": "bitsandbytes", "bnb_4bit_use_double_quant": True},
            4 + (8 + 32 / 256) / 64,
        ),
        ({"quant_method": "compressed-tensors", **int_weights(group_size=32)}, 4.5),
        ({"quant_method": "compressed-tensors", **int_weights(group_size=128)}, 4.125),
        (
            {"quant_method": "compressed-tensors", **int_weights(group_size=128, symmetric=False)},
            4 + 20 / 128,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_algo": "FP8"}, 8),
    ],
)
def test_bits_with_scales(table, bits):
    found = bits_of(table)
    assert found["q"] == found["down"] == pytest.approx(bits, abs=1e-12)
    assert found["norms"] == found["embedding"] == found["head"] == 16


@pytest.mark.parametrize(
    ("table", "stored"),
    [
        ({"quant_method": "fp8"}, True),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, True),
        ({"quant_method": "fbgemm_fp8"}, True),
        ({"quant_algo": "FP8"}, True),
        ({"quant_algo": "MXFP8"}, False),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, False),
        ({"quant_algo": "INT8_SQ"}, False),
        ({"quant_algo": "NVFP4"}, False),
    ],
)
def test_8_bit_floats_are_told_from_other_8_bits(table, stored):
    shape = parse_config(json.dumps({**BASE, "quantization_config": table}), "config.json")
    marked = {weights.name for weights in shape.layers[0].weights if weights.float8}
    assert marked == ({"q", "k", "v", "o", "gate up", "down"} if stored else set())
    assert not shape.embedding.float8
    assert not shape.head.float8


@pytest.mark.parametrize(
    ("entry", "plain"),
    [
        ("model.layers.0.self_attn.q_proj", {"q"}),
        ("model.layers.0.self_attn", {"q", "k", "v", "o"}),
        ("model.layers.*.self_attn", {"q", "k", "v", "o"}),
        ("model.language_model.layers.0.mlp*", {"gate up", "down"}),
        ("re:.*self_attn.*", {"q", "k", "v", "o"}),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", {"gate up", "down"}),
        ("mtp.layers.0*", set()),
        ("gate", set()),
        ("down_proj", {"down"}),
    ],
)
def test_modules_left_alone(entry, plain):
    found = bits_of({"quant_method": "fp8", "ignored_layers": [entry]})
    linear = {"q", "k", "v", "o", "gate up", "down"}
    assert {name for name in linear if found[name] == 16} == plain


def test_layer_one_is_not_layer_ten():
    patterns = ModulePatterns(["model.layers.1.*", "model.layers.2"], "list")
    assert patterns.match("layers.1.mlp.down_proj")
    assert not patterns.match("layers.10.mlp.down_proj")
    assert patterns.match("layers.2.mlp.down_proj")
    assert not patterns.match("layers.20.mlp.down_proj")


def test_mixed_precision_lists_each_module():
    shape = real("nvidia--Qwen3.6-35B-A3B-NVFP4")
    linear = {w.name: w.bits for w in shape.layers[0].weights}
    assert linear["in"] == linear["output gate"] == linear["out"] == 8
    assert linear["decay gates"] == 16
    assert linear["experts"] == linear["shared down"] == 4.5
    assert shape.head.bits == 4.5
    assert {w.name: w.bits for w in shape.layers[3].weights}["q"] == 8


def test_side_file_alone_decides():
    shape = real("nvidia--DeepSeek-V3.1-NVFP4")
    bits = {w.name: w.bits for w in shape.layers[5].weights}
    assert bits["experts"] == bits["o"] == 4.5
    assert bits["q down"] == bits["q up"] == bits["kv down"] == bits["kv up"] == 16
    assert kv_bytes_per_token(shape) == 61 * 576


def test_groups_of_compressed_tensors_inside_text_config():
    shape = real("moonshotai--Kimi-K2.5")
    bits = {w.name: w.bits for w in shape.layers[1].weights}
    assert bits["experts"] == 4.5
    assert bits["o"] == bits["shared down"] == shape.head.bits == 16
    assert {w.bits for w in shape.layers[0].weights} == {16}


def test_first_layers_of_glm_stay_unquantised():
    shape = real("nvidia--GLM-5.1-NVFP4")
    by_role = [
        {w.bits for w in layer.weights if w.role in (Role.FFN, Role.ROUTED_EXPERTS)}
        for layer in shape.layers
    ]
    assert by_role[0] == by_role[1] == {16}
    assert by_role[10] == {16, 4.5}


@pytest.mark.parametrize(
    "scheme", ["FP8", "fp8", {"num_bits": 8, "type": "float", "dynamic": False}]
)
def test_cache_bits(scheme):
    table = {"quant_method": "fp8", "kv_cache_scheme": scheme}
    shape = parse_config(json.dumps({**BASE, "quantization_config": table}), "config.json")
    assert kv_bytes_per_token(shape) == 2 * 2 * 2 * 64


@pytest.mark.parametrize(
    "table",
    [
        {"quant_method": "something_new"},
        {"quant_method": ["fp8"]},
        {"quant_algo": "FP3"},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "fp8", "kv_cache_scheme": "FP2"},
    ],
)
def test_unknown_schemes_are_refused(table):
    with pytest.raises(ModelRefused):
        bits_of(table)


@pytest.mark.parametrize(
    "entry", ["re:(a+)+$", "re:" + ".*" * 9 + "x", "re:(", "re:" + "a" * 999, 7]
)
def test_patterns_that_could_match_for_ever_are_errors(entry):
    with pytest.raises(InputError):
        bits_of({"quant_method": "fp8", "ignore": [entry]})


def test_too_many_patterns_are_an_error():
    with pytest.raises(InputError, match="64 globs"):
        ModulePatterns([f"a*{index}*b" for index in range(300)], "list")


def test_a_side_file_without_a_table_is_an_error():
    with pytest.raises(InputError, match="hf_quant_config"):
        parse_config(json.dumps(BASE), "config.json", '{"quantization": 4}')
