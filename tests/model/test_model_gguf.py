"""GGUF headers: exact bytes from types, caches from keys, parts, damage."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_gguf_writer import gguf, llama_keys, llama_tensors

from linkbound.errors import InputError, ModelRefused
from linkbound.model import (
    LatentAttention,
    MoeFfn,
    Recurrent,
    Role,
    Shard,
    cache_bytes,
    kv_bytes_per_token,
    read_model,
)

LAYER = 2 * 256 + 256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 512
Q6, Q4 = 210 / 256, 144 / 256


def read(tmp_path, raw, name="model.gguf"):
    path = tmp_path / name
    path.write_bytes(raw)
    return read_model(str(path))


@pytest.mark.parametrize("version", [2, 3])
def test_exact_size(tmp_path, version):
    shape = read(tmp_path, gguf(llama_keys(), llama_tensors(), version))
    assert shape.parameters == 2 * LAYER + 256 + 2 * 256 * 1000
    six = 256 * 128 + 512 * 256
    layer = 512 * 4 + six * Q6 + (LAYER - 512 - six) * Q4
    assert shape.weight_bytes == 2 * layer + 256 * 4 + 2 * 256 * 1000 * Q6
    assert (shape.hidden, shape.vocabulary, shape.max_context) == (256, 1000, 4096)
    assert kv_bytes_per_token(shape) == 2 * 2 * 2 * 64 * 2
    assert [layer.reductions for layer in shape.layers] == [2, 2]


def test_missing_head_is_tied(tmp_path):
    shape = read(tmp_path, gguf(llama_keys(), llama_tensors(head=False)))
    assert shape.tied
    assert shape.parameters == 2 * LAYER + 256 + 256 * 1000


def test_roles_and_shards(tmp_path):
    shape = read(tmp_path, gguf(llama_keys(), llama_tensors()))
    assert {w.name: (w.shard, w.role) for w in shape.layers[0].weights} == {
        "attn_norm": (Shard.REPLICATED, Role.NORM),
        "ffn_norm": (Shard.REPLICATED, Role.NORM),
        "attn_q": (Shard.SPLIT, Role.ATTENTION),
        "attn_k": (Shard.KV_HEADS, Role.ATTENTION),
        "attn_v": (Shard.KV_HEADS, Role.ATTENTION),
        "attn_output": (Shard.SPLIT, Role.ATTENTION),
        "ffn_gate": (Shard.SPLIT, Role.FFN),
        "ffn_up": (Shard.SPLIT, Role.FFN),
        "ffn_down": (Shard.SPLIT, Role.FFN),
    }


def test_tokenisers_longer_than_a_chunk_are_passed_over(tmp_path):
    tokens = ["x" * (index % 90) for index in range(60_000)] + ["y" * 2_500_000, "z"]
    keys = {**llama_keys(), "tokenizer.ggml.merges": tokens, "tokenizer.chat_template": "end"}
    shape = read(tmp_path, gguf(keys, llama_tensors()))
    assert shape.parameters == 2 * LAYER + 256 + 2 * 256 * 1000


def test_heads_by_layer(tmp_path):
    keys = llama_keys(attention__head_count_kv=[2, 1], attention__key_length=32)
    shape = read(tmp_path, gguf(keys, llama_tensors()))
    assert [layer.mixer.kv_heads for layer in shape.layers] == [2, 1]
    assert {layer.mixer.key_dim for layer in shape.layers} == {32}


def test_windows_by_pattern_and_by_family(tmp_path):
    window = {"attention__sliding_window": 128}
    keys = llama_keys(attention__sliding_window_pattern=[True, False], **window)
    shape = read(tmp_path, gguf(keys, llama_tensors()))
    assert [layer.mixer.window for layer in shape.layers] == [128, None]
    shape = read(tmp_path, gguf(llama_keys(arch="gemma2", **window), llama_tensors()))
    assert [layer.mixer.window for layer in shape.layers] == [128, None]
    with pytest.raises(ModelRefused, match="sliding_window"):
        read(tmp_path, gguf(llama_keys(**window), llama_tensors()))


def test_experts(tmp_path):
    keys = llama_keys(1, expert_count=8, expert_used_count=2, expert_feed_forward_length=64)
    tensors = [t for t in llama_tensors(1) if "ffn_" not in t[0] or "norm" in t[0]]
    tensors += [
        ("blk.0.ffn_gate_inp.weight", (256, 8), 0),
        ("blk.0.ffn_gate_exps.weight", (256, 64, 8), 39),
        ("blk.0.ffn_up_exps.weight", (256, 64, 8), 39),
        ("blk.0.ffn_down_exps.weight", (64, 256, 8), 39),
        ("blk.0.ffn_up_shexp.weight", (256, 64), 8),
    ]
    layer = read(tmp_path, gguf(keys, tensors)).layers[0]
    assert layer.ffn == MoeFfn(experts=8, top_k=2, intermediate=64, gated=True, shared_experts=1)
    routed = [w for w in layer.weights if w.role is Role.ROUTED_EXPERTS]
    assert sum(w.parameters for w in routed) == 3 * 8 * 256 * 64
    assert {w.bits for w in routed} == {4.25}
    assert {w.shard for w in routed} == {Shard.EXPERTS}


def test_latent_attention(tmp_path):
    keys = llama_keys(
        1,
        arch="deepseek2",
        attention__kv_lora_rank=512,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        attention__value_length_mla=128,
        rope__dimension_count=64,
    )
    tensors = [t for t in llama_tensors(1) if "attn_k." not in t[0] and "attn_v." not in t[0]]
    tensors += [
        ("blk.0.attn_kv_a_mqa.weight", (256, 576), 8),
        ("blk.0.attn_k_b.weight", (128, 512, 4), 8),
    ]
    mixer = read(tmp_path, gguf(keys, tensors)).layers[0].mixer
    assert mixer == LatentAttention(
        query_heads=4, latent_dim=512, rope_dim=64, nope_dim=128, value_dim=128
    )


def test_recurrent_layers(tmp_path):
    keys = llama_keys(
        2,
        arch="nemotron_h",
        ssm__inner_size=512,
        ssm__state_size=16,
        ssm__conv_kernel=4,
        ssm__group_count=2,
    )
    tensors = [t for t in llama_tensors() if not t[0].startswith("blk.1.attn_")]
    tensors.append(("blk.1.ssm_in.weight", (256, 1100), 8))
    shape = read(tmp_path, gguf(keys, tensors))
    assert shape.layers[1].mixer == Recurrent(
        state_bytes=((512 + 64) * 3 + 512 * 16) * 4, flops_per_token=5 * 512 * 16
    )
    assert cache_bytes(shape.layers[1], 9999) == shape.layers[1].mixer.state_bytes


def test_prediction_layers_are_not_counted(tmp_path):
    keys = llama_keys(2, nextn_predict_layers=1)
    tensors = [*llama_tensors(2), ("blk.1.nextn.eh_proj.weight", (512, 256), 8)]
    shape = read(tmp_path, gguf(keys, tensors))
    assert len(shape.layers) == 1
    assert any("multi-token" in gap for gap in shape.gaps)


def test_parts_are_summed(tmp_path):
    whole = read(tmp_path, gguf(llama_keys(), llama_tensors()))
    tensors = llama_tensors()
    first = gguf({**llama_keys(), "split.count": 2}, tensors[:6])
    second = gguf({"split.count": 2}, tensors[6:])
    (tmp_path / "big-00002-of-00002.gguf").write_bytes(second)
    shape = read(tmp_path, first, "big-00001-of-00002.gguf")
    assert shape.weight_bytes == whole.weight_bytes
    assert shape.parameters == whole.parameters


def test_directory_of_one_model(tmp_path):
    raw = gguf(llama_keys(), llama_tensors())
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-m.gguf"):
        (tmp_path / name).write_bytes(raw if "00001" in name else gguf({}, []))
    assert read_model(str(tmp_path)).parameters == 2 * LAYER + 256 + 2 * 256 * 1000
    (tmp_path / "m-Q8.gguf").write_bytes(raw)
    with pytest.raises(InputError, match="holds 2 models"):
        read_model(str(tmp_path))


def test_a_missing_part_is_named(tmp_path):
    with pytest.raises(InputError, match=r"2 are missing.*big-00002-of-00003\.gguf"):
        read(tmp_path, gguf(llama_keys(), llama_tensors()), "big-00001-of-00003.gguf")


def test_a_renamed_part_is_noticed(tmp_path):
    raw = gguf({**llama_keys(), "split.count": 3}, llama_tensors())
    with pytest.raises(InputError, match="one of 3 parts"):
        read(tmp_path, raw, "renamed.gguf")


def test_unknown_tensor_type_is_refused(tmp_path):
    tensors = [*llama_tensors(), ("blk.0.attn_x.weight", (256,), 99)]
    with pytest.raises(InputError, match="unknown type 99"):
        read(tmp_path, gguf(llama_keys(), tensors))


def test_a_projector_is_no_model(tmp_path):
    tensors = [("v.patch_embd.weight", (14, 14), 1)]
    with pytest.raises(InputError):
        read(tmp_path, gguf({"general.architecture": "clip"}, tensors))


def test_overrides_are_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(gguf(llama_keys(), llama_tensors()))
    with pytest.raises(InputError, match="--override"):
        read_model(str(tmp_path / "model.gguf"), {"head_dim": "64"})


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"GGUF",
        b"GGUF" + struct.pack("<I", 1),
        b"GGUF" + struct.pack(">I", 3) + bytes(16),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 1 << 60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 0, 1 << 60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 9, 1),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<II", 4, 1),
        b"\x7fELF" + bytes(100),
        gguf(llama_keys(layers=1 << 31), llama_tensors()),
        gguf(llama_keys(layers=5000), llama_tensors()),
        gguf(llama_keys(layers=3), llama_tensors(2)),
        gguf(llama_keys(layers=1), llama_tensors(2)),
        gguf(llama_keys(attention__head_count=0), llama_tensors()),
        gguf(llama_keys(attention__head_count_kv=["a"]), llama_tensors()),
        gguf(llama_keys(embedding_length="wide"), llama_tensors()),
        gguf(llama_keys(embedding_length=2.5), llama_tensors()),
    ],
)
def test_damage_is_one_clear_error(tmp_path, raw):
    with pytest.raises(InputError) as caught:
        read(tmp_path, raw)
    assert caught.value.why
    assert caught.value.hint


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 20_000))
def test_truncated_files(tmp_path_factory, cut):
    raw = gguf(llama_keys(), llama_tensors())
    with pytest.raises(InputError):
        read(tmp_path_factory.mktemp("cut"), raw[: min(cut, len(raw) - 1)])


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 3000), byte=st.integers(0, 255), tail=st.booleans())
def test_changed_bytes(tmp_path_factory, at, byte, tail):
    raw = bytearray(gguf(llama_keys(), llama_tensors()))
    raw[-1 - at if tail else at] = byte
    try:
        shape = read(tmp_path_factory.mktemp("changed"), bytes(raw))
    except InputError:
        return
    assert shape.parameters > 0
