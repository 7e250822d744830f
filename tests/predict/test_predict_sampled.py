"""Long schedules are priced in blocks: every step counts, and the time stays within 2 %."""

import itertools

import pytest
from predict_cases import engine_on, plan

from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.model.types import Load
from linkbound.predict.forecast import call_cost
from linkbound.predict.schedule import EXACT_STEPS, sampled_schedule, schedule, steps_ahead
from linkbound.predict.stage import stage_costs
from linkbound.serve import VLLM
from linkbound.splits import Split

LOADS = [
    Load(prompt_tokens=prompt, output_tokens=output, concurrency=batch)
    for prompt, output, batch in itertools.product(
        (128, 1024, 8192, 30000), (16, 256), (32, 128, 400)
    )
]


@pytest.mark.parametrize(
    "load",
    LOADS,
    ids=lambda load: "-".join(map(str, (load.prompt_tokens, load.output_tokens, load.concurrency))),
)
def test_every_step_counts(load: Load) -> None:
    whole, found = schedule(load, VLLM), sampled_schedule(load, VLLM)
    assert sum(step.count for step in found) == sum(step.count for step in whole)
    assert found[0] == whole[0]
    assert len(found) <= len(whole)
    if len(whole) <= EXACT_STEPS:
        assert found == whole


@pytest.mark.parametrize("load", LOADS[::3])
def test_the_time_stays(h200_study: Study, load: Load) -> None:
    engine = engine_on(h200_study)
    split = plan(engine, Split(tp=2), Arm.STAGED)
    prices = engine.prices(split)
    exact = sum(
        stage_costs(prices, step, VLLM, engine.paces)[0].seconds * step.count
        for step in schedule(load, VLLM, steps_ahead(split.split, VLLM))
    )
    cost = call_cost(engine, split, load)
    priced = cost.seconds - cost.parts[next(k for k in cost.parts if k.name == "OVERHEAD")][0]
    assert priced == pytest.approx(exact, rel=0.02)
