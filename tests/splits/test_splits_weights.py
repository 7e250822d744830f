"""Weights on one rank: every rule of division, stages, and what cannot be divided."""

import pytest
from msgspec.structs import replace
from shapes import LATENT, LLAMA_8B, LLAMA_70B, MIXTRAL, QWEN3_06B, QWEN3_32B, weights

from linkbound.model.types import Role, Shard
from linkbound.splits import (
    Split,
    impossible,
    rank_of,
    rank_weight_bytes,
    stage_bounds,
    stage_sizes,
)
from linkbound.splits.weights import padded_vocabulary
from linkbound.units import GIB


def rank_bytes(shape, split, number=0):
    return rank_weight_bytes(shape, split, rank_of(split, number))


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (LLAMA_8B, 8_030_261_248),
        (LLAMA_70B, 70_553_706_496),
        (QWEN3_32B, 32_762_123_264),
        (QWEN3_06B, 596_049_920),
        (MIXTRAL, 46_702_792_704),
    ],
)
def test_one_gpu_holds_every_parameter_once(shape, parameters):
    assert shape.parameters == parameters
    assert rank_bytes(shape, Split()) == 2 * parameters


def test_8b_is_14_96_gib_as_vllm_loads_14_97():
    assert round(rank_bytes(LLAMA_8B, Split()) / GIB, 2) == 14.96
    assert rank_bytes(LLAMA_8B, Split()) / GIB == pytest.approx(14.97, rel=0.001)
    assert rank_bytes(LLAMA_8B, Split(tp=2)) / GIB == pytest.approx(7.49, rel=0.002)


def test_tensor_parallel_divides_all_but_the_norms():
    norms = 2 * (2 * 32 + 1) * 4096
    whole = 2 * LLAMA_8B.parameters
    assert rank_bytes(LLAMA_8B, Split(tp=4)) == (whole - norms) / 4 + norms


def test_key_value_weights_repeat_when_heads_run_out():
    kv = 2 * 80 * 2 * 8192 * 8 * 128
    norms = 2 * (2 * 80 + 1) * 8192
    rest = 2 * LLAMA_70B.parameters - kv - norms
    assert rank_bytes(LLAMA_70B, Split(tp=16)) == rest / 16 + kv / 8 + norms


def test_latent_down_projections_are_on_every_rank():
    copied = 2 * 8 * (7168 * 1536 + 7168 * 576) + 2 * 7168
    whole = LATENT.weight_bytes
    assert rank_bytes(LATENT, Split(tp=8)) == pytest.approx((whole - copied) / 8 + copied)


def test_experts_are_whole_under_expert_parallelism_and_cut_otherwise():
    experts = 2 * 32 * 8 * 3 * 4096 * 14336
    tensor = rank_bytes(MIXTRAL, Split(tp=8))
    assert rank_bytes(MIXTRAL, Split(tp=8, ep=8)) == tensor
    across = Split(ep=2, replicas=2)
    assert rank_bytes(MIXTRAL, across) == MIXTRAL.weight_bytes - experts / 2
    assert rank_bytes(MIXTRAL, Split(tp=2, ep=4, replicas=2), 3) == pytest.approx(
        (MIXTRAL.weight_bytes - experts) / 2 + experts / 4, rel=0.001
    )


def test_experts_that_do_not_divide_go_to_the_first_ranks():
    split = Split(ep=3, replicas=3)
    one = 2 * 32 * 3 * 4096 * 14336
    dense = MIXTRAL.weight_bytes - 8 * one
    assert [rank_bytes(MIXTRAL, split, rank) - dense for rank in range(3)] == [
        3 * one,
        3 * one,
        2 * one,
    ]


def test_vocabulary_is_padded_to_64_rows():
    assert [padded_vocabulary(rows) for rows in (1, 64, 65, 128256, 50257)] == [
        64,
        64,
        128,
        128256,
        50304,
    ]
    odd = replace(LLAMA_8B, vocabulary=50257)
    table = odd.embedding.size_bytes
    added = rank_bytes(odd, Split()) - rank_bytes(LLAMA_8B, Split())
    assert added == pytest.approx(2 * table * (50304 / 50257 - 1))


def test_stages_own_embedding_and_head_never_a_part_of_them():
    split = Split(pp=2)
    layer = 2 * sum(one.parameters for one in LLAMA_8B.layers[0].weights)
    table = LLAMA_8B.embedding.size_bytes
    assert rank_bytes(LLAMA_8B, split, 0) == 16 * layer + table
    assert rank_bytes(LLAMA_8B, split, 1) == 16 * layer + table + 2 * 4096
    assert rank_bytes(LLAMA_8B, Split(pp=4), 1) == 8 * layer


def test_a_tied_embedding_is_on_both_ends():
    split = Split(pp=2)
    both = sum(rank_bytes(QWEN3_06B, split, rank) for rank in range(2))
    assert both == QWEN3_06B.weight_bytes + QWEN3_06B.embedding.size_bytes
    assert rank_bytes(QWEN3_06B, Split()) == QWEN3_06B.weight_bytes


def test_a_vision_tower_is_on_the_first_stage():
    tower = weights("vision", 10**9, Shard.REPLICATED, Role.OTHER)
    seeing = replace(LLAMA_8B, extra=(*LLAMA_8B.extra, tower))
    split = Split(pp=2)
    assert rank_bytes(seeing, split, 0) - rank_bytes(LLAMA_8B, split, 0) == 2e9
    assert rank_bytes(seeing, split, 1) == rank_bytes(LLAMA_8B, split, 1)


def test_uneven_tensor_ratio_and_stages():
    split = Split(tp=2, tensor_ratio=(3, 1))
    norms = 2 * (2 * 32 + 1) * 4096
    rest = 2 * LLAMA_8B.parameters - norms
    assert rank_bytes(LLAMA_8B, split, 0) == rest * 0.75 + norms
    assert rank_bytes(LLAMA_8B, split, 1) == rest * 0.25 + norms
    assert stage_bounds(Split(pp=2, stage_layers=(20, 12)), 32) == ((0, 20), (20, 32))


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (32, 2, (16, 16)),
        (33, 2, (17, 16)),
        (61, 4, (15, 15, 16, 15)),
        (62, 4, (15, 16, 16, 15)),
        (63, 4, (16, 16, 16, 15)),
        (3, 3, (1, 1, 1)),
    ],
)
def test_layers_left_over_never_go_to_the_last_stage(layers, stages, sizes):
    assert sum(sizes) == layers
    assert stage_sizes(Split(pp=stages), layers) == sizes


@pytest.mark.parametrize(
    ("shape", "split", "code", "words"),
    [
        (LLAMA_8B, Split(tp=3), "heads", "32 query heads do not divide by tp 3."),
        (LLAMA_8B, Split(pp=33), "stages", "pp 33 needs a layer a stage, the model has 32."),
        (LLAMA_8B, Split(tp=2, ep=2), "experts", "ep 2 needs experts, the model has none."),
        (
            MIXTRAL,
            Split(ep=16, replicas=16),
            "experts",
            "ep 16 needs an expert a rank, a layer has 8.",
        ),
        (
            LLAMA_8B,
            Split(pp=2, stage_layers=(20, 13)),
            "stages",
            "Stages of 20, 13 layers do not make the model's 32.",
        ),
        (
            LLAMA_8B,
            Split(tp=7),
            "vocabulary",
            "128,256 rows of the padded vocabulary do not divide by tp 7.",
        ),
    ],
)
def test_an_impossible_split_says_why_with_the_numbers(shape, split, code, words):
    problem = impossible(shape, split)
    assert problem is not None
    assert (problem.code, problem.text) == (code, words)


def test_key_value_heads_must_divide_or_repeat():
    six = replace(
        LLAMA_8B,
        vocabulary=128_256,
        layers=tuple(
            replace(layer, mixer=replace(layer.mixer, query_heads=24, kv_heads=6))
            for layer in LLAMA_8B.layers
        ),
    )
    problem = impossible(six, Split(tp=4))
    assert problem is not None
    assert problem.text == "6 key/value heads neither divide nor repeat by tp 4."
    assert impossible(LLAMA_70B, Split(tp=64)) is None


def test_a_stated_ratio_asks_for_no_equal_parts():
    assert impossible(LLAMA_8B, Split(tp=3, tensor_ratio=(2, 1, 1))) is None
