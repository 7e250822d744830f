"""The parts of a search: waves, demands, layers by speed, limits, words, large machines."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from search_cases import (
    FAST,
    SLOW,
    Links,
    Tier,
    engine,
    islands,
    small_model,
    tree_of,
)

from linkbound.links import Arm
from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.predict.book import CurveBook
from linkbound.predict.forecast import forecast
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate
from linkbound.search import Found, Objective, Search, find
from linkbound.search.balance import divided
from linkbound.search.candidates import copy_counts
from linkbound.search.scoring import keeps, latency_s, score, ttft_s, waves, within
from linkbound.search.units import unit_splits
from linkbound.serve.load_types import Slo
from linkbound.splits.types import Split
from linkbound.topology.types import Machine, PathKind

LOAD = Load(prompt_tokens=512, output_tokens=64, concurrency=8)
NV, PHB, SYS = PathKind.NVLINK, PathKind.PHB, PathKind.SYS


FAST_LINK, SLOW_LINK = Tier(8e-6, 350e9), Tier(30e-6, 12e9)


def links(inside: Tier = FAST_LINK, beyond: Tier = SLOW_LINK, staged: float = 3.0) -> Links:
    """NVLink inside islands, all else alike; a staged call is so many times slower."""
    tiers = {NV: inside, PHB: beyond, SYS: beyond}
    return {
        (kind, arm): Tier(
            tier.latency_s * (staged if arm is Arm.STAGED else 1),
            tier.bytes_per_s / (staged if arm is Arm.STAGED else 1),
        )
        for kind, tier in tiers.items()
        for arm in Arm
    }


def found(
    machine: Machine,
    objective: Objective,
    *,
    model: str = "llama-3.1-8b",
    load: Load = LOAD,
    slo: Slo | None = None,
    of: Links | None = None,
) -> Found:
    return find(
        engine(machine, of or links(), read_model(model)), tree_of(machine), load, objective, slo
    )


def call_s(sequences: int, output: int) -> float:
    """A prefill of 1 s a sequence, then 0.1 s a token."""
    return sequences + 0.1 * (output - 1)


def load(concurrency: int, output: int = 11) -> Load:
    return Load(prompt_tokens=1, output_tokens=output, concurrency=concurrency)


@pytest.mark.parametrize(
    ("concurrency", "replicas", "limit", "expected"),
    [
        (8, 2, 4, (1, 0)),
        (9, 2, 4, (1, 1)),
        (3, 2, 4, (0, 2)),
        (1, 8, 1, (1, 0)),
        (16, 1, 4, (4, 0)),
    ],
)
def test_waves(concurrency: int, replicas: int, limit: int, expected: tuple[int, int]) -> None:
    assert waves(load(concurrency), replicas, limit) == expected


def test_the_last_sequence_waits_for_full_waves() -> None:
    # Nine over two replicas of four: one full call of four, then one of one.
    assert latency_s(load(9), 2, 4, call_s) == pytest.approx((4 + 1) + (1 + 1))
    assert ttft_s(load(9), 2, 4, call_s) == pytest.approx(5 + 1)
    assert latency_s(load(8), 2, 4, call_s) == pytest.approx(5)
    assert ttft_s(load(8), 2, 4, call_s) == pytest.approx(4)
    assert latency_s(load(2), 2, 4, call_s) == pytest.approx(2)


def test_throughput_is_of_full_replicas_whatever_the_load() -> None:
    found = score(load(1), None, 2, 4, 100, call_s)
    assert found.latency_s == pytest.approx(2)
    assert found.tokens_per_s == pytest.approx(2 * 4 * 11 / 5)
    assert (found.held, found.goodput_per_s) == (100, 0)


@pytest.mark.parametrize(
    ("slo", "kept"),
    [
        (Slo(), True),
        (Slo(ttft_s=4), True),
        (Slo(ttft_s=3.9), False),
        (Slo(tpot_s=0.1001), True),
        (Slo(tpot_s=0.099), False),
        (Slo(e2e_s=5), True),
        (Slo(e2e_s=4.9), False),
        (Slo(ttft_s=4, tpot_s=0.09), False),
    ],
)
def test_demands_on_a_full_replica(slo: Slo, kept: bool) -> None:
    assert keeps(load(1), slo, 4, call_s) is kept
    goodput = score(load(1), slo, 2, 4, 100, call_s).goodput_per_s
    assert goodput == (pytest.approx(2 * 4 / 5) if kept else 0)


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "expected"),
    [
        (2.1, None, (6.0, 5.0, 7.0)),
        (2.0, None, (6.0, 0.0, 7.0)),
        (1.9, None, (6.0, 0.0, 7.0)),
        (1.8, None, (0.0, 0.0, 7.0)),
        (1.6, None, (0.0, 0.0, 0.0)),
        (2.1, 0.02, (6.0, 5.0, 7.0)),
        (2.1, 0.013, (6.0, 0.0, 7.0)),
        (1.8, 0.01, (0.0, 0.0, 0.0)),
        (None, None, (6.0, 5.0, 7.0)),
    ],
)
def test_goodput_ends_where_a_demand_does(
    ttft_s: float | None, tpot_s: float | None, expected: tuple[float, float, float]
) -> None:
    """1.9 s (1.7-2.07) to the first token, 13 ms (11-15) a token, 6 requests a second (5-7)."""
    first, token = (
        Estimate(value=1.9, low=1.7, high=2.07),
        Estimate(value=0.013, low=0.011, high=0.015),
    )
    rate = Estimate(value=6, low=5, high=7)
    found = within(((first, ttft_s), (token, tpot_s), (None, 1e-9)), rate)
    assert (found.value, found.low, found.high) == expected


def test_the_goodput_of_a_choice_is_of_its_own_columns() -> None:
    slo = Slo(ttft_s=0.5, tpot_s=9e-3)
    for one in found(islands(4), Objective.GOODPUT, slo=slo).front:
        assert one.goodput_per_s is not None
        assert one.full_tpot_s is not None
        kept = [
            one.full_ttft_s.value <= 0.5 and one.full_tpot_s.value <= 9e-3,
            one.full_ttft_s.high <= 0.5 and one.full_tpot_s.high <= 9e-3,
            one.full_ttft_s.low <= 0.5 and one.full_tpot_s.low <= 9e-3,
        ]
        goodput, tokens = one.goodput_per_s, one.tokens_per_s
        ends = (
            (goodput.value, tokens.value),
            (goodput.low, tokens.low),
            (goodput.high, tokens.high),
        )
        for keeps_all, (good, full) in zip(kept, ends, strict=True):
            assert good == (pytest.approx(full / LOAD.output_tokens) if keeps_all else 0)


def test_a_single_token_has_no_time_between_tokens() -> None:
    assert keeps(load(1, output=1), Slo(tpot_s=1e-9), 4, call_s)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(8, 100))
def test_layers_are_divided_and_none_is_lost(weights: list[float], layers: int) -> None:
    found = divided(layers, weights)
    assert sum(found) == layers
    assert min(found) >= 1
    for one, two in zip(weights, found, strict=True):
        exact = 1 + (layers - len(weights)) * one / sum(weights)
        assert abs(two - exact) < 1


def test_layers_by_speed() -> None:
    assert divided(32, (3.0, 1.0)) == (24, 8)
    assert divided(32, (1.0, 1.0)) == (16, 16)
    with pytest.raises(ValueError, match="2 layers for 3 stages"):
        divided(2, (1.0, 1.0, 1.0))


def test_units_are_no_copies_of_smaller_ones() -> None:
    dense = {split.name for split in unit_splits(small_model(), 4)}
    assert dense == {"one GPU", "tp2", "tp4", "pp2", "pp3", "pp4", "tp2 pp2"}
    mixture = {split.name for split in unit_splits(small_model(experts=4), 4)}
    over_copies = {"ep2 x2", "ep3 x3", "ep4 x4", "tp2 ep4 x2", "pp2 ep2 x2"}
    # Whole experts on a rank add up fewer results of a token than parts of all of them do.
    assert mixture - dense == {*over_copies, "tp2 ep2", "tp4 ep4", "tp2 pp2 ep2"}


def test_few_units_leave_out_what_rarely_differs() -> None:
    whole = {split.pp for split in unit_splits(read_model("llama-3.1-70b"), 1024) if split.tp == 1}
    few = {
        split.pp
        for split in unit_splits(read_model("llama-3.1-70b"), 1024, few=True)
        if split.tp == 1
    }
    assert whole == set(range(1, 81))
    longest = [-(-80 // stages) for stages in sorted(few)]
    assert len(set(longest)) == len(longest)
    assert {-(-80 // stages) for stages in whole} == set(longest)


def test_copies_of_a_large_machine_are_those_that_change_a_share() -> None:
    counts = copy_counts(load(8), Split(tp=8), 1024)
    # Shares of 8, 4, 3, 2 and 1, and as many copies as there is room for.
    assert list(counts) == [1, 2, 3, 4, 8, 128]
    assert list(copy_counts(load(8), Split(tp=2), 8)) == [1, 2, 3, 4]


def test_the_chattiest_group_stays_in_an_island() -> None:
    best = found(islands(2, 4), Objective.LATENCY, load=load(1, output=64)).best
    assert best is not None
    assert best.plan.split == Split(tp=4)
    assert set(best.plan.placement.gpus) == {"k0", "k1", "k2", "k3"}
    assert best.plan.arm in (Arm.P2P, Arm.NCCL)
    assert set(best.plan.placement.numa_nodes.values()) == {0}


def test_islands_of_two_are_found_wherever_they_are() -> None:
    """GPUs 0 and 2 share a bridge, and 1 and 3: tensor groups are those, whatever their numbers."""
    machine = islands(2, 2)
    swapped = {"k1": "k2", "k2": "k1"}

    def name(key: str) -> str:
        return swapped.get(key, key)

    machine = replace(
        machine,
        pairs=tuple(
            replace(path, pair=replace(path.pair, src=name(path.pair.src), dst=name(path.pair.dst)))
            for path in machine.pairs
        ),
    )
    search = found(machine, Objective.LATENCY, load=load(2, output=64))
    assert search.best is not None
    assert search.best.plan.split == Split(tp=2, replicas=2)
    assert search.best.plan.placement.gpus == ("k0", "k2", "k1", "k3")


def test_where_staging_is_faster_it_is_taken() -> None:
    best = found(islands(2), Objective.LATENCY, of=links(staged=0.2)).best
    assert best is not None
    assert best.plan.arm is Arm.STAGED


def test_replicas_have_the_throughput_where_links_are_slow() -> None:
    slow = links(inside=Tier(100e-6, 3e9))
    best = found(islands(4), Objective.THROUGHPUT, of=slow).best
    assert best is not None
    assert best.plan.split == Split(replicas=4)
    assert best.plan.arm is None


def test_the_lowest_latency_takes_no_gpu_that_has_no_part_in_it() -> None:
    slow = links(inside=Tier(1e-3, 1e9), beyond=Tier(1e-3, 1e9))
    search = found(islands(4), Objective.LATENCY, load=load(1), of=slow)
    assert search.best is not None
    assert search.best.plan.split == Split()
    # In the list four of them stand: they give more of the rest and take nothing.
    assert search.front[0].plan.split == Split(replicas=4)


def test_capacity_counts_sequences_in_memory() -> None:
    search = found(islands(4, memory_gib=24), Objective.CAPACITY)
    assert search.best is not None
    assert search.best.held == max(one.held or 0 for one in search.front)
    assert "holds the most sequences" in search.reason


def test_what_only_a_split_holds() -> None:
    search = found(islands(4, memory_gib=80), Objective.LATENCY, model="llama-3.1-70b")
    assert search.best is not None
    assert all(one.plan.split.tp * one.plan.split.pp >= 2 for one in search.front)


def test_nothing_fits() -> None:
    search = found(islands(2, memory_gib=16), Objective.LATENCY, model="llama-3.1-70b")
    assert (search.best, search.front, search.candidates) == (None, (), 0)
    assert search.reason.startswith(
        "No split of these GPUs holds one sequence of the load. pp2: needs "
    )
    long = replace(LOAD, prompt_tokens=131_072)
    search = found(islands(2), Objective.LATENCY, load=long)
    assert search.best is None
    assert search.reason.endswith(
        " pp2: 131,136 tokens a sequence are asked for, the model takes 131,072."
    )


def test_goodput_takes_the_largest_limit_that_keeps_the_demand() -> None:
    slo = Slo(tpot_s=9e-3)
    search = found(islands(4), Objective.GOODPUT, slo=slo)
    best = search.best
    assert best is not None
    assert best.goodput_per_s is not None
    assert best.goodput_per_s.value > 0
    strict = found(islands(4), Objective.GOODPUT, slo=Slo(tpot_s=1e-6))
    assert strict.best is not None
    assert strict.best.goodput_per_s is not None
    assert strict.best.goodput_per_s.value == 0
    assert strict.reason.startswith("No plan is predicted to keep the demands")


def test_unlike_gpus_get_layers_by_their_speed() -> None:
    """Two cards that hold the model only together: more layers for the faster one."""
    machine = islands(2, memory_gib=14, models=(FAST, SLOW))
    search = found(machine, Objective.LATENCY, of=links(inside=Tier(1e-3, 1e9)))
    assert search.best is not None
    split = search.best.plan.split
    assert split.pp == 2
    assert split.stage_layers is not None
    layers = dict(zip(search.best.plan.placement.gpus, split.stage_layers, strict=True))
    assert layers["k0"] > layers["k1"]


def test_choices_are_the_forecasts_of_their_plans() -> None:
    machine = islands(2, 2)
    priced = engine(machine, links(), read_model("llama-3.1-8b"))
    search = find(priced, tree_of(machine), LOAD, Objective.LATENCY)
    for one in search.front:
        whole = forecast(priced, one.plan, LOAD)
        if one.waves == 1:
            assert one.latency_s.value == pytest.approx(whole.latency_s.value)
            assert one.ttft_s.value == pytest.approx(whole.ttft_s.value)
            assert one.latency_s.low == pytest.approx(whole.latency_s.low)
        assert one.latency_s.low <= one.latency_s.value <= one.latency_s.high


def test_the_reason_names_the_next_split_and_what_costs_it() -> None:
    search = found(islands(2, 4), Objective.LATENCY, load=load(1, output=64))
    assert search.reason.startswith("tp4, p2p has the lowest latency, ~")
    assert " is next with ~" in search.reason
    assert search.reason.endswith(".")
    assert search.reason.count(". ") == 0


def test_a_large_machine_is_filled_from_the_inside_out() -> None:
    machine = islands(4, 8)
    search = Search(engine(machine, links(), read_model("llama-3.1-8b")), tree_of(machine), LOAD)
    assert not search.placer.exhaustive
    best = search.best(Objective.LATENCY)
    assert best is not None
    labels = [gpu for layout in best.place() for gpu in layout.gpus]
    for at in range(0, len(labels), best.candidate.unit.tp):
        group = labels[at : at + best.candidate.unit.tp]
        assert len({gpu // 8 for gpu in group}) == math.ceil(len(group) / 8)


def test_a_plan_without_a_price_is_named() -> None:
    machine = islands(2)
    priced = engine(machine, links(), read_model("llama-3.1-8b"))
    blind = Engine(
        priced.shape,
        CurveBook(machine, (), direct_limit_bytes=0),
        priced.rules,
        priced.calibration,
    )
    search = find(blind, tree_of(machine), LOAD, Objective.LATENCY)
    assert search.best is not None
    assert search.best.plan.arm is None
    assert any(
        one.startswith("tp2, p2p: No time is known for all_reduce") for one in search.unpriced
    )
    only = islands(2, memory_gib=12)
    blind = Engine(
        priced.shape, CurveBook(only, (), direct_limit_bytes=0), priced.rules, priced.calibration
    )
    nothing = find(blind, tree_of(only), LOAD, Objective.LATENCY)
    assert nothing.best is None
    assert nothing.reason.startswith("No plan that fits has a price: ")
