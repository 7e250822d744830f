"""Bytes, FLOPs and cache of a step against arithmetic by hand."""

import msgspec
import pytest
from predict_cases import PP2, TP2, decode, prefill, shape_of

from linkbound.model.derive import layer_flops
from linkbound.model.types import Attention, DenseFfn, Layer, Recurrent
from linkbound.predict.schedule import Step
from linkbound.predict.work import StepWork, expert_cuts, narrow_factor, rank_work, step_work
from linkbound.splits.types import Dispatch, Split

# Llama-3.1-8B: a layer is q, o 4096 x 4096, k, v 4096 x 1024, three of 4096 x 14336, two norms.
MATRICES = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
NORMS = 2 * 4096
HEAD = 4096 * 128_256


def work(model: str, step: Step, split: Split = Split(), stage: int = 0) -> StepWork:  # noqa: B008
    return step_work(rank_work(shape_of(model), split, stage), step, step.tokens)


def test_llama_decode_reads_layers_and_head_but_not_the_embedding() -> None:
    found = work("llama-3.1-8b", decode(1, 1000))
    assert found.stream_bytes == 2 * (32 * (MATRICES + NORMS) + HEAD) == 15_009_841_152
    assert found.matrix_flops == 2 * (32 * (MATRICES + NORMS) + HEAD)
    assert found.cache_bytes == 1000 * 131_072
    assert found.attention_flops == 0
    assert (found.layers, found.mixture_layers, found.sampled) == (32, 0, 1)


def test_llama_decode_of_a_batch_reads_weights_once_and_caches_each() -> None:
    one, many = work("llama-3.1-8b", decode(1, 1000)), work("llama-3.1-8b", decode(32, 1000))
    assert many.stream_bytes == one.stream_bytes
    assert many.matrix_flops == 32 * one.matrix_flops
    assert many.cache_bytes == 32 * one.cache_bytes


def test_llama_prefill() -> None:
    found = work("llama-3.1-8b", prefill(1024, 1024))
    # Only the last token of a prompt reaches the head.
    assert found.matrix_flops == 2 * (32 * (MATRICES + NORMS) * 2048 + HEAD * 2)
    assert found.attention_flops == 4 * 32 * 32 * 128 * 2 * (1024 * 1025 / 2)
    assert found.cache_bytes == 0


def test_a_chunk_sees_what_is_cached_before_it() -> None:
    whole = work("llama-3.1-8b", prefill(2048)).attention_flops
    parts = [
        work("llama-3.1-8b", prefill(1024)).attention_flops,
        work("llama-3.1-8b", prefill(1024, cached=1024)).attention_flops,
    ]
    assert sum(parts) == whole


def test_a_step_that_samples_nothing_leaves_the_head_alone() -> None:
    step = Step(chunks=prefill(64).chunks, decodes=0, context_tokens=0, sampled=0)
    assert work("llama-3.1-8b", step).stream_bytes == 2 * 32 * (MATRICES + NORMS)


def test_tensor_parallel_halves_all_but_the_norms() -> None:
    found = work("llama-3.1-8b", decode(4, 1000), TP2)
    assert found.stream_bytes == 2 * (32 * (MATRICES / 2 + NORMS) + HEAD / 2)
    assert found.cache_bytes == 4 * 1000 * 65_536
    prompt = work("llama-3.1-8b", prefill(1024), TP2)
    assert prompt.attention_flops == work("llama-3.1-8b", prefill(1024)).attention_flops / 2


def test_more_ranks_than_key_value_heads_repeat_them() -> None:
    found = work("llama-3.1-8b", decode(1, 1000), Split(tp=16))
    assert found.cache_bytes == 1000 * 131_072 / 8


def test_an_uneven_ratio_is_as_slow_as_its_fullest_rank() -> None:
    found = work("llama-3.1-8b", decode(1, 1000), Split(tp=2, tensor_ratio=(3, 1)))
    assert found.stream_bytes == pytest.approx(2 * (32 * (MATRICES * 3 / 4 + NORMS) + HEAD * 3 / 4))


def test_stages_own_their_layers_and_the_last_one_the_head() -> None:
    first = work("llama-3.1-8b", decode(1, 1000), PP2, 0)
    last = work("llama-3.1-8b", decode(1, 1000), PP2, 1)
    assert first.stream_bytes == 2 * 16 * (MATRICES + NORMS)
    assert last.stream_bytes == first.stream_bytes + 2 * HEAD
    assert first.cache_bytes == last.cache_bytes == 1000 * 65_536
    uneven = Split(pp=2, stage_layers=(20, 12))
    assert work("llama-3.1-8b", decode(1, 1000), uneven, 0).layers == 20


# Mixtral-8x7B: eight experts of three 4096 x 14336 in each of 32 layers, two for a token.
EXPERT = 3 * 4096 * 14336
OTHERS = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + NORMS
MIXTRAL_HEAD = 4096 * 32_000


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_a_mixture_reads_the_experts_it_touches(batch: int) -> None:
    found = work("mixtral-8x7b", decode(batch, 100))
    touched = 8 * (1 - (1 - 2 / 8) ** batch)
    expected = 2 * (32 * (OTHERS + touched * EXPERT) + MIXTRAL_HEAD)
    assert found.stream_bytes == pytest.approx(expected, rel=1e-12)
    # Products of experts 14,336 wide take 1 + 300 / 14,336 times as long as large ones.
    routed = 2 * EXPERT * (1 + 300 / 14336)
    flops = 2 * batch * (32 * (OTHERS + routed) + MIXTRAL_HEAD)
    assert found.matrix_flops == pytest.approx(flops, rel=1e-12)
    assert found.mixture_layers == 32


@pytest.mark.parametrize(
    ("split", "cuts", "reached"),
    [(Split(), 1, 0.72), (Split(tp=2), 2, 0.56), (Split(tp=2, ep=2), 1, 0.72)],
)
def test_narrow_experts_reach_a_part_of_the_rate(split: Split, cuts: int, reached: float) -> None:
    rank = rank_work(shape_of("qwen3-30b-a3b"), split, 0)
    (one,) = rank.experts
    assert (one.width, expert_cuts(split)) == (768, cuts)
    assert 1 / narrow_factor(one, cuts) == pytest.approx(reached, abs=0.01)
    step = prefill(1024)
    narrow, wide = (
        step_work(rank, step, 1024, cuts).matrix_flops,
        step_work(msgspec.structs.replace(rank, experts=()), step, 1024).matrix_flops,
    )
    routed = 2 * 1024 * one.layers * one.active_parameters
    assert (narrow - wide) / routed == pytest.approx(narrow_factor(one, cuts))


def test_one_token_of_a_mixture_touches_its_top_k() -> None:
    found = work("mixtral-8x7b", decode(1, 100))
    assert found.stream_bytes == pytest.approx(2 * (32 * (OTHERS + 2 * EXPERT) + MIXTRAL_HEAD))


def test_experts_spread_over_ranks_are_read_where_they_are() -> None:
    whole = work("qwen3-30b-a3b", decode(64, 100))
    spread = work("qwen3-30b-a3b", decode(64, 100), Split(tp=2, ep=2))
    divided = work("qwen3-30b-a3b", decode(64, 100), TP2)
    assert spread.stream_bytes == pytest.approx(divided.stream_bytes)
    assert spread.stream_bytes < 0.51 * whole.stream_bytes
    wide = Split(tp=1, replicas=2, ep=2, dispatch=Dispatch.GATHER_SCATTER)
    assert rank_work(shape_of("qwen3-30b-a3b"), wide, 0).experts[0].bytes_all == (
        64 * 3 * 2048 * 768 * 2
    )


@pytest.mark.parametrize("tokens", [1, 3, 64, 2048])
@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b"])
@pytest.mark.parametrize(
    "split",
    [
        Split(ep=2, replicas=2, dispatch=Dispatch.GATHER_SCATTER),
        Split(ep=3, replicas=3, dispatch=Dispatch.GATHER_SCATTER),
        Split(tp=2, ep=4, replicas=2, dispatch=Dispatch.ALL_TO_ALL),
    ],
    ids=lambda split: split.name,
)
def test_experts_over_replicas_serve_the_tokens_of_all(
    split: Split, model: str, tokens: int
) -> None:
    """Spreading experts moves their work, it saves none: all ranks together do as much."""
    alone = msgspec.structs.replace(split, ep=1, dispatch=Dispatch.ALL_REDUCE)
    spread, divided = (work(model, prefill(tokens), one).matrix_flops for one in (split, alone))
    # Experts that do not divide make the fullest rank, which is the one that is priced, fuller.
    assert spread >= divided * (1 - 1e-12)
    if 8 % split.ep == 0:
        assert spread == pytest.approx(divided, rel=1e-12)
    routed = rank_work(shape_of(model), split, 0).experts[0]
    touched = routed.experts * (
        1 - (1 - routed.top_k / routed.experts) ** (tokens * split.replicas)
    )
    rest = rank_work(shape_of(model), split, 0).stream_bytes
    head = rank_work(shape_of(model), split, 0).head_bytes
    assert work(model, prefill(tokens), split).stream_bytes == pytest.approx(
        rest + head + routed.layers * routed.bytes_all * touched / routed.experts
    )


def test_latent_attention_caches_one_latent_on_every_rank() -> None:
    name = "deepseek-ai--DeepSeek-V3"
    found = work(name, decode(1, 1000))
    assert found.cache_bytes == 1000 * 61 * (512 + 64) * 2 == 1000 * 70_272
    assert work(name, decode(1, 1000), Split(tp=8)).cache_bytes == found.cache_bytes
    # A prompt expands its latents: scores over 128 + 64, values over 128, for 128 heads.
    pairs = 1024 * 1025 / 2
    assert work(name, prefill(1024)).attention_flops == 61 * 2 * 128 * (128 + 64 + 128) * pairs
    # One token alone is absorbed: scores over latent and rope, values over the latent.
    last = work(name, prefill(1, cached=1023)).attention_flops
    assert last == 61 * 2 * 128 * (2 * 512 + 64) * 1024


def test_windows_bound_cache_and_pairs() -> None:
    found = work("gpt-oss-20b", decode(4, 1000))
    # Twelve layers keep all, twelve keep 128 tokens; a token takes 2 x 8 heads x 64 in two bytes.
    assert found.cache_bytes == 4 * 12 * 2048 * (1000 + 128)
    seen = 128 * 129 / 2 + (1024 - 128) * 128
    expected = 12 * 4 * 64 * 64 * (1024 * 1025 / 2 + seen)
    assert work("gpt-oss-20b", prefill(1024)).attention_flops == expected
    later = 12 * 4 * 64 * 64 * (1024 * 2048 + 1024 * 1025 / 2 + 1024 * 128)
    assert work("gpt-oss-20b", prefill(1024, cached=2048)).attention_flops == later


def test_recurrent_layers_read_and_write_their_state() -> None:
    shape = shape_of("nvidia--Nemotron-H-56B-Base-8K")
    rank = rank_work(shape, Split(), 0)
    assert rank.cache.state_bytes > 0
    short, long = (step_work(rank, decode(2, length), 2).cache_bytes for length in (10, 20))
    assert long - short == 2 * 10 * rank.cache.full_bytes_per_token
    assert short == 2 * (2 * rank.cache.state_bytes + 10 * rank.cache.full_bytes_per_token)


@pytest.mark.parametrize(
    "model",
    [
        "llama-3.1-8b",
        "gpt-oss-20b",
        "deepseek-ai--DeepSeek-V3",
        "nvidia--Nemotron-H-56B-Base-8K",
    ],
)
@pytest.mark.parametrize("split", [Split(), TP2], ids=["one", "tp2"])
def test_a_chunk_does_the_work_that_the_model_states(model: str, split: Split) -> None:
    shape = shape_of(model)
    whole = sum(layer_flops(layer.mixer, 512, 1024) for layer in shape.layers)
    assert any(layer_flops(layer.mixer, 512, 1024) for layer in shape.layers)
    found = work(model, prefill(512, 512, cached=1024), split).attention_flops
    assert found == pytest.approx(2 * whole / split.tp)


def test_recurrent_layers_compute_in_a_prompt() -> None:
    shape = shape_of("nvidia--Nemotron-H-56B-Base-8K")
    a_token = [
        layer.mixer.flops_per_token for layer in shape.layers if isinstance(layer.mixer, Recurrent)
    ]
    assert min(a_token) > 0
    near, far = (
        work("nvidia--Nemotron-H-56B-Base-8K", prefill(*lengths)).attention_flops
        for lengths in ((1, 1), (2,))
    )
    # Two prompts of one token see one pair less than one prompt of two; the state costs the same.
    attention = [layer.mixer for layer in shape.layers if isinstance(layer.mixer, Attention)]
    assert far - near == sum(layer_flops(one, 1, 0) for one in attention)
    assert near == 2 * sum(a_token) + 2 * sum(layer_flops(one, 1, 0) for one in attention)


def test_layers_without_cache_or_blocks_are_layers_all_the_same() -> None:
    shape = shape_of("nvidia--Llama-3_3-Nemotron-Super-49B-v1")
    bare = [layer for layer in shape.layers if layer.mixer is None]
    assert bare
    assert all(isinstance(layer, Layer) for layer in bare)
    found = rank_work(shape, Split(), 0)
    assert found.layers == len(shape.layers) == 80
    assert sum(one.layers for one in found.mixers) == sum(
        isinstance(layer.mixer, Attention) for layer in shape.layers
    )
    assert any(isinstance(layer.ffn, DenseFfn) for layer in shape.layers)
