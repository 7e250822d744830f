"""Steps of the reference runtime, predicted with an engine's constants: the device's part (E3).

The runtime of `profile` has the same products, caches and crossings as an engine, and neither its
scheduler nor its host work: a step is an engine's without host and overhead. Its kernels are
others, which `UnseenErrors.runtime` stands for. Where a split's shard was timed alone, that time
is the step's compute; only what crosses and waits is predicted then.
"""

import math

from linkbound.model.derive import shape_key
from linkbound.model.types import Load
from linkbound.predict.cost import Cost
from linkbound.predict.forecast import steps_cost
from linkbound.predict.points import Metric, Prediction
from linkbound.predict.schedule import Step, sampled_schedule
from linkbound.predict.shards import ShardPoint, ShardTable, ShardTime
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan, TermKind
from linkbound.serve.types import RunSpec
from linkbound.splits.types import Phase

RUNTIME = "linkbound"
"""Stands for the reference runtime where a point names its engine."""
_NOT_HERE = (TermKind.HOST, TermKind.OVERHEAD)
_BETWEEN_RANKS = (TermKind.CROSSINGS, TermKind.WAITING, TermKind.IMBALANCE)
"""What a shard alone has not."""
NO_SHARDS = ShardTable()


def predict_steps(
    engine: Engine, plan: Plan, spec: RunSpec, shards: ShardTable = NO_SHARDS
) -> Prediction:
    """Prefill and decode step of a batch; `spec` has one output token. Raises NoForecast.

    A pipeline's prompts are predicted only where they go through as one chunk: how chunks overlap
    is each runtime's own. Intervals are as wide with a shard as without, until scores say less.
    """
    unseen = (*engine.unseen(plan.split, spec.prompt_tokens), "runtime")
    error = math.hypot(
        engine.model_error(plan.split, spec.prompt_tokens), engine.calibration.unseen.runtime
    )
    load = Load(prompt_tokens=spec.prompt_tokens, output_tokens=1, concurrency=spec.batch)
    decode = Step(
        chunks=(),
        decodes=spec.batch,
        context_tokens=spec.batch * spec.prompt_tokens,
        sampled=spec.batch,
    )
    costs = {Metric.DECODE_STEP: steps_cost(engine, plan, (decode,))}
    prompts = sampled_schedule(load, engine.rules)
    if plan.split.pp == 1 or len(prompts) == 1:
        costs[Metric.PREFILL_STEP] = steps_cost(engine, plan, prompts)
    alone = {
        metric: found
        for metric in costs
        for found in (shards.find(plan.split, _shard_point(metric, spec)),)
        if found is not None
    }
    return Prediction(
        spec=spec,
        shape=shape_key(engine.shape),
        estimates={
            metric: _device(cost, alone.get(metric)).estimate(error)
            for metric, cost in costs.items()
        },
        unseen=unseen,
        shards={metric: found.record_ids for metric, found in alone.items()},
    )


def _shard_point(metric: Metric, spec: RunSpec) -> ShardPoint:
    decodes = metric is Metric.DECODE_STEP
    return ShardPoint(
        phase=Phase.DECODE if decodes else Phase.PREFILL,
        batch=spec.batch,
        tokens=1 if decodes else spec.prompt_tokens,
        context=spec.prompt_tokens if decodes else 0,
    )


def _device(cost: Cost, shard: ShardTime | None) -> Cost:
    """What runs on the device: of a step whose shard was timed, that and what crosses."""
    device = Cost()
    for kind, (value, low, high) in cost.parts.items():
        if kind not in _NOT_HERE and (shard is None or kind in _BETWEEN_RANKS):
            device.add(kind, value, low, high)
    if shard is not None:
        # As one part: which of its terms took how long was not seen.
        device.add(TermKind.MATRIX, shard.time.value, shard.time.low, shard.time.high)
    return device
