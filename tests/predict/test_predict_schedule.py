"""The exact steps of fixed batches, and what every schedule conserves."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.model.types import Load
from linkbound.predict.schedule import Chunk, Step, schedule, steps_ahead
from linkbound.serve import VLLM
from linkbound.serve.types import SchedulerRules
from linkbound.splits import Split


def load(concurrency: int, prompt: int, output: int) -> Load:
    return Load(prompt_tokens=prompt, output_tokens=output, concurrency=concurrency)


def rules(budget: int, sequences: int) -> SchedulerRules:
    return msgspec.structs.replace(VLLM, max_batched_tokens=budget, max_sequences=sequences)


def short(step: Step) -> tuple[list[tuple[int, int]], int, float, int, int]:
    chunks = [(one.tokens, one.cached) for one in step.chunks for _ in range(one.count)]
    return chunks, step.decodes, step.context_tokens, step.sampled, step.count


def prompts(steps: tuple[Step, ...], of: Callable[[Chunk], float]) -> float:
    """A figure of every chunk, added up over all steps."""
    return sum(step.count * one.count * of(one) for step in steps for one in step.chunks)


def test_32_prompts_of_1024_in_steps_of_8192() -> None:
    whole = [(1024, 0)]
    steps = [short(step) for step in schedule(load(32, 1024, 65), VLLM)]
    assert steps[:5] == [
        (whole * 8, 0, 0, 8, 1),
        # Eight decode tokens leave 8,184 for prompts: seven whole ones and 1,016 of the next.
        ([*whole * 7, (1016, 0)], 8, 8 * 1025, 15, 1),
        ([(8, 1016), *whole * 7, (1001, 0)], 15, 8 * 1026 + 7 * 1025, 23, 1),
        ([(23, 1001), *whole * 7, (978, 0)], 23, 8 * 1027 + 7 * 1026 + 8 * 1025, 31, 1),
        ([(46, 978)], 31, 8 * 1028 + 7 * 1027 + 8 * 1026 + 8 * 1025, 32, 1),
    ]
    # The first eight have five tokens by then; sixty steps later they have 65 and leave.
    assert [(decodes, count) for _, decodes, _, _, count in steps[5:]] == [
        (32, 60),
        (24, 1),
        (17, 1),
        (9, 1),
        (1, 1),
    ]
    first = 8 * 1029 + 7 * 1028 + 8 * 1027 + 8 * 1026 + 1 * 1025
    assert steps[5][2] == first + 32 * 59 / 2
    assert [step.tokens for step in schedule(load(32, 1024, 65), VLLM)][:5] == [8192] * 4 + [77]


def test_128_prompts_of_128() -> None:
    steps = schedule(load(128, 128, 65), VLLM)
    assert [step.prompts for step in steps] == [64, 64, 1, 0, 0, 0]
    assert [step.tokens for step in steps[:3]] == [8192, 8192, 191]
    assert short(steps[1])[0][-1] == (64, 0)
    assert short(steps[2]) == ([(64, 64)], 127, 64 * 130 + 63 * 129, 128, 1)
    assert [(step.decodes, step.count) for step in steps[3:]] == [(128, 62), (64, 1), (1, 1)]


def test_a_prompt_longer_than_a_step_is_cut() -> None:
    steps = [short(step) for step in schedule(load(1, 20_000, 3), VLLM)]
    assert steps == [
        ([(8192, 0)], 0, 0, 0, 1),
        ([(8192, 8192)], 0, 0, 0, 1),
        ([(3616, 16_384)], 0, 0, 1, 1),
        ([], 1, 20_001.5, 1, 2),
    ]


def test_more_sequences_than_the_engine_takes_at_once() -> None:
    steps = [short(step) for step in schedule(load(5, 10, 4), rules(100, 2))]
    assert steps == [
        ([(10, 0)] * 2, 0, 0, 2, 1),
        ([], 2, 2 * 12, 2, 3),
        ([(10, 0)] * 2, 0, 0, 2, 1),
        ([], 2, 2 * 12, 2, 3),
        ([(10, 0)], 0, 0, 1, 1),
        ([], 1, 12, 1, 3),
    ]


def test_one_output_token_needs_no_decode_step() -> None:
    steps = schedule(load(300, 100, 1), VLLM)
    assert sum(step.sampled for step in steps) == 300
    assert [step.decodes for step in steps] == [0] * len(steps)
    assert [step.tokens for step in steps] == [8192] * 3 + [5424]
    assert [step.count for step in steps] == [1] * 4


def test_equal_steps_are_one_with_a_count() -> None:
    (step,) = schedule(load(128, 8192, 1), VLLM)
    assert (step.count, step.tokens, step.sampled) == (128, 8192, 1)
    steps = schedule(load(64, 128, 1), VLLM)
    assert [(one.chunks, one.count) for one in steps] == [
        ((Chunk(tokens=128, cached=0, count=64),), 1)
    ]


def test_a_long_queue_is_a_short_list() -> None:
    assert len(schedule(load(100_000, 1, 1000), VLLM)) < 1000


def test_the_first_steps_know_only_what_has_come() -> None:
    assert VLLM.entered == (2, 14)
    for split, ahead in ((Split(), 1), (Split(replicas=2), 1), (Split(tp=2), 2), (Split(pp=3), 4)):
        assert steps_ahead(split, VLLM) == ahead
    assert [step.prompts for step in schedule(load(8, 1024, 1), VLLM, 2)] == [2, 6]
    steps = schedule(load(128, 128, 65), VLLM, 2)
    # 256 and 1,792 tokens go first: what is left of 16,384 leaves no piece for a fifth step.
    assert [step.tokens for step in steps[:4]] == [256, 1794, 8192, 6239]
    assert [step.prompts for step in steps[4:]] == [0] * len(steps[4:])
    assert [step.tokens for step in schedule(load(1, 9000, 1), VLLM, 2)] == [8192, 808]
    everything = msgspec.structs.replace(VLLM, entered=None)
    assert steps_ahead(Split(tp=2), everything) == steps_ahead(Split(), everything) == 0


def test_one_gpu_starts_with_the_first_sequences() -> None:
    """They wake the scheduler; while their step is launched the rest comes."""
    ahead = steps_ahead(Split(), VLLM)
    assert [step.prompts for step in schedule(load(8, 1024, 1), VLLM, ahead)] == [2, 6]
    assert [step.prompts for step in schedule(load(1, 1024, 1), VLLM, ahead)] == [1]
    steps = [short(step) for step in schedule(load(32, 1024, 65), VLLM, ahead)]
    whole = [(1024, 0)]
    assert steps[:2] == [
        (whole * 2, 0, 0, 2, 1),
        ([*whole * 7, (1022, 0)], 2, 2 * 1025, 9, 1),
    ]


@given(
    st.integers(1, 40),
    st.integers(1, 70),
    st.integers(1, 20),
    st.integers(1, 64),
    st.integers(1, 9),
    st.integers(0, 3),
)
def test_every_sequence_gets_its_tokens(
    concurrency: int, prompt: int, output: int, budget: int, sequences: int, ahead: int
) -> None:
    limits = rules(max(budget, sequences), sequences)
    steps = schedule(load(concurrency, prompt, output), limits, ahead)
    assert sum(step.sampled * step.count for step in steps) == concurrency * output
    assert prompts(steps, lambda one: one.tokens) == concurrency * prompt
    # Every token but the first of a sequence comes from a decode of prompt + tokens so far.
    read = sum(step.context_tokens * step.count for step in steps)
    one = (output - 1) * prompt + (output - 1) * output / 2
    assert read == pytest.approx(concurrency * one, rel=1e-12)
    for step in steps:
        assert 0 < step.tokens <= limits.max_batched_tokens
        assert step.decodes + step.prompts <= sequences
        assert step.sampled <= step.decodes + step.prompts
    assert prompts(steps, lambda one: one.cached == 0) == concurrency


def test_work_counts_each_token_of_a_prompt_once() -> None:
    steps = schedule(load(3, 5000, 2), VLLM)
    pairs = prompts(steps, lambda one: one.tokens * one.cached + one.tokens * (one.tokens + 1) / 2)
    assert pairs == 3 * 5000 * 5001 / 2
