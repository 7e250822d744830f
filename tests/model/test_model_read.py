"""Bundled names, directories and files; headers held against the arithmetic."""

import io
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import CONFIGS, real, written

from linkbound.errors import InputError
from linkbound.model import bundled_names, kv_bytes_per_token, read_model, stored_bytes
from linkbound.model.safetensors import read_header

BUNDLED = {
    "gpt-oss-20b": (20_914_757_184, 49_152, "openai--gpt-oss-20b"),
    "llama-3.1-70b": (70_553_706_496, 327_680, "meta-llama--Meta-Llama-3.1-70B"),
    "llama-3.1-8b": (8_030_261_248, 131_072, "meta-llama--Meta-Llama-3.1-8B"),
    "mixtral-8x7b": (46_702_792_704, 131_072, "mistralai--Mixtral-8x7B-v0.1"),
    "qwen3-30b-a3b": (30_532_122_624, 98_304, "Qwen--Qwen3-30B-A3B"),
    "qwen3-32b": (32_762_123_264, 262_144, "Qwen--Qwen3-32B"),
}
TEXT = (CONFIGS / "written" / "gemma-2-2b.json").read_text(encoding="utf-8")


def test_bundled_names():
    assert bundled_names() == tuple(BUNDLED)


@pytest.mark.parametrize(("name", "facts"), BUNDLED.items())
def test_bundled_models_equal_the_real_ones(name, facts):
    total, cached, original = facts
    shape = read_model(name)
    assert shape.name == name
    assert shape.parameters == total
    assert kv_bytes_per_token(shape) == cached
    assert shape.layers == real(original).layers
    assert shape.weight_bytes == real(original).weight_bytes
    assert shape.max_context == real(original).max_context
    assert shape.gaps == ()


def test_override_of_a_bundled_model():
    assert len(read_model("llama-3.1-8b", {"num_hidden_layers": "16"}).layers) == 16


def test_directory_with_its_side_file():
    name = "nvidia--DeepSeek-V3.1-NVFP4"
    assert read_model(str(CONFIGS / name)).layers == real(name).layers
    assert read_model(str(CONFIGS / name / "config.json")).layers == real(name).layers
    assert read_model(str(CONFIGS / name)).name == name


@pytest.mark.parametrize("name", ["no/such/model", "llama-9b", "", "a\0b", "x" * 5000])
def test_wrong_path_lists_the_bundled_names(name):
    with pytest.raises(InputError) as caught:
        read_model(name)
    assert all(known in caught.value.hint for known in BUNDLED)


def test_empty_directory(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json"):
        read_model(str(tmp_path))


def header(tensors):
    raw = json.dumps(tensors).encode()
    return struct.pack("<Q", len(raw)) + raw


def tensor(size, start=0):
    return {"dtype": "BF16", "shape": [size // 2], "data_offsets": [start, start + size]}


def test_weights_alone_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(header({"a": tensor(8)}))
    with pytest.raises(InputError, match="weights alone"):
        read_model(str(path))


def model_directory(tmp_path, sizes):
    (tmp_path / "config.json").write_text(TEXT, encoding="utf-8")
    for index, size in enumerate(sizes):
        table = {"__metadata__": {"format": "pt"}, "a": tensor(size)}
        (tmp_path / f"model-{index}.safetensors").write_bytes(header(table))
    return tmp_path


def test_headers_that_agree_leave_no_gap(tmp_path):
    stored = int(written("gemma-2-2b").weight_bytes)
    shape = read_model(str(model_directory(tmp_path, [stored - 1000, 1500])))
    assert shape.gaps == written("gemma-2-2b").gaps


def test_headers_that_disagree_are_reported(tmp_path):
    half = int(written("gemma-2-2b").weight_bytes) // 2
    shape = read_model(str(model_directory(tmp_path, [half])))
    assert shape.gaps[-1].startswith("1 safetensors headers say 5,228,683,776 bytes, -50.0%")


def test_index_stands_in_for_missing_shards(tmp_path):
    directory = model_directory(tmp_path, [])
    index = {"metadata": {"total_size": 12345}, "weight_map": {"a": "model-1.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert stored_bytes(directory) == (12345, "total_size of model.safetensors.index.json")
    (directory / "model-1.safetensors").write_bytes(header({"a": tensor(64)}))
    (directory / "adapter.safetensors").write_bytes(header({"a": tensor(1000)}))
    assert stored_bytes(directory) == (64, "1 safetensors headers")


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        '{"weight_map": 3}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "b"}}',
        '{"weight_map": {"a": "b"}, "metadata": {"total_size": -4}}',
    ],
)
def test_damaged_index(tmp_path, index):
    directory = model_directory(tmp_path, [])
    (directory / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(InputError):
        read_model(str(directory))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 100) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc",
        header({"a": 3}),
        header({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [8, 2]}}),
        header({"a": {"dtype": "BF16", "shape": [1], "data_offsets": ["0", "2"]}}),
        header({"a": {"dtype": "BF16", "shape": None, "data_offsets": [0, 2]}}),
    ],
)
def test_damaged_headers(tmp_path, raw):
    directory = model_directory(tmp_path, [])
    (directory / "model.safetensors").write_bytes(raw)
    with pytest.raises(InputError, match="not a whole safetensors file"):
        read_model(str(directory))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_header(raw):
    for content in (raw, struct.pack("<Q", len(raw)) + raw):
        try:
            tensors = read_header(io.BytesIO(content), "fuzz")
        except InputError:
            continue
        assert isinstance(tensors, dict)
