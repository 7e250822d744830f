"""Crossings as bytes on the wire, against sums worked out by hand."""

import pytest
from shapes import LLAMA_8B

from linkbound.links.types import Arm
from linkbound.splits import Phase, Split, crossings
from linkbound.splits.wire import Wire, added, hull, step_parts, together

MIB = 1024**2
TP2 = Split(tp=2)


def total(split, phase, tokens, steps=1, **wire):
    found = crossings(LLAMA_8B, split, phase, tokens, tokens)
    wire = Wire(split=split, **{"arm": Arm.NCCL, **wire})
    return together(step_parts(found, wire, steps))


def test_a_prefill_of_8192_tokens_sends_65_times_64_mib_from_each_of_two_ranks():
    found = total(TP2, Phase.PREFILL, 8192)
    assert found.payload_bytes == 2 * 65 * 64 * MIB
    assert (found.low_bytes, found.high_bytes) == (found.payload_bytes, found.payload_bytes)
    assert found.tolerance == pytest.approx(0.10)


def test_a_decode_over_nccl_is_doubled_and_over_the_engines_own_is_not():
    payload = 100 * 2 * 65 * 8192
    nccl = total(TP2, Phase.DECODE, 1, steps=100)
    assert (nccl.payload_bytes, nccl.low_bytes, nccl.high_bytes) == (
        payload,
        2 * payload,
        2 * payload,
    )
    own = total(TP2, Phase.DECODE, 1, steps=100, arm=Arm.P2P, own_limit_bytes=8 * MIB)
    assert (own.low_bytes, own.high_bytes) == (payload, payload)
    # The switch is off in every other arm, whatever the limit.
    staged = total(TP2, Phase.DECODE, 1, steps=100, arm=Arm.STAGED, own_limit_bytes=8 * MIB)
    assert staged.low_bytes == 2 * payload


def test_one_shot_among_four_ranks_reads_up_to_twice_what_a_ring_sends():
    own = total(Split(tp=4), Phase.DECODE, 1, arm=Arm.P2P, own_limit_bytes=8 * MIB)
    assert (own.low_bytes, own.high_bytes) == (65 * 8192 * 6, 65 * 8192 * 12)


def test_every_tensor_rank_of_a_stage_sends_its_slice():
    split = Split(tp=2, pp=2)
    parts = {
        (part.kind.value, part.operation.value): part.payload_bytes
        for part in step_parts(
            crossings(LLAMA_8B, split, Phase.PREFILL, 1024, 1024),
            Wire(split=split, arm=Arm.NCCL),
            1,
        )
    }
    state = 1024 * 8192
    # Hidden state and residual: two slices from each of two ranks, and gathered over the next two.
    assert parts["pipeline", "send_recv"] == 2 * state
    assert parts["pipeline", "all_gather"] == 2 * state
    assert parts["tensor", "all_reduce"] == 64 * 2 * state


def test_alternatives_make_a_range_and_parts_a_sum():
    wire = Wire(split=TP2, arm=Arm.NCCL)
    small, large = (
        step_parts(crossings(LLAMA_8B, TP2, Phase.PREFILL, tokens, 1), wire, 8192 / tokens)
        for tokens in (1, 8192)
    )
    (_, tensor) = hull([small, large])
    payload = 2 * 64 * 64 * MIB
    assert (tensor.smallest_bytes, tensor.largest_bytes) == (8192, 64 * MIB)
    assert (tensor.payload_bytes, tensor.low_bytes, tensor.high_bytes) == (
        payload,
        payload,
        2 * payload,
    )
    (_, both) = added((*small, *large))
    assert (both.payload_bytes, both.low_bytes) == (2 * payload, 3 * payload)
