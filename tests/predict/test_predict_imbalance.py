"""Imbalance against chance itself, and as a term that changes no total but its own."""

import random

import msgspec
import pytest
from predict_cases import PP2, changed, decode, engine_on, plan

from linkbound.evidence.study import Study
from linkbound.evidence.types import Provenance
from linkbound.links import Arm
from linkbound.model.types import Load
from linkbound.predict.cost import Cost
from linkbound.predict.forecast import forecast
from linkbound.predict.imbalance import (
    SKEW,
    expert_imbalance,
    pace_cost,
    token_factor,
    weight_factor,
)
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import TermKind
from linkbound.predict.work import ExpertWork, step_work
from linkbound.splits.types import Split

MIXTURE = "Qwen--Qwen3-30B-A3B"
EP2 = Split(tp=2, ep=2)


def spread(experts: int = 128, top_k: int = 8) -> ExpertWork:
    return ExpertWork(
        layers=1,
        experts=experts,
        top_k=top_k,
        width=768,
        bytes_all=1.0,
        active_parameters=1.0,
        replicas=1,
    )


def drawn(one: ExpertWork, ranks: int, tokens: int, trials: int) -> tuple[float, float]:
    """Mean over trials of the fullest rank's tokens and experts, over the mean rank's."""
    choose = random.Random(tokens * ranks)
    size = one.experts // ranks
    loads = reads = 0.0
    for _ in range(trials):
        picks = [
            pick for _ in range(tokens) for pick in choose.sample(range(one.experts), one.top_k)
        ]
        per_rank = [0] * ranks
        for pick in picks:
            per_rank[pick // size] += 1
        touched = set(picks)
        distinct = [
            sum(rank * size <= pick < (rank + 1) * size for pick in touched)
            for rank in range(ranks)
        ]
        loads += max(per_rank) * ranks / len(picks)
        reads += max(distinct) * ranks / len(touched)
    return loads / trials, reads / trials


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("tokens", "trials"), [(1, 2000), (8, 800), (64, 200), (512, 30)])
def test_chance_agrees(ranks: int, tokens: int, trials: int) -> None:
    one = spread()
    load, read = drawn(one, ranks, tokens, trials)
    assert token_factor(one, ranks, tokens) == pytest.approx(load, rel=0.08)
    assert weight_factor(one, ranks, tokens) == pytest.approx(read, rel=0.08)


def test_factors_stay_inside_what_can_be() -> None:
    for ranks in (2, 8, 64):
        for tokens in (1, 10, 10_000):
            one = spread(experts=64, top_k=1)
            assert 1 <= token_factor(one, ranks, tokens) <= ranks
            assert 1 <= weight_factor(one, ranks, tokens) <= ranks
    # Every expert is read by every rank that holds it: nothing is left to be uneven.
    assert weight_factor(spread(), 8, 10_000) == pytest.approx(1, abs=1e-3)


@pytest.fixture(scope="module")
def mixture(h200_study: Study) -> Engine:
    return engine_on(h200_study, model=MIXTURE)


def imbalance(engine: Engine, split: Split, tokens: int) -> tuple[float, float, float]:
    rank = engine.work.ranks(split)[0]
    found = expert_imbalance(
        rank, step_work(rank, decode(tokens, 100), tokens), engine.pace, split.ep
    )
    return found.low, found.value, found.high


def test_only_experts_that_are_spread_are_uneven(mixture: Engine, h200_study: Study) -> None:
    assert imbalance(mixture, Split(tp=2), 8) == (0, 0, 0)
    assert imbalance(mixture, Split(), 8) == (0, 0, 0)
    dense = engine_on(h200_study)
    assert imbalance(dense, Split(tp=2), 8) == (0, 0, 0)
    low, value, high = imbalance(mixture, EP2, 8)
    assert 0 == low < value < high


def test_one_token_reads_the_fullest_ranks_experts(mixture: Engine) -> None:
    rank = mixture.work.ranks(EP2)[0]
    (one,) = rank.experts
    even = one.layers * one.bytes_all * one.top_k / one.experts / mixture.pace.stream
    _, value, high = imbalance(mixture, EP2, 1)
    # Matrix products hide behind reading at one token; the roofs add softly.
    assert value == pytest.approx((weight_factor(one, 2, 1) - 1) * even, rel=0.02)
    assert high == pytest.approx((weight_factor(one, 2, 1) * SKEW - 1) * even, rel=0.02)


def test_it_is_a_term_with_its_source(mixture: Engine) -> None:
    found = step_time(mixture, plan(mixture, EP2, Arm.P2P), decode(8, 1024))
    (term,) = (one for one in found.terms if one.kind is TermKind.IMBALANCE)
    assert term.provenance is Provenance.PRIOR
    assert "by chance" in term.basis
    assert sum(one.time.value for one in found.terms) == pytest.approx(found.time.value)
    whole = step_time(mixture, plan(mixture, Split(tp=2), Arm.P2P), decode(8, 1024))
    assert all(one.kind is not TermKind.IMBALANCE for one in whole.terms)


def cost(weights: float, launch: float) -> Cost:
    found = Cost()
    found.add(TermKind.WEIGHTS, weights, 0.9 * weights, 1.2 * weights)
    found.add(TermKind.LAUNCH, launch, launch, launch)
    return found


def test_the_slowest_stage_sets_the_pace_and_the_rest_is_named() -> None:
    found = pace_cost([(cost(4.0, 1.0), 3), (cost(8.0, 1.0), 1)])
    assert found.seconds == pytest.approx(9.0)
    parts = found.parts
    assert parts[TermKind.WEIGHTS][0] == pytest.approx(5.0)
    assert parts[TermKind.LAUNCH][0] == pytest.approx(1.0)
    assert parts[TermKind.IMBALANCE] == pytest.approx((3.0, 2.7, 3.6))
    alike = pace_cost([(cost(4.0, 1.0), 4)])
    assert TermKind.IMBALANCE not in alike.parts


def test_uneven_stages_show_in_a_pipelines_call(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    load = Load(prompt_tokens=1024, output_tokens=65, concurrency=32)
    even = forecast(engine, plan(engine, PP2, Arm.P2P), load)
    skewed = msgspec.structs.replace(PP2, stage_layers=(24, 8))
    uneven = forecast(engine, plan(engine, skewed, Arm.P2P), load)
    # The last stage has the head, so that even layers are not even work.
    parts = [one.parts[TermKind.IMBALANCE].value for one in (even, uneven)]
    assert 0 < parts[0] < 0.2 * parts[1]
    for one in (even, uneven):
        total = sum(part.value for part in one.parts.values())
        assert total == pytest.approx(one.latency_s.value)
    assert uneven.latency_s.value > even.latency_s.value


def test_faster_memory_makes_uneven_reading_cheaper(mixture: Engine) -> None:
    constants = mixture.calibration
    before = imbalance(mixture, EP2, 8)[1]
    stream = constants.stream_bytes_per_s.value
    faster = Engine(
        mixture.shape,
        mixture.book,
        mixture.rules,
        changed(constants, stream_bytes_per_s=2 * stream),
    )
    assert imbalance(faster, EP2, 8)[1] == pytest.approx(before / 2, rel=0.05)
