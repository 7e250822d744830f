"""What follows from a shape: cache, attention work, experts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import written

from linkbound.model import (
    Attention,
    LatentAttention,
    Layer,
    Recurrent,
    active_parameters,
    cache_bytes,
    experts_touched,
    kept_tokens,
    kv_bytes_per_token,
    layer_flops,
    read_model,
    token_bytes,
)

PLAIN = Attention(query_heads=32, kv_heads=8, key_dim=128, value_dim=128)
WINDOWED = Attention(query_heads=32, kv_heads=8, key_dim=128, value_dim=128, window=100)
LATENT = LatentAttention(query_heads=128, latent_dim=512, rope_dim=64, nope_dim=128, value_dim=128)


def layer(mixer):
    return Layer(mixer=mixer, ffn=None, weights=())


def test_decode_is_four_n_d_per_cached_token():
    assert layer_flops(PLAIN, 1, 999) == 4 * 32 * 128 * 1000


def test_prefill_as_the_closed_form():
    chunk, before = 512, 1024
    pairs = chunk * before + chunk * (chunk + 1) // 2
    assert layer_flops(PLAIN, chunk, before) == 4 * 32 * 128 * pairs


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 300))
def test_chunks_sum_to_the_whole(first, second, before):
    for mixer in (PLAIN, WINDOWED):
        whole = layer_flops(mixer, first + second, before)
        parts = layer_flops(mixer, first, before) + layer_flops(mixer, second, before + first)
        assert parts == whole


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 500))
def test_window_counts_each_token_by_itself(before, tokens):
    pairs = sum(min(before + index + 1, 100) for index in range(tokens))
    assert layer_flops(WINDOWED, tokens, before) == 4 * 32 * 128 * pairs


def test_latent_attention_absorbed_in_decode():
    assert layer_flops(LATENT, 1, 99) == 100 * 128 * (2 * (512 + 64) + 2 * 512)
    assert layer_flops(LATENT, 2, 0) == 3 * 128 * (2 * (128 + 64) + 2 * 128)


def test_recurrent_work_and_state_do_not_grow_with_context():
    mixer = Recurrent(state_bytes=4096, flops_per_token=10)
    assert layer_flops(mixer, 3, 10_000) == 30
    assert cache_bytes(layer(mixer), 1) == cache_bytes(layer(mixer), 100_000) == 4096
    assert token_bytes(mixer) == 0


def test_a_layer_without_a_mixer_caches_nothing():
    assert cache_bytes(layer(None), 100) == 0
    assert layer_flops(None, 100, 0) == 0


def test_windows_keep_one_block_more():
    assert [kept_tokens(WINDOWED, n) for n in (50, 100, 116, 117, 5000)] == [50, 100, 116, 116, 116]
    assert cache_bytes(layer(WINDOWED), 5000) == 116 * 2 * 8 * 128 * 2


def test_shared_keys_and_values_take_half():
    shared = Attention(query_heads=8, kv_heads=2, key_dim=64, value_dim=64, shared_kv=True)
    assert token_bytes(shared) == 2 * 64 * 2


def test_sums_of_layers():
    shape = written("gemma-2-2b")
    assert cache_bytes(shape, 5000) == sum(cache_bytes(one, 5000) for one in shape.layers)
    assert kv_bytes_per_token(shape) == sum(token_bytes(one.mixer) for one in shape.layers)


def test_active_parameters_of_a_tied_model_count_the_head_once():
    shape = written("gemma-2-2b")
    assert active_parameters(shape) == shape.parameters
    untied = read_model("llama-3.1-8b")
    assert active_parameters(untied) == untied.parameters - 128256 * 4096


def test_active_parameters_of_experts():
    shape = read_model("qwen3-30b-a3b")
    routed = 48 * 128 * 3 * 2048 * 768
    embedding = 151936 * 2048
    assert active_parameters(shape) == shape.parameters - routed + routed // 16 - embedding


@pytest.mark.parametrize(("tokens", "touched"), [(1, 8), (8, 51.6), (32, 111.8)])
def test_experts_touched(tokens, touched):
    assert experts_touched(128, 8, tokens) == pytest.approx(touched, abs=0.05)
