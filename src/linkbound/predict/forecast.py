"""A plan under a load: the engine's own steps, each priced, added up to a call (D5).

Pipelines (vLLM's batch queue): chunks of the prompts follow one another through the stages, so that
the slowest stage sets the pace and the longest chunk fills the others; sequences decode in as many
groups as there were chunks in flight, each group walking all stages while the others do.
"""

from collections.abc import Collection, Iterable, Sequence

from linkbound.errors import UsageError
from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.compute import padded_tokens
from linkbound.predict.cost import Cost
from linkbound.predict.imbalance import pace_cost
from linkbound.predict.pricing import PlanPrices
from linkbound.predict.schedule import Step, sampled_schedule, schedule, steps_ahead
from linkbound.predict.stage import (
    StageCost,
    add_sampling,
    add_sends,
    phase_of,
    rested_in_row,
    stage_costs,
)
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import Estimate, Forecast, Plan, StepTime, TermKind
from linkbound.splits.types import Placement, Split
from linkbound.topology.types import Machine


def forecast(engine: Engine, plan: Plan, load: Load) -> Forecast:
    """Predicted times of one call with the whole load at once. Raises NoForecast."""
    share = replica_load(load, plan.split)
    error = engine.model_error(plan.split, share.prompt_tokens + share.output_tokens)
    slowest = slowest_replica(engine, plan, share)
    prefill = _replica_cost(engine, slowest, _one_token(share))
    total = _replica_cost(engine, slowest, share)
    latency = total.estimate(error)
    tokens = load.concurrency * load.output_tokens
    ahead = steps_ahead(plan.split, engine.rules)
    steps = schedule(share, engine.rules, ahead)
    fullest = _fullest_prefill(steps)
    assert fullest is not None, "a call has a prompt"
    return Forecast(
        plan=plan,
        load=load,
        ttft_s=prefill.estimate(error),
        tpot_s=_per_token(total, prefill, share.output_tokens, error),
        tokens_per_s=Estimate(
            value=tokens / latency.value, low=tokens / latency.high, high=tokens / latency.low
        ),
        latency_s=latency,
        decode=_middle_decode(engine, slowest, steps),
        prefill=step_time(engine, slowest, fullest, _in_row(steps)),
        parts={
            kind: Estimate(value=value, low=min(low, value), high=max(high, value))
            for kind, (value, low, high) in total.parts.items()
        },
        hidden_sends_s=_hidden_sends_s(
            engine, engine.prices(slowest), _call_steps(engine, engine.prices(slowest), share)
        ),
        unseen_gain_error=engine.unseen_gain_error(plan.split),
        record_ids=engine.calibration.record_ids,
        curve_ids=tuple(
            dict.fromkeys(
                record
                for one in engine.replicas(plan)
                for part in (share, _one_token(share))
                for record in curve_ids(engine, one, sampled_schedule(part, engine.rules, ahead))
            )
        ),
    )


def curve_ids(engine: Engine, plan: Plan, steps: Sequence[Step]) -> tuple[str, ...]:
    """Records of every curve that prices a crossing of these steps on one replica."""
    if plan.arm is None:
        return ()
    prices = engine.prices(plan)
    groups = _groups(prices, steps)
    priced = (step if step.chunks else _of_group(step, min(groups, step.decodes)) for step in steps)
    return tuple(
        dict.fromkeys(
            record
            for step in priced
            for record in prices.source(phase_of(step), padded_tokens(step.tokens, engine.rules))[2]
        )
    )


def call_cost(engine: Engine, plan: Plan, load: Load) -> Cost:
    """Seconds of one call on the slowest replica, by kind of term; not to be changed.

    Raises NoForecast.
    """
    return _replica_cost(engine, slowest_replica(engine, plan, load), load)


def slowest_replica(engine: Engine, plan: Plan, load: Load) -> Plan:
    """The replica that takes longest: on GPUs of one model that whose links do."""
    replicas = engine.replicas(plan)
    if len(replicas) == 1:
        return replicas[0]
    if engine.paces.others:
        return max(replicas, key=lambda one: _replica_cost(engine, one, load).seconds)
    return max(replicas, key=lambda one: _link_s(engine, engine.prices(one), load))


def _link_s(engine: Engine, prices: PlanPrices, load: Load) -> float:
    total = 0.0
    for step in _call_steps(engine, prices, load):
        phase, tokens = phase_of(step), padded_tokens(step.tokens, engine.rules)
        for _, inside, stages, _ in prices.alike(phase, tokens):
            total += 0.0 if inside is None else inside.time.value * stages * step.count
        between = None if prices.stages == 1 else prices.between(phase, tokens)
        total += 0.0 if between is None else between.time.value * step.count
    return total


def _replica_cost(engine: Engine, plan: Plan, load: Load) -> Cost:
    prices = engine.prices(plan)
    return engine.kept_call(prices, load, lambda: _call_cost(engine, prices, load))


def _call_cost(engine: Engine, prices: PlanPrices, load: Load) -> Cost:
    total = Cost()
    constant = engine.calibration.call_s.estimate
    total.add(TermKind.OVERHEAD, constant.value, constant.low, constant.high)
    total.add_cost(_steps_cost(engine, prices, _call_steps(engine, prices, load)))
    return total


def _call_steps(engine: Engine, prices: PlanPrices, load: Load) -> tuple[Step, ...]:
    """The steps of a call on one replica, long ones sampled."""
    return sampled_schedule(load, engine.rules, steps_ahead(prices.plan.split, engine.rules))


def steps_cost(engine: Engine, plan: Plan, steps: Sequence[Step]) -> Cost:
    """Seconds of steps that follow one another on the slowest replica, by kind of term.

    Raises NoForecast.
    """
    costs = (_steps_cost(engine, engine.prices(one), steps) for one in engine.replicas(plan))
    return max(costs, key=lambda cost: cost.seconds)


def _steps_cost(engine: Engine, prices: PlanPrices, steps: Sequence[Step]) -> Cost:
    total = Cost()
    groups = _groups(prices, steps)
    fullest, rested = _fullest_prefill(steps), rested_in_row(prices.stages, _in_row(steps))
    for step in steps:
        if step.chunks:
            stages = stage_costs(prices, step, engine.rules, engine.paces, rested)
            # What passes the same stages in a row takes the sum at one, the longest at the others.
            walks = 1 if step is fullest or prices.stages == 1 else 0
            if walks:
                total.add_cost(_walk(engine, prices, step, stages))
            if step.count > walks:
                total.add_cost(_pace(stages), step.count - walks)
        else:
            total.add_cost(_decode(engine, prices, step, groups), step.count)
        add_sampling(total, step, engine.pace, step.count)
    return total


def _groups(prices: PlanPrices, steps: Iterable[Step]) -> int:
    """In how many groups a pipeline's sequences decode: as many as chunks were in flight."""
    return min(prices.stages, _in_row(steps))


def _in_row(steps: Iterable[Step]) -> int:
    """Steps with prompts, which follow one another; of none, 1."""
    return max(1, sum(step.count for step in steps if step.chunks))


def _walk(engine: Engine, prices: PlanPrices, step: Step, stages: tuple[StageCost, ...]) -> Cost:
    """One step through all stages, one after the other."""
    if prices.stages == 1:
        return stages[0].cost
    cost = Cost()
    for one in stages:
        cost.add_cost(one.cost, one.stages)
    add_sends(cost, prices, step, engine.rules)
    return cost


def _pace(stages: tuple[StageCost, ...]) -> Cost:
    """One step on the stage that takes longest: the others work meanwhile."""
    return pace_cost([(one.cost, one.stages) for one in stages])


def _decode(engine: Engine, prices: PlanPrices, step: Step, groups: int) -> Cost:
    """Until every sequence has one more token: the longer of a walk and the slowest stage."""
    walk, pace = _decodes(engine, prices, step, groups)
    return walk if pace is None else max(walk, pace, key=lambda cost: cost.seconds)


def _decodes(
    engine: Engine, prices: PlanPrices, step: Step, groups: int
) -> tuple[Cost, Cost | None]:
    """A group's walk through all stages, and all groups on the slowest stage, of several."""
    groups = min(groups, step.decodes)
    step = _of_group(step, groups)
    stages = stage_costs(prices, step, engine.rules, engine.paces)
    walk = _walk(engine, prices, step, stages)
    if groups == 1:
        return walk, None
    pace = Cost()
    pace.add_cost(_pace(stages), groups)
    return walk, pace


def _hidden_sends_s(engine: Engine, prices: PlanPrices, steps: Sequence[Step]) -> float:
    """Seconds of sends between stages that `_steps_cost` leaves out: stages compute meanwhile."""
    if prices.stages == 1:
        return 0.0
    groups, fullest, total = _groups(prices, steps), _fullest_prefill(steps), 0.0
    for step in steps:
        if step.chunks:
            total += _sends_s(engine, prices, step) * (step.count - (step is fullest))
            continue
        walk, pace = _decodes(engine, prices, step, groups)
        several = min(groups, step.decodes)
        walks = pace is None or walk.seconds >= pace.seconds
        sent = _sends_s(engine, prices, _of_group(step, several))
        total += sent * (several - walks) * step.count
    return total


def _sends_s(engine: Engine, prices: PlanPrices, step: Step) -> float:
    sends = Cost()
    add_sends(sends, prices, step, engine.rules)
    return sends.seconds


def _of_group(step: Step, groups: int) -> Step:
    """The part of a decode step that one of `groups` makes."""
    if groups == 1:
        return step
    return Step(
        chunks=(),
        decodes=-(-step.decodes // groups),
        context_tokens=step.context_tokens / groups,
        sampled=-(-step.sampled // groups),
    )


def _per_token(total: Cost, prefill: Cost, output_tokens: int, error: float) -> Estimate | None:
    if output_tokens < 2:
        return None
    rest, of_prefill = Cost(), prefill.parts
    for kind, parts in total.parts.items():
        first = of_prefill.get(kind, (0.0, 0.0, 0.0))
        left = [one - other for one, other in zip(parts, first, strict=True)]
        rest.add(kind, left[0], min(left), max(left))
    whole = rest.estimate(error)
    count = output_tokens - 1
    return Estimate(value=whole.value / count, low=whole.low / count, high=whole.high / count)


def _middle_decode(engine: Engine, plan: Plan, steps: tuple[Step, ...]) -> StepTime | None:
    decodes = [step for step in steps if not step.chunks]
    if not decodes:
        return None
    return step_time(engine, plan, max(decodes, key=lambda step: step.count))


def _fullest_prefill(steps: Iterable[Step]) -> Step | None:
    prefills = (step for step in steps if step.chunks)
    return max(prefills, key=lambda step: step.tokens, default=None)


def _one_token(load: Load) -> Load:
    return Load(prompt_tokens=load.prompt_tokens, output_tokens=1, concurrency=load.concurrency)


def replica_load(load: Load, split: Split) -> Load:
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
