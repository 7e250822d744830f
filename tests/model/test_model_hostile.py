"""Whatever a config.json holds, the answer is a shape or one clear error."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import CONFIGS, NAMES

from linkbound.errors import InputError
from linkbound.model import ModelShape, parse_config, read_model

SMALL = (CONFIGS / "written" / "mistral-7b.json").read_text(encoding="utf-8")
HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-2, 3), st.text(max_size=3), st.none()), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


def shape_or_error(text, side=None):
    """The error, the shape, or None for an error that leaves something unsaid."""
    try:
        shape = parse_config(text, "fuzz.json", side)
    except InputError as error:
        return error if error.why and error.hint and len(str(error)) < 2000 else None
    assert shape.parameters > 0
    assert all(weights.bits > 0 for weights in shape.all_weights)
    assert msgspec.json.decode(msgspec.json.encode(shape), type=ModelShape) == shape
    return shape


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text(text):
    assert isinstance(shape_or_error(text), InputError)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_real_configurations_with_one_value_replaced(data):
    name = data.draw(st.sampled_from([name for name in NAMES if "Super-49B" not in name]))
    config = json.loads((CONFIGS / name / "config.json").read_text(encoding="utf-8"))
    table = config
    nested = config.get("text_config")
    if isinstance(nested, dict) and data.draw(st.booleans()):
        table = nested
    if isinstance(config.get("quantization_config"), dict) and data.draw(st.booleans()):
        table = config["quantization_config"]
    table[data.draw(st.sampled_from(sorted(table)))] = data.draw(HOSTILE)
    assert shape_or_error(json.dumps(config)) is not None


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 36_000), HOSTILE, st.sampled_from(["ffn_mult", "no_op", "n_heads_in_group"]))
def test_tables_a_layer(cut, hostile, key):
    path = CONFIGS / "nvidia--Llama-3_3-Nemotron-Super-49B-v1" / "config.json"
    text = path.read_text(encoding="utf-8")
    assert isinstance(shape_or_error(text[:cut]), InputError)
    config = json.loads(text)
    part = "ffn" if key == "ffn_mult" else "attention"
    config["block_configs"] = [dict(block) for block in config["block_configs"]]
    config["block_configs"][3][part] = {**config["block_configs"][3][part], key: hostile}
    assert shape_or_error(json.dumps(config)) is not None


@settings(max_examples=50, deadline=None)
@given(HOSTILE, st.sampled_from(["quant_algo", "exclude_modules", "kv_cache_quant_algo"]))
def test_side_files(hostile, key):
    table = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"], key: hostile}
    for side in ({"quantization": table}, {"quantization": hostile}, hostile):
        assert shape_or_error(SMALL, json.dumps(side)) is not None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", "32"),
        ("num_hidden_layers", 2.5),
        ("num_hidden_layers", True),
        ("num_hidden_layers", float("nan")),
        ("num_hidden_layers", float("inf")),
        ("hidden_size", 10**30),
        ("hidden_size", [4096]),
        ("num_attention_heads", 33),
        ("num_key_value_heads", 64),
        ("num_key_value_heads", 5),
        ("vocab_size", -5),
        ("torch_dtype", "int3"),
        ("torch_dtype", 16),
        ("model_type", {"a": 1}),
        ("model_type", "a\nb"),
        ("model_type", "\ud800"),
        ("tie_word_embeddings", {"a": 1}),
        ("layer_types", ["full_attention"]),
        ("layer_types", "full_attention"),
    ],
)
def test_absurd_values_name_the_key(key, value):
    config = {**json.loads(SMALL), key: value}
    if key == "tie_word_embeddings":
        config.pop("sliding_window")
    error = shape_or_error(json.dumps(config))
    assert isinstance(error, InputError)
    assert "fuzz.json" in error.seen


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "[]",
        "3",
        "null",
        "{",
        SMALL[:-20],
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"hidden_size":' + "9" * 10_000 + "}",
        '{"hidden_size":' + "[" * 500 + "]" * 500 + "}",
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
    ],
)
def test_no_configuration(text):
    assert isinstance(shape_or_error(text), InputError)


def test_a_huge_text_is_not_read():
    with pytest.raises(InputError, match="characters"):
        parse_config(" " * (64 * 1024 * 1024 + 1), "huge.json")


def test_infinity_as_python_writes_it_is_taken():
    config = {**json.loads(SMALL), "time_step_limit": [0.0, float("inf")]}
    assert parse_config(json.dumps(config), "config.json").parameters == 7_241_732_096


@pytest.mark.parametrize(
    "raw", [b"", b"\x80\x02\xff", b"PK\x03\x04" + bytes(50), b"\xff\xfe\x00", bytes(1000)]
)
def test_files_that_are_no_text(tmp_path, raw):
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(InputError):
        read_model(str(path))


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    with pytest.raises(InputError, match="100,000,000 bytes"):
        read_model(str(path))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(tmp_path, encoding):
    path = tmp_path / "config.json"
    path.write_text(SMALL, encoding=encoding)
    assert read_model(str(path)).parameters == 7_241_732_096
