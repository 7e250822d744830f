"""Steps of the reference runtime, predicted with an engine's constants: the device's part (E3).

The runtime of `profile` has the same products, caches and crossings as an engine, and neither its
scheduler nor its host work: a step is an engine's without host and overhead. Its kernels are
others, which `UnseenErrors.runtime` stands for.
"""

import math

from linkbound.model.types import Load
from linkbound.predict.cost import Cost
from linkbound.predict.forecast import steps_cost
from linkbound.predict.points import Metric, Prediction, shape_key
from linkbound.predict.schedule import Step, sampled_schedule
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate, Plan, TermKind
from linkbound.serve.types import RunSpec

RUNTIME = "linkbound"
"""Stands for the reference runtime where a point names its engine."""
_NOT_HERE = (TermKind.HOST, TermKind.OVERHEAD)


def predict_steps(engine: Engine, plan: Plan, spec: RunSpec) -> Prediction:
    """Prefill and decode step of a batch; `spec` has one output token. Raises NoForecast.

    A pipeline's prompts are predicted only where they go through as one chunk: how chunks overlap
    is each runtime's own.
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
    estimates = {
        Metric.DECODE_STEP: _device(steps_cost(engine, plan, (decode,)), error),
    }
    prompts = sampled_schedule(load, engine.rules)
    if plan.split.pp == 1 or len(prompts) == 1:
        estimates[Metric.PREFILL_STEP] = _device(steps_cost(engine, plan, prompts), error)
    return Prediction(spec=spec, shape=shape_key(engine.shape), estimates=estimates, unseen=unseen)


def _device(cost: Cost, error: float) -> Estimate:
    device = Cost()
    for kind, (value, low, high) in cost.parts.items():
        if kind not in _NOT_HERE:
            device.add(kind, value, low, high)
    return device.estimate(error)
