"""The search with bounds finds what a search of everything finds."""

import random

import msgspec
import pytest
from search_cases import (
    FAST,
    SLOW,
    Case,
    engine,
    everything,
    islands,
    random_case,
    random_links,
    small_model,
    tree_of,
)

from linkbound.model.types import Load
from linkbound.search import Objective, Search
from linkbound.search.front import Axes, axes
from linkbound.serve.load_types import Slo

CASES = 200
BATCHES = 20


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_optimum_of_random_machines_models_and_loads(batch: int) -> None:
    """Up to 16 GPUs in islands and sockets, unlike models, experts; links in no order of speed."""
    for seed in range(batch, CASES, BATCHES):
        case = random_case(seed)
        found = Search(case.engine, case.tree, case.load, case.slo)
        assert found.placer.exhaustive
        front = {axes(option.scores) for option in found.front}
        listed = [(unit, axes(one)) for unit, one in everything(random_case(seed))]
        reached = [one for _, one in listed]
        if not reached:
            assert front == set(), seed
            continue
        for at, objective in enumerate(Objective):
            best = found.best(objective)
            assert best is not None
            least = min(one[at] for one in reached)
            assert axes(best.scores)[at] == pytest.approx(least, rel=1e-9), (seed, objective)
            # Of the other splits, beaten ones too, the best is next.
            others = [one[at] for unit, one in listed if unit != best.candidate.unit]
            following = found.next_best(best, objective)
            assert (following is None) == (not others), (seed, objective)
            if following is not None:
                mine = axes(following.scores)[at]
                assert mine == pytest.approx(min(others), rel=1e-9), (seed, objective)
        for one in reached:
            # Whatever can be reached, something in the front is as good in everything.
            assert any(_as_good(known, one) for known in front), seed


def _as_good(known: Axes, one: Axes) -> bool:
    pairs = zip(known, one, strict=True)
    return all(mine <= theirs + 1e-9 * abs(theirs) for mine, theirs in pairs)


def case_of(*sizes: int, seed: int = 1, **machine: object) -> Case:
    choose = random.Random(seed)
    host = islands(*sizes, **machine)  # type: ignore[arg-type]
    return Case(
        engine(host, random_links(choose), small_model()),
        tree_of(host),
        Load(prompt_tokens=256, output_tokens=32, concurrency=4),
        Slo(),
    )


def test_two_searches_say_the_same() -> None:
    one, two = (Search(*case_of(2, 4)) for _ in range(2))
    assert [(a.candidate, a.scores) for a in one.front] == [
        (b.candidate, b.scores) for b in two.front
    ]


def test_the_order_of_the_gpus_does_not_matter() -> None:
    case = case_of(2, 2, models=(FAST, SLOW))
    turned = msgspec.structs.replace(
        case.engine.book.machine, gpus=case.engine.book.machine.gpus[::-1]
    )
    other = Case(
        engine(turned, random_links(random.Random(1)), small_model()),
        tree_of(turned),
        case.load,
        case.slo,
    )
    scores = [
        sorted(figure for option in Search(*one).front for figure in axes(option.scores))
        for one in (case, other)
    ]
    assert scores[0] == pytest.approx(scores[1])


def test_equal_gpus_more_of_them_are_never_worse() -> None:
    few, many = Search(*case_of(2, 2)), Search(*case_of(2, 4))
    for objective in Objective:
        at = list(Objective).index(objective)
        one, two = few.best(objective), many.best(objective)
        assert one is not None
        assert two is not None
        assert axes(two.scores)[at] <= axes(one.scores)[at]
