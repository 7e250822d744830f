"""Simulated engines: against a plain one and queueing theory, and what every load conserves."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulate_oracle import (
    by_token,
    closed,
    engine,
    launching,
    linear,
    played,
    poisson,
    rules,
    same,
    trace,
)

from linkbound.predict.simulate.fleet import Balance, Pool
from linkbound.predict.simulate.noise import normal, steady
from linkbound.predict.simulate.pipeline import Pipeline
from linkbound.predict.simulate.steptable import (
    Chunks,
    StagePrices,
    StepTable,
    run_seconds,
    steps_before,
)

REQUESTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 25)), min_size=1, max_size=14
)


@settings(max_examples=300, deadline=None)
@given(
    REQUESTS,
    st.integers(1, 6),
    st.integers(4, 40),
    st.sampled_from([1, 2]),
    st.one_of(st.none(), st.integers(14, 40)),
    st.booleans(),
    st.sampled_from([None, launching]),
)
def test_runs_of_steps_are_the_steps_one_by_one(
    requests: list[tuple[int, int, int]],
    sequences: int,
    budget: int,
    ahead: int,
    blocks: int | None,
    mixes: bool,
    launches: StagePrices | None,
) -> None:
    entries = sorted((at / 37, prompt, output) for at, prompt, output in requests)
    limits = rules(max(budget, sequences), sequences, ahead=ahead, blocks=blocks, mixes=mixes)
    cell = trace(*entries)
    expected = by_token(cell, limits, launches=launches)
    one = engine(limits, launches=launches)
    same(played(cell, one).done, expected)
    assert one.batching.preemptions == sum(life.preempted for life in expected)


def test_a_launch_is_hidden_behind_the_step_before() -> None:
    def seconds(chunks: Chunks, _decodes: int, _context: float) -> tuple[float, ...]:
        # Decoding takes 4 s; a prompt 10 s, of which the device works 3 s.
        return (10.0,) if chunks else (4.0,)

    def launch(chunks: Chunks, _decodes: int, _context: float) -> tuple[float, ...]:
        return (10.0, 7.0) if chunks else (0.0, 0.0)

    def ends(ahead: int, *prompts_at: float) -> list[float]:
        cell = trace((0.0, 8, 9), *((at, 8, 1) for at in prompts_at))
        one = engine(rules(8 + 1, ahead=ahead), seconds, launches=launch)
        return [life.first_s for life in played(cell, one).done]

    # Nothing ran before the first prompt. The second one is launched from when the decode step
    # starts that ends at 18 (it comes at 13), the third waits for the second's launch.
    assert ends(2, 13.0) == [10, 24]
    assert ends(2, 13.0, 13.0) == [10, 24, 34]
    # Steps that wait for results hide nothing.
    assert ends(1, 13.0) == [10, 24]


@settings(max_examples=100, deadline=None)
@given(REQUESTS, st.integers(1, 6), st.integers(4, 40), st.one_of(st.none(), st.integers(14, 40)))
def test_a_pipeline_of_one_stage_is_an_engine_that_waits_for_results(
    requests: list[tuple[int, int, int]], sequences: int, budget: int, blocks: int | None
) -> None:
    entries = sorted((at / 37, prompt, output) for at, prompt, output in requests)
    limits = rules(max(budget, sequences), sequences, blocks=blocks)
    cell = trace(*entries)
    lone = Pipeline(limits[0], StepTable(linear), steady, limits[1], 10**6, stages=1)
    same(played(cell, lone).done, by_token(cell, limits))


def test_chunks_of_a_pipeline_follow_one_another() -> None:
    # Five prompts of a whole step each over stages of 1, 3 and 2 s: the slowest sets the pace.
    def stages(_chunks: Chunks, _decodes: int, _context: float) -> tuple[float, ...]:
        return (1.0, 3.0, 2.0)

    found = played(trace(*[(0.0, 16, 1)] * 5), engine(rules(16), stages, stages=3)).done
    assert [one.end_s for one in found] == [6, 9, 12, 15, 18]


def test_few_chunks_let_the_stages_of_a_pipeline_rest() -> None:
    """Two stages of 1 s, of half a second where they rest: as `stage.rested_in_row` says."""

    def ends(*prompts_at: float) -> list[float]:
        settings, cache = rules(16)
        tables = (
            StepTable(lambda chunks, _decodes, _context, one=one: (one, one) if chunks else (9, 9))
            for one in (1.0, 0.5)
        )
        busy, rested = tables
        one = Pipeline(settings, busy, steady, cache, 10**6, stages=2, rested=rested)
        found = played(trace(*((at, 16, 1) for at in prompts_at)), one).done
        return [life.end_s for life in found]

    assert ends(0.0) == [1.0]
    # Five in a row rest a sixth of the time, which is two thirds of a full rest.
    assert ends(*[0.0] * 5) == pytest.approx([2 / 3 * slots for slots in (2, 3, 4, 5, 6)])
    # What comes into an empty pipeline starts a row of its own.
    assert ends(*[0.0] * 5, 100.0)[-1] == 101
    # What comes behind others, and starts when the fourth is back, is the sixth of its row: stages
    # rest 1/7 of the time.
    slot_s = 1 - 1 / 7 / 0.25 / 2
    assert ends(*[0.0] * 5, 3.0)[-1] == pytest.approx(10 / 3 + 2 * slot_s)


def test_groups_of_a_pipeline_decode_while_others_do() -> None:
    # Two prompts, two groups: each walks both stages of 1 s, so every 2 s each has a token.
    def stages(_chunks: Chunks, _decodes: int, _context: float) -> tuple[float, ...]:
        return (1.0, 1.0)

    found = played(trace((0.0, 16, 100), (0.0, 16, 100)), engine(rules(16), stages, stages=2)).done
    assert [one.first_s for one in found] == [2, 3]
    assert [one.end_s for one in found] == [2 + 2 * 99, 3 + 2 * 99]


def test_rounds_taken_at_once_are_the_rounds_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def stages(chunks: Chunks, decodes: int, context: float) -> tuple[float, ...]:
        (seconds,) = linear(chunks, decodes, context)
        return seconds, 0.8 * seconds, 1.1 * seconds

    cell = trace(*[(0.3 * at, 30 + at, 400) for at in range(9)])

    def ends() -> list[float]:
        return [one.end_s for one in played(cell, engine(rules(64), stages, stages=3)).done]

    at_once = ends()
    monkeypatch.setattr("linkbound.predict.simulate.pipeline.MANY_ROUNDS", math.inf)
    assert at_once == pytest.approx(ends(), rel=0.01)


def _second(_chunks: Chunks, _decodes: int, _context: float) -> tuple[float, ...]:
    return (1.0,)


def test_deterministic_service_is_m_d_1() -> None:
    # Pollaczek-Khinchine: the mean wait is rho / 2 (1 - rho) services.
    for load in (0.3, 0.7):
        found = played(poisson(load, 40_000), engine(rules(sequences=1), _second)).done
        mean = fmean(one.end_s - one.due_s for one in found)
        assert mean == pytest.approx(1 + load / (2 * (1 - load)), rel=0.03)


def test_exponential_service_is_m_m_1() -> None:
    # Time in the system is exponential with mean 1 / (1 - rho) services.
    draw = random.Random(5)
    one = engine(rules(sequences=1), _second, noise=lambda _steps: draw.expovariate(1.0))
    load = 0.6
    times = sorted(one.end_s - one.due_s for one in played(poisson(load, 60_000), one).done)
    assert fmean(times) == pytest.approx(1 / (1 - load), rel=0.04)
    assert times[len(times) * 9 // 10] == pytest.approx(math.log(10) / (1 - load), rel=0.05)


def test_the_shorter_queue_is_better_than_turns() -> None:
    waits = {}
    for balance in Balance:
        draw = random.Random(5)
        pair = [
            engine(rules(sequences=1), _second, noise=lambda _steps, draw=draw: draw.expovariate(1))
            for _ in range(2)
        ]
        found = played(poisson(1.6, 30_000), *pair, balance=balance).done
        waits[balance] = fmean(one.end_s - one.due_s - 1 for one in found)
    # By chance each would be M/M/1: a mean wait of rho / (1 - rho).
    assert 0 < waits[Balance.LEAST] < waits[Balance.ROUND_ROBIN] < 0.8 / 0.2


@settings(max_examples=60, deadline=None)
@given(
    REQUESTS,
    st.integers(1, 3),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(list(Balance)),
    st.one_of(st.none(), st.integers(14, 30)),
    st.floats(0, 0.9),
)
# A sequence that is put back joins another group, to end in the step of the same number.
@example([(0, 1, 1), (1, 1, 4), (1, 15, 4), (2, 9, 1), (2, 21, 1)], 1, 2, Balance.LEAST, 14, 0.0)
def test_what_every_load_conserves(
    requests: list[tuple[int, int, int]],
    replicas: int,
    stages: int,
    balance: Balance,
    blocks: int | None,
    reuse: float,
) -> None:
    entries = sorted((at / 37, prompt, output) for at, prompt, output in requests)

    def prices(chunks: Chunks, decodes: int, context: float) -> tuple[float, ...]:
        return linear(chunks, decodes, context) * stages

    engines = [
        engine(
            rules(40, 6, ahead=2, blocks=blocks, mixes=at % 2 == 0),
            prices,
            noise=normal(0.2, f"{at}"),
            stages=stages,
        )
        for at in range(replicas)
    ]
    fleet = played(trace(*entries), *engines, balance=balance, reuse=reuse)
    assert [one.index for one in fleet.done] == list(range(len(entries)))
    for one, (due_s, _, output) in zip(fleet.done, entries, strict=True):
        assert one.due_s == due_s
        assert one.due_s < one.first_s <= one.end_s
        assert (one.first_s == one.end_s) == (output == 1)
        assert one.generated == output
    if not any(one.batching.preemptions for one in engines):
        gaps = sum(sum(one.tally.gaps.values()) for one in engines)
        assert gaps == sum(output - 1 for _, _, output in entries)
    for one in engines:
        # Nothing is left anywhere.
        assert one.next_s == math.inf
        assert not one.batching.waiting
        assert not one.batching.prefilling
        assert [group.size for group in one.batching.groups] == [0] * stages
        assert [group.context for group in one.batching.groups] == [0] * stages
        assert [group.blocks() for group in one.batching.groups] == [0] * stages


def test_a_closed_loop_keeps_so_many_under_way() -> None:
    found = played(closed(3, 20), engine(rules()), front_s=0.001).done
    assert [one.due_s for one in found[:3]] == [0, 0, 0]
    for later in found[3:]:
        assert later.due_s in [one.end_s for one in found]
    for now_s in (one.first_s for one in found[:-3]):
        assert sum(one.due_s <= now_s < one.end_s for one in found) <= 3


def test_the_same_seed_gives_the_same_load() -> None:
    def ends(seed: str) -> list[float]:
        one = engine(rules(ahead=2), noise=normal(0.1, seed))
        return [life.end_s for life in played(poisson(9, 300, prompt=20, output=9), one).done]

    assert ends("a") == ends("a")
    assert ends("a") != ends("b")


def test_prefill_elsewhere_hands_its_cache_over() -> None:
    sent: list[tuple[int, int, int]] = []

    def handover(src: int, dst: int, tokens: int) -> float:
        sent.append((src, dst, tokens))
        return 0.5

    prefill, decode = engine(rules(ahead=2), _second), engine(rules(), _second)
    found = played(
        trace((0.0, 40, 3), (0.0, 40, 3)),
        decode,
        prefilling=Pool([prefill], Balance.LEAST),
        handover=handover,
    ).done
    assert sent == [(0, 0, 40)] * 2
    # Both prompts in one step of 1 s; the second cache waits for the first on the link.
    assert [one.first_s for one in found] == [2.5, 3.5]
    assert [one.end_s for one in found] == [4.5, 5.5]


def test_a_prefix_that_is_cached_needs_no_prefill() -> None:
    def tokens(chunks: Chunks, _decodes: int, _context: float) -> tuple[float, ...]:
        return (0.001 + sum(one for one, _ in chunks),)

    for reuse, computed in ((0.0, 10), (0.3, 10), (0.4, 6), (0.9, 2), (1.0, 2)):
        # Whole blocks of four, and never the last token.
        (one,) = played(trace((0.0, 10, 1)), engine(rules(), tokens), reuse=reuse).done
        assert one.end_s == pytest.approx(0.001 + computed)


@given(st.floats(1e-4, 1), st.floats(0, 1e-3), st.floats(0, 50))
def test_steps_before_a_time(first_s: float, growth_s: float, seconds: float) -> None:
    steps = steps_before(first_s, growth_s, seconds)
    slack = 1e-6 * (1 + seconds)
    assert run_seconds(first_s, growth_s, steps) >= seconds - slack
    if steps:
        assert run_seconds(first_s, growth_s, steps - 1) < seconds + slack


def test_a_table_is_exact_on_straight_lines() -> None:
    asked: list[float] = []

    def prices(chunks: Chunks, decodes: int, context: float) -> tuple[float, ...]:
        asked.append(context)
        return linear(chunks, decodes, context)

    table = StepTable(prices)
    for context in (0, 1, 4095, 4096, 5000, 40_000, 3_000_000):
        assert table.seconds((), 7, context) == pytest.approx(linear((), 7, context)[0])
        table.seconds((), 7, context + 0.5)
    assert len(asked) == 2 * 4


def test_a_spread_of_steps_goes_down_with_their_number() -> None:
    noise = normal(0.1, "x")
    for steps in (1, 100):
        draws = [noise(steps) - 1 for _ in range(4000)]
        assert fmean(draws) == pytest.approx(0, abs=0.01)
        assert math.sqrt(fmean(one * one for one in draws)) == pytest.approx(
            0.1 / math.sqrt(steps), rel=0.05
        )
