"""Crossings of one step against numbers worked out by hand from the formulas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from shapes import LATENT, LLAMA_8B, LLAMA_70B, MIXTRAL, QWEN3_32B

from linkbound.links.types import Operation
from linkbound.splits import (
    Crossing,
    CrossingKind,
    Dispatch,
    EngineAssumptions,
    Phase,
    Split,
    crossings,
    expected_ranks,
    kv_transfer,
)

DECODE = Phase.DECODE


def rows(found):
    return [
        (one.kind.value, one.operation.value, one.ranks, one.size_bytes, one.count) for one in found
    ]


def test_llama_8b_tp2_decode_of_one_sequence_is_65_all_reduces_of_8_kib():
    found = crossings(LLAMA_8B, Split(tp=2), DECODE, 1, 1)
    assert {one.operation for one in found} == {Operation.ALL_REDUCE}
    assert {one.size_bytes for one in found} == {8192}
    assert sum(one.count for one in found) == 65
    assert rows(found) == [
        ("embedding", "all_reduce", (0, 1), 8192, 1),
        ("tensor", "all_reduce", (0, 1), 8192, 64),
    ]


@pytest.mark.parametrize(("tokens", "size_bytes"), [(1, 10_240), (8, 81_920), (4000, 40_960_000)])
def test_qwen3_32b_sends_129_messages_a_step(tokens, size_bytes):
    found = crossings(QWEN3_32B, Split(tp=2), Phase.PREFILL, tokens, 1)
    assert sum(one.count for one in found) == 129
    assert {one.size_bytes for one in found} == {size_bytes}
    # 20,480 B a token and layer, 1.31 MB a token (and 10,240 B for the embedding).
    assert sum(one.count * one.size_bytes for one in found) == tokens * (64 * 20_480 + 10_240)


def test_prefill_of_8192_tokens_is_64_mib_a_call():
    found = crossings(LLAMA_8B, Split(tp=2), Phase.PREFILL, 8192, 1)
    assert {one.size_bytes for one in found} == {64 * 1024**2}
    assert {one.phase for one in found} == {Phase.PREFILL}


def test_nothing_crosses_on_one_gpu_or_between_replicas():
    assert crossings(LLAMA_8B, Split(), DECODE, 1, 1, logits=True) == ()
    assert crossings(LLAMA_8B, Split(replicas=8), DECODE, 64, 64) == ()


def test_replicas_of_a_split_do_what_one_does():
    one = crossings(LLAMA_8B, Split(tp=2), DECODE, 4, 4)
    assert crossings(LLAMA_8B, Split(tp=2, replicas=4), DECODE, 4, 4) == one


def test_parallel_attention_reduces_once_a_layer():
    once = replace(LLAMA_8B, layers=tuple(replace(one, reductions=1) for one in LLAMA_8B.layers))
    assert sum(one.count for one in crossings(once, Split(tp=2), DECODE, 1, 1)) == 33


def test_logits_are_gathered_for_sampled_positions_only():
    found = crossings(LLAMA_8B, Split(tp=2), Phase.PREFILL, 1000, 3, logits=True)
    assert rows(found)[-1] == ("logits", "all_gather", (0, 1), 3 * 128256 * 2, 1)


def test_pipeline_sends_hidden_state_and_residual():
    assert rows(crossings(LLAMA_8B, Split(pp=2), DECODE, 1, 1)) == [
        ("pipeline", "send_recv", (0, 1), 8192, 2)
    ]
    assert rows(crossings(LLAMA_8B, Split(pp=4), DECODE, 1, 1)) == [
        ("pipeline", "send_recv", (rank, rank + 1), 8192, 2) for rank in range(3)
    ]
    hidden_only = EngineAssumptions(name="other", stage_tensors=1)
    found = crossings(LLAMA_8B, Split(pp=2), DECODE, 1, 1, engine=hidden_only)
    assert rows(found) == [("pipeline", "send_recv", (0, 1), 8192, 1)]


def test_tensor_and_pipeline_together():
    assert rows(crossings(LLAMA_8B, Split(tp=2, pp=2), DECODE, 2, 2)) == [
        ("embedding", "all_reduce", (0, 1), 16384, 1),
        ("tensor", "all_reduce", (0, 1), 16384, 32),
        ("pipeline", "send_recv", (0, 2), 8192, 2),
        ("pipeline", "all_gather", (2, 3), 16384, 2),
        ("tensor", "all_reduce", (2, 3), 16384, 32),
    ]


def test_uneven_stages_move_the_reductions():
    split = Split(tp=2, pp=2, stage_layers=(20, 12))
    found = crossings(LLAMA_8B, split, DECODE, 1, 1)
    assert [one.count for one in found if one.kind is CrossingKind.TENSOR] == [40, 24]


def test_experts_inside_the_tensor_group_add_nothing():
    tensor = crossings(MIXTRAL, Split(tp=2), DECODE, 8, 8)
    assert crossings(MIXTRAL, Split(tp=2, ep=2), DECODE, 8, 8) == tensor
    assert sum(one.count for one in tensor) == 65


def test_gather_and_scatter_carry_all_tokens_once_without_top_k():
    split = Split(ep=2, replicas=2, dispatch=Dispatch.GATHER_SCATTER)
    size = 2 * 8 * 4096 * 2
    assert rows(crossings(MIXTRAL, split, DECODE, 8, 8)) == [
        ("expert", "all_gather", (0, 1), size, 32),
        ("expert", "reduce_scatter", (0, 1), size, 32),
    ]


def test_exchange_replaces_the_second_all_reduce_of_a_mixture_layer():
    split = Split(tp=2, ep=4, replicas=2, dispatch=Dispatch.GATHER_SCATTER)
    assert rows(crossings(MIXTRAL, split, DECODE, 8, 8)) == [
        ("embedding", "all_reduce", (0, 1), 65536, 1),
        ("tensor", "all_reduce", (0, 1), 65536, 32),
        ("expert", "all_gather", (0, 1, 2, 3), 131072, 32),
        ("expert", "reduce_scatter", (0, 1, 2, 3), 131072, 32),
        ("expert", "all_gather", (0, 1), 65536, 32),
    ]


def test_expert_groups_cross_replicas_but_not_stages():
    split = Split(pp=2, ep=2, replicas=2, dispatch=Dispatch.GATHER_SCATTER)
    found = crossings(MIXTRAL, split, DECODE, 1, 1)
    assert [one.ranks for one in found] == [(0, 2), (0, 2), (0, 1), (1, 3), (1, 3)]


def test_expected_distinct_ranks():
    assert expected_ranks(8, 4) == pytest.approx(3.3, abs=0.05)
    assert expected_ranks(8, 8) == pytest.approx(5.3, abs=0.06)
    assert expected_ranks(2, 2) == 1.5
    assert expected_ranks(1, 8) == 1


@given(st.integers(1, 512), st.integers(1, 64))
def test_a_token_reaches_at_least_one_rank_and_at_most_all(group, top_k):
    assert 1 - 1e-9 <= expected_ranks(group, top_k) <= min(group, top_k) + 1e-9


def test_all_to_all_sends_a_copy_to_each_distinct_rank():
    split = Split(ep=2, replicas=2, dispatch=Dispatch.ALL_TO_ALL)
    size = round(8 * 1.5 * 4096 * 2)
    assert rows(crossings(MIXTRAL, split, DECODE, 8, 8)) == [
        ("expert", "all_to_all", (0, 1), size, 32),
        ("expert", "all_to_all", (0, 1), size, 32),
    ]


def test_8_bit_dispatch_carries_a_scale_for_128_elements_and_combines_in_16_bits():
    split = Split(ep=2, replicas=2, dispatch=Dispatch.ALL_TO_ALL)
    found = crossings(MIXTRAL, split, DECODE, 8, 8, engine=EngineAssumptions(dispatch_bits=8))
    assert [one.size_bytes for one in found] == [12 * (4096 + 4096 // 128 * 4), 12 * 4096 * 2]


def test_kv_transfer_of_1024_tokens_is_128_mib():
    assert kv_transfer(LLAMA_8B, Split(), Split(), 1024) == (
        Crossing(
            kind=CrossingKind.KV_TRANSFER,
            operation=Operation.SEND_RECV,
            ranks=(0, 1),
            size_bytes=134_217_728,
            count=1,
            phase=Phase.PREFILL,
        ),
    )


def sends(*arguments):
    return {one.ranks: one.size_bytes for one in kv_transfer(*arguments)}


def test_kv_heads_divide_over_rank_pairs():
    half = 134_217_728 // 2
    assert sends(LLAMA_8B, Split(tp=2), Split(tp=2), 1024) == {(0, 2): half, (1, 3): half}
    quarter = half // 2
    assert sends(LLAMA_8B, Split(tp=2), Split(tp=4), 1024) == {
        (0, 2): quarter,
        (0, 3): quarter,
        (1, 4): quarter,
        (1, 5): quarter,
    }
    assert sends(LLAMA_8B, Split(tp=4), Split(), 1024) == {(rank, 4): quarter for rank in range(4)}


def test_kv_goes_from_the_stage_that_has_a_layer_to_the_one_that_wants_it():
    assert sends(LLAMA_8B, Split(pp=2), Split(), 1024) == {(0, 2): 67_108_864, (1, 2): 67_108_864}
    assert sends(LLAMA_8B, Split(pp=2, stage_layers=(24, 8)), Split(pp=2), 1024) == {
        (0, 2): 67_108_864,
        (0, 3): 33_554_432,
        (1, 3): 33_554_432,
    }


def test_latent_cache_is_copied_whole_to_every_decode_rank():
    whole = 1024 * 8 * 576 * 2
    assert sends(LATENT, Split(tp=2), Split(tp=4), 1024) == {
        (0, 2): whole,
        (1, 3): whole,
        (0, 4): whole,
        (1, 5): whole,
    }


def test_repeated_heads_are_each_sent_to_their_holder():
    found = sends(LLAMA_70B, Split(tp=8), Split(tp=16), 1024)
    head = 1024 * 327_680 // 8
    assert len(found) == 16
    assert set(found.values()) == {head}
    assert found[(0, 8)] == found[(0, 9)] == head


def test_windows_cap_what_is_transferred():
    windowed = replace(
        LLAMA_8B,
        layers=tuple(replace(one, mixer=replace(one.mixer, window=128)) for one in LLAMA_8B.layers),
    )
    full = sends(LLAMA_8B, Split(), Split(), 4096)[(0, 1)]
    assert full * 128 / 4096 <= sends(windowed, Split(), Split(), 4096)[(0, 1)] <= full * 144 / 4096


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 5000),
)
def test_whatever_the_splits_all_of_the_cache_arrives(tp_from, tp_to, pp_from, pp_to, tokens):
    found = kv_transfer(LLAMA_8B, Split(tp=tp_from, pp=pp_from), Split(tp=tp_to, pp=pp_to), tokens)
    total = sum(one.size_bytes for one in found)
    assert total == pytest.approx(tokens * 131_072, abs=len(found))
