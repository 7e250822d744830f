"""Memory of each GPU by itself, checked against recorded starts of vLLM 0.24.0 on two H200.

Recorded (engine logs of the h200-pair runs, 8B, 8,192 tokens a step, utilisation 0.92): weights
14.97 GiB on one GPU and 7.49 on each of two; cache 112.32 GiB = 920,128 tokens on one, 119.97 to
120.52 GiB = 1,965,632 to 1,974,528 tokens on two.
"""

import pytest
from msgspec.structs import replace
from shapes import LATENT, LLAMA_8B, LLAMA_70B, QWEN3_06B, llama, model

from linkbound.errors import InputError, UsageError
from linkbound.model.derive import cache_bytes, kv_bytes_per_token
from linkbound.model.types import Layer, Load, Recurrent
from linkbound.splits import EngineAssumptions, Split, fit, fit_machine, parse_gpus, place
from linkbound.splits.cache import rank_cache
from linkbound.topology.types import Gpu, Machine
from linkbound.units import GIB

H200_PAIR = parse_gpus("2x143771MiB")
TWO_24 = parse_gpus("2x24GiB")
LOAD = Load(prompt_tokens=1024, output_tokens=256, concurrency=1)
TP2, PP2, TWO = Split(tp=2), Split(pp=2), Split(replicas=2)
MODEL_40_GB = llama(
    "40 GB",
    hidden=6144,
    layers=48,
    heads=48,
    kv_heads=8,
    vocabulary=100_032,
    intermediate=16384,
)


def parts(rank):
    return {part.name: part for part in rank.parts}


@pytest.mark.parametrize(
    ("split", "tokens", "cache_gib"),
    [(Split(), 920_128, 112.32), (TP2, 1_974_528, 120.52), (TP2, 1_965_632, 119.97)],
)
def test_cache_of_the_recorded_starts_within_one_percent(split, tokens, cache_gib):
    found = fit_machine(LLAMA_8B, split, H200_PAIR, LOAD)
    assert found.kv_tokens == pytest.approx(tokens, rel=0.01)
    cache = parts(found.ranks[0])["KV cache"]
    assert cache.size_bytes / GIB == pytest.approx(cache_gib, rel=0.01)
    assert cache.low_bytes / GIB <= cache_gib <= cache.high_bytes / GIB


def test_recorded_pool_gives_recorded_tokens_in_whole_blocks():
    for gib, tensor, tokens in ((112.32, 1, 920_128), (120.52, 2, 1_974_528)):
        rate = rank_cache(LLAMA_8B.layers, Split(tp=tensor), 0).bytes_per_token
        assert gib * GIB / rate == pytest.approx(tokens, rel=1e-4)
        assert tokens % 16 == 0


def test_parts_of_a_gpu_fill_what_is_usable():
    found = fit_machine(LLAMA_8B, Split(), H200_PAIR, LOAD)
    (rank,) = found.ranks
    assert rank.capacity_bytes == 143_771 * 1024**2
    assert rank.usable_bytes == 0.92 * rank.capacity_bytes
    held = sum(part.size_bytes for part in rank.parts)
    assert 0 <= rank.usable_bytes - held < 16 * rank.kv_bytes_per_token
    assert rank.kv_bytes_per_token == 131_072
    assert found.kv_tokens % 16 == 0
    assert parts(rank)["weights"].size_bytes == 16_060_522_496
    for part in rank.parts:
        assert part.low_bytes <= part.size_bytes <= part.high_bytes
        assert part.basis.startswith(("prior (vLLM", "stated by", "what is left"))


def test_70b_on_one_141_gb_card_leaves_under_4096_tokens_but_fits_when_split():
    one = fit_machine(LLAMA_70B, Split(), H200_PAIR, LOAD)
    assert not one.fits
    assert one.kv_tokens == 0
    assert one.longest_context is None
    assert one.largest_batch is None
    assert one.reason == (
        "needs 134.1 GiB on GPU0 (131.4 GiB weights, 2.7 GiB beside them), has 129.2 GiB usable "
        "(0.92 of 140.4 GiB). 2 GPUs of 140.4 GiB are not one of 280.8 GiB."
    )
    for split in (TP2, PP2):
        found = fit_machine(LLAMA_70B, split, H200_PAIR, LOAD)
        assert found.fits
        assert found.kv_tokens > 300_000


def test_a_stated_utilisation_is_used():
    engine = EngineAssumptions(utilisation=1.0)
    found = fit_machine(LLAMA_70B, Split(), H200_PAIR, LOAD, engine=engine)
    assert found.fits
    assert found.ranks[0].usable_bytes == found.ranks[0].capacity_bytes


def test_a_40_gb_model_fits_split_and_the_unsplit_program_is_told_why_not():
    assert MODEL_40_GB.weight_bytes == pytest.approx(40e9, rel=0.003)
    for split in (TP2, PP2):
        found = fit_machine(MODEL_40_GB, split, TWO_24, LOAD)
        assert found.fits, found.reason
        assert found.largest_batch >= 1
    for split in (Split(), TWO):
        found = fit_machine(MODEL_40_GB, split, TWO_24, LOAD)
        assert not found.fits
        assert "37.2 GiB weights" in found.reason
        assert "has 22.1 GiB usable (0.92 of 24.0 GiB)" in found.reason
        assert found.reason.endswith("2 GPUs of 24.0 GiB are not one of 48.0 GiB.")


def test_the_smaller_of_two_unlike_gpus_decides():
    unlike = parse_gpus("24GiB,16GiB")
    found = fit_machine(MODEL_40_GB, TP2, unlike, LOAD)
    assert not found.fits
    assert "on GPU1" in found.reason
    assert found.ranks[0].kv_tokens > 0
    assert found.kv_tokens == found.ranks[1].kv_tokens == 0
    uneven = fit_machine(
        MODEL_40_GB, Split(pp=2, stage_layers=(32, 16)), parse_gpus("32GiB,20GiB"), LOAD
    )
    assert uneven.fits, uneven.reason


def test_one_gpu_is_the_largest():
    found = fit_machine(QWEN3_06B, Split(), parse_gpus("16GiB,24GiB,16GiB"), LOAD)
    assert [rank.gpu for rank in found.ranks] == ["GPU1"]


def test_replicas_add_sequences_but_not_context():
    one = fit_machine(LLAMA_8B, Split(), H200_PAIR, LOAD)
    two = fit_machine(LLAMA_8B, TWO, H200_PAIR, LOAD)
    assert two.largest_batch == 2 * one.largest_batch
    assert two.longest_context == one.longest_context
    assert two.kv_tokens == one.kv_tokens


def test_batch_and_context_follow_the_load_and_the_models_limit():
    found = fit_machine(LLAMA_8B, Split(), H200_PAIR, LOAD)
    assert found.largest_batch == found.kv_tokens // 1280
    assert found.longest_context == found.kv_tokens
    limited = replace(LLAMA_8B, max_context=131_072)
    assert fit_machine(limited, Split(), H200_PAIR, LOAD).longest_context == 131_072


def test_a_load_longer_than_the_cache_does_not_fit():
    long = Load(prompt_tokens=1_000_000, output_tokens=1, concurrency=1)
    found = fit_machine(LLAMA_8B, Split(), H200_PAIR, long)
    assert not found.fits
    assert found.kv_tokens > 900_000
    assert "one sequence of 1,000,001 tokens takes 122.1 GiB there" in found.reason
    assert fit_machine(LLAMA_8B, TP2, H200_PAIR, long).fits


def test_more_sequences_than_fit_wait():
    busy = Load(prompt_tokens=1024, output_tokens=256, concurrency=100)
    found = fit_machine(MODEL_40_GB, TP2, TWO_24, busy)
    assert found.fits
    waiting = 100 - found.largest_batch
    assert f"Of 100 at once, {waiting} wait." in found.reason


def test_latent_cache_is_whole_on_every_tensor_rank():
    one, four = (rank_cache(LATENT.layers, Split(tp=tp), 0).bytes_per_token for tp in (1, 4))
    assert one == four == 8 * 576 * 2


@pytest.mark.parametrize(("tp", "rate"), [(1, 327_680), (2, 163_840), (8, 40_960), (16, 40_960)])
def test_key_value_heads_repeat_beyond_their_number(tp, rate):
    assert rank_cache(LLAMA_70B.layers, Split(tp=tp), 0).bytes_per_token == rate


WINDOWED = replace(
    LLAMA_8B,
    layers=tuple(
        replace(one, mixer=replace(one.mixer, window=128 if index % 2 else None))
        for index, one in enumerate(LLAMA_8B.layers)
    ),
)


@pytest.mark.parametrize("tokens", [16, 128, 4096, 131_072])
def test_cache_of_one_rank_is_that_of_the_model(tokens):
    for shape in (LLAMA_8B, LATENT, WINDOWED):
        cache = rank_cache(shape.layers, Split(), 0)
        assert cache.sequence_bytes(tokens, 16) == cache_bytes(shape, tokens)
        assert cache.bytes_per_token == kv_bytes_per_token(shape)


def test_windows_let_one_sequence_be_longer_than_the_tokens_of_many():
    found = fit_machine(WINDOWED, Split(), H200_PAIR, LOAD)
    assert found.longest_context == pytest.approx(2 * found.kv_tokens, rel=0.001)
    cache = rank_cache(WINDOWED.layers, Split(), 0)
    assert found.largest_batch == pytest.approx(
        found.kv_tokens * 131_072 / cache.sequence_bytes(1280, 16), abs=1
    )


def test_recurrent_state_does_not_grow():
    layer = Layer(mixer=Recurrent(state_bytes=1e6), ffn=None, weights=())
    shape = model("recurrent", 1024, 32_000, (layer,) * 10)
    found = fit_machine(shape, Split(), TWO_24, LOAD)
    assert found.fits
    assert found.kv_tokens is None
    assert found.longest_context is None
    assert found.largest_batch == pytest.approx(20.8 * GIB / 1e7, rel=0.05)
    assert found.ranks[0].kv_bytes_per_token == 0


def test_a_model_without_any_cache_has_no_largest_batch():
    layer = Layer(mixer=None, ffn=None, weights=())
    found = fit_machine(model("none", 1024, 32_000, (layer,)), Split(), TWO_24, LOAD)
    assert found.fits
    assert found.largest_batch is None
    assert found.reason == "weights fit; no layer keeps tokens."


def test_a_split_that_cannot_be_has_no_ranks_but_a_reason():
    many = fit_machine(LLAMA_8B, Split(tp=4), H200_PAIR, LOAD)
    assert (many.fits, many.ranks) == (False, ())
    assert many.reason == "tp4 needs 4 GPUs, here are 2."
    wrong = fit_machine(LLAMA_8B, Split(tp=3), parse_gpus("4x80GiB"), LOAD)
    assert wrong.reason == "32 query heads do not divide by tp 3."


def test_gpus_of_unknown_memory_are_refused_by_name():
    machine = Machine(sources=("topo.txt",), gpus=(Gpu(key="a", label="GPU0"),))
    with pytest.raises(
        InputError, match=r"How much memory GPU0 has is said by none of: topo\.txt\."
    ):
        fit(LLAMA_8B, Split(), place(Split(), machine), machine, LOAD)


def test_an_excluded_gpu_holds_nothing():
    found = fit_machine(LLAMA_8B, Split(), H200_PAIR, LOAD, excluded=("GPU0",))
    assert [rank.gpu for rank in found.ranks] == ["GPU1"]
    pair = fit_machine(LLAMA_8B, TP2, H200_PAIR, LOAD, excluded=("GPU0",))
    assert pair.reason == "tp2 needs 2 GPUs, here are 1."
    with pytest.raises(UsageError):
        place(TP2, H200_PAIR, ("GPU0",))


def test_small_gpus_take_smaller_steps():
    large = fit_machine(QWEN3_06B, Split(), parse_gpus("80GiB"), LOAD).ranks[0]
    small = fit_machine(QWEN3_06B, Split(), parse_gpus("24GiB"), LOAD).ranks[0]
    assert "8,192 tokens" in parts(large)["activations"].basis
    assert "2,048 tokens" in parts(small)["activations"].basis
    assert parts(small)["activations"].size_bytes < parts(large)["activations"].size_bytes


def test_communicators_are_counted_only_in_a_group():
    alone = fit_machine(LLAMA_8B, TWO, H200_PAIR, LOAD).ranks[0]
    group = fit_machine(LLAMA_8B, TP2, H200_PAIR, LOAD).ranks[0]
    assert parts(alone)["non-torch"].size_bytes == pytest.approx(0.13 * GIB)
    assert parts(group)["non-torch"].size_bytes == pytest.approx(0.55 * GIB)


def test_equal_ranks_keep_their_own_names():
    found = fit_machine(LLAMA_8B, Split(tp=2, pp=2), parse_gpus("4x80GiB"), LOAD)
    assert [(rank.rank, rank.gpu) for rank in found.ranks] == [(i, f"GPU{i}") for i in range(4)]
