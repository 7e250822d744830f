"""A plan under a load: the engine's own steps, each priced, added up to a call (D5).

Pipelines (vLLM's batch queue): chunks of the prompts follow one another through the stages, so that
the slowest stage sets the pace after the first; sequences decode in as many groups as there were
chunks in flight, each group walking all stages while the others do.
"""

from collections.abc import Collection

from linkbound.errors import UsageError
from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.schedule import Step, schedule
from linkbound.predict.steptime import (
    Cost,
    Engine,
    sampling_cost,
    send_cost,
    stage_cost,
    step_time,
)
from linkbound.predict.types import Estimate, Forecast, Plan, StepTime, TermKind
from linkbound.splits.types import Placement, Split
from linkbound.topology.types import Machine


def forecast(engine: Engine, plan: Plan, load: Load) -> Forecast:
    """Predicted times of one call with the whole load at once. Raises NoForecast."""
    share = _replica_load(load, plan.split)
    error = engine.model_error(plan.split)
    prefill = call_cost(engine, plan, _one_token(share))
    total = call_cost(engine, plan, share)
    latency = total.estimate(error)
    tokens = load.concurrency * load.output_tokens
    steps = schedule(share, engine.rules)
    return Forecast(
        plan=plan,
        load=load,
        ttft_s=prefill.estimate(error),
        tpot_s=_per_token(total, prefill, share.output_tokens, error),
        tokens_per_s=Estimate(
            value=tokens / latency.value, low=tokens / latency.high, high=tokens / latency.low
        ),
        latency_s=latency,
        decode=_middle_decode(engine, plan, steps),
        prefill=step_time(engine, plan, steps[0]),
        parts={
            kind: Estimate(value=value, low=min(low, value), high=max(high, value))
            for kind, (value, low, high) in total.parts.items()
        },
        unseen_gain_error=engine.unseen_gain_error(plan.split),
        record_ids=engine.calibration.record_ids,
    )


def call_cost(engine: Engine, plan: Plan, load: Load) -> Cost:
    """Seconds of one call on one replica, by kind of term."""
    total = Cost()
    constant = engine.calibration.call_s.estimate
    total.add(TermKind.OVERHEAD, constant.value, constant.low, constant.high)
    steps = schedule(load, engine.rules)
    if plan.split.pp == 1:
        for step in steps:
            cost, _ = stage_cost(engine, plan, 0, step)
            total.add_cost(cost, step.count)
            total.add_cost(sampling_cost(engine, step), step.count)
        return total
    groups = max(1, min(plan.split.pp, sum(bool(step.chunks) for step in steps)))
    for index, step in enumerate(steps):
        if not step.chunks:
            total.add_cost(_pipelined_decode(engine, plan, step, groups), step.count)
        elif index == 0:
            total.add_cost(_walk(engine, plan, step))
        else:
            total.add_cost(_slowest_stage(engine, plan, step))
        total.add_cost(sampling_cost(engine, step), step.count)
    return total


def _walk(engine: Engine, plan: Plan, step: Step) -> Cost:
    """One step through all stages, one after the other."""
    cost = send_cost(engine, plan, step)
    for stage in range(plan.split.pp):
        cost.add_cost(stage_cost(engine, plan, stage, step)[0])
    return cost


def _slowest_stage(engine: Engine, plan: Plan, step: Step) -> Cost:
    stages = (stage_cost(engine, plan, stage, step)[0] for stage in range(plan.split.pp))
    return max(stages, key=lambda cost: cost.seconds)


def _pipelined_decode(engine: Engine, plan: Plan, step: Step, groups: int) -> Cost:
    """Time until every sequence has one more token: the longer of a walk and the slowest stage."""
    groups = min(groups, step.decodes)
    part = Step(
        chunks=(),
        decodes=-(-step.decodes // groups),
        context_tokens=step.context_tokens / groups,
        sampled=-(-step.sampled // groups),
    )
    walk = _walk(engine, plan, part)
    pace = Cost()
    pace.add_cost(_slowest_stage(engine, plan, part), groups)
    return max(walk, pace, key=lambda cost: cost.seconds)


def _per_token(total: Cost, prefill: Cost, output_tokens: int, error: float) -> Estimate | None:
    if output_tokens < 2:
        return None
    rest = Cost()
    for kind, (value, low, high) in total.parts.items():
        first = prefill.parts.get(kind, (0.0, 0.0, 0.0))
        parts = [one - other for one, other in zip((value, low, high), first, strict=True)]
        rest.add(kind, parts[0], min(parts), max(parts))
    whole = rest.estimate(error)
    count = output_tokens - 1
    return Estimate(value=whole.value / count, low=whole.low / count, high=whole.high / count)


def _middle_decode(engine: Engine, plan: Plan, steps: tuple[Step, ...]) -> StepTime | None:
    decodes = [step for step in steps if not step.chunks]
    if not decodes:
        return None
    return step_time(engine, plan, max(decodes, key=lambda step: step.count))


def _one_token(load: Load) -> Load:
    return Load(prompt_tokens=load.prompt_tokens, output_tokens=1, concurrency=load.concurrency)


def _replica_load(load: Load, split: Split) -> Load:
    """The fullest replica's share: sequences are dealt out evenly."""
    return Load(
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        concurrency=-(-load.concurrency // split.replicas),
    )


def plan_on(
    machine: Machine, split: Split, arm: Arm | None, excluded: Collection[str] = ()
) -> Plan:
    """The split on the machine's GPUs in their order, none with an excluded label.

    Raises UsageError where too few are left.
    """
    free = [gpu.key for gpu in machine.gpus if gpu.label not in excluded]
    if split.gpus > len(free):
        raise UsageError(
            f"{split.name} needs {split.gpus} GPUs, this machine has {len(free)} to use.",
            why="A rank needs a GPU of its own.",
            hint="Name a smaller split, or another machine.",
        )
    keys = tuple(free[: split.gpus])
    crossing = split.tp * split.pp > 1 or split.ep > 1
    return Plan(split=split, placement=Placement(gpus=keys), arm=arm if crossing else None)
