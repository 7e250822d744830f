"""What small kernels move for a token, counted by hand, and where a step charges it."""

import pytest
from predict_cases import TP2, decode, engine_on, plan, prefill, shape_of

from linkbound.evidence.study import Study
from linkbound.model.types import DenseFfn, Layer, MoeFfn
from linkbound.predict.activations import moved_elements
from linkbound.predict.steptime import step_time
from linkbound.predict.types import TermKind
from linkbound.predict.work import rank_work, step_work
from linkbound.splits.types import Split

LLAMA, QWEN, DEEPSEEK = "llama-3.1-8b", "qwen3-30b-a3b", "deepseek-ai--DeepSeek-V3"


def moved(layer: Layer, hidden: int, split: Split = Split()) -> float:  # noqa: B008
    return moved_elements(layer, hidden, split, 0)


def test_a_dense_layer() -> None:
    """Two norms of 4 x 4,096; 32 query heads and 8 of keys and values of 128; 3 x 14,336."""
    layer = shape_of(LLAMA).layers[0]
    mixer = 2 * 4096 + 4 * 1024 + 2 * 1024
    assert moved(layer, 4096) == 2 * 4 * 4096 + mixer + 3 * 14_336 == 90_112
    # Norms are whole on every rank.
    assert moved(layer, 4096, TP2) == 32_768 + (mixer + 3 * 14_336) / 2 == 61_440
    # Sixteen ranks have a head of keys and values each, twice what there is.
    assert moved(layer, 4096, Split(tp=16)) == 32_768 + 2 * 256 + 6 * 128 + 3 * 896


def test_a_mixture() -> None:
    """The eight experts of a token, 768 wide; their results are read, their sum is written."""
    layer = shape_of(QWEN).layers[0]
    norms, mixer, wide = 2 * 4 * 2048, 2 * 4096 + 6 * 512, 3 * 8 * 768
    assert moved(layer, 2048) == norms + mixer + wide + 9 * 2048 == 64_512
    # Divided experts: each rank adds up its part of all eight. Whole ones: all of its four.
    assert moved(layer, 2048, TP2) == norms + (mixer + wide) / 2 + 9 * 2048 == 49_664
    whole = moved(layer, 2048, Split(tp=2, ep=2))
    assert whole == norms + (mixer + wide) / 2 + 5 * 2048 == 41_472


def test_latent_attention() -> None:
    """128 heads of 128 + 64; a latent of 512 + 64, which no rank divides. One shared expert."""
    shape = shape_of(DEEPSEEK)
    dense = next(one for one in shape.layers if isinstance(one.ffn, DenseFfn))
    mixture = next(one for one in shape.layers if isinstance(one.ffn, MoeFfn))
    norms, queries, latent = 2 * 4 * 7168, 2 * 128 * 192, 4 * 576
    assert moved(dense, 7168) == norms + queries + latent + 3 * 18_432 == 164_096
    assert moved(mixture, 7168) == norms + queries + latent + 3 * 9 * 2048 + 9 * 7168 == 228_608
    divided = moved(dense, 7168, Split(tp=8))
    assert divided == norms + latent + (queries + 3 * 18_432) / 8


def test_parts_that_a_layer_lacks_move_nothing() -> None:
    shape = shape_of("nvidia--Nemotron-H-56B-Base-8K")
    known = {
        (layer.mixer is None, type(layer.mixer).__name__): moved(layer, shape.hidden)
        for layer in shape.layers
    }
    # Of a recurrence the norm alone is known; a block without a gate reads and writes twice.
    assert known[False, "Recurrent"] == 4 * shape.hidden
    block = next(layer for layer in shape.layers if isinstance(layer.ffn, DenseFfn))
    assert isinstance(block.ffn, DenseFfn)
    assert not block.ffn.gated
    assert moved(block, shape.hidden) == 4 * shape.hidden + 2 * block.ffn.intermediate


def test_a_rank_adds_up_its_layers_in_bytes() -> None:
    assert rank_work(shape_of(LLAMA), Split(), 0).moved_bytes == 2 * 32 * 90_112
    assert rank_work(shape_of(LLAMA), Split(pp=2), 1).moved_bytes == 2 * 16 * 90_112
    assert rank_work(shape_of(DEEPSEEK), Split(), 0).moved_bytes == (
        2 * (3 * 164_096 + 58 * 228_608)
    )
    rank = rank_work(shape_of(LLAMA), Split(), 0)
    assert step_work(rank, prefill(1000), 1000).moved_bytes == 1000 * rank.moved_bytes
    # A step runs at the size of its graph, empty places included.
    assert step_work(rank, decode(5, 100), 8).moved_bytes == 8 * rank.moved_bytes


def test_they_are_charged_at_the_memory_rate_beside_the_latency(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    constants = engine.calibration
    for step, tokens in ((decode(8, 1000), 8), (prefill(8192), 8192)):
        found = step_time(engine, plan(engine), step)
        (part,) = [one.time.value for one in found.terms if one.kind is TermKind.LAUNCH]
        moved_s = tokens * 2 * 32 * 90_112 / constants.stream_bytes_per_s.value
        assert part == pytest.approx(32 * constants.layer_s.value + moved_s)
