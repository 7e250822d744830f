"""A plan's engines, with step times that the closed form prices, under one load."""

from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

import msgspec

from linkbound.errors import UsageError
from linkbound.predict.compute import padded_tokens
from linkbound.predict.cost import Cost
from linkbound.predict.price import NoCurve, price
from linkbound.predict.pricing import NoForecast
from linkbound.predict.schedule import Chunk, Step
from linkbound.predict.simulate.batching import Cache
from linkbound.predict.simulate.engine import Engine as Simulated
from linkbound.predict.simulate.fleet import AnyEngine, Fleet, Handover, Pool
from linkbound.predict.simulate.noise import normal
from linkbound.predict.simulate.pipeline import Pipeline
from linkbound.predict.simulate.sequence import Sequence
from linkbound.predict.simulate.steptable import Chunks, StagePrices, StepTable
from linkbound.predict.simulate.types import Scenario
from linkbound.predict.stage import add_sampling, phase_of, stage_costs
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate, Plan, TermKind
from linkbound.serve.arrivals import lengths_of
from linkbound.serve.load_types import Arrival, Cell
from linkbound.splits.kv_transfer import kv_transfer
from linkbound.splits.types import Phase

Pick = Callable[[Estimate], float]
"""Which end of an interval a play takes: its value, its low or its high end."""


def likely(one: Estimate) -> float:
    return one.value


def fastest(one: Estimate) -> float:
    return one.low


def slowest(one: Estimate) -> float:
    return one.high


def off_by(factor: float) -> Pick:
    """Every step takes `factor` of what is likely."""
    return lambda one: one.value * factor


class StepTimes(NamedTuple):
    """The times of one replica's steps, and of launching them (`simulate.engine.Engine`)."""

    table: StepTable
    launches: StepTable | None
    """None for a pipeline, whose stages are priced as if each step waited for its launch."""
    rested: StepTable | None
    """Of a pipeline: with stages that rest. None for a single stage, which waits for no other."""


class Tables:
    """The step tables of a scenario's replicas, kept for every draw."""

    def __init__(self, engine: Engine, scenario: Scenario, pick: Pick) -> None:
        """Raises UsageError for a plan whose replicas wait for each other."""
        self.scenario = scenario
        self._pick = pick
        self.front_s = pick(engine.calibration.call_s.estimate)
        self.serving = self._tables(engine, scenario.plan)
        self.prefilling = [] if scenario.prefill is None else self._tables(engine, scenario.prefill)
        self.handover = None if scenario.prefill is None else _handover(engine, scenario, pick)

    def _tables(self, engine: Engine, plan: Plan) -> list[StepTimes]:
        if plan.split.ep > plan.split.tp:
            raise UsageError(
                f"{plan.name} shares its experts over replicas.",
                why="Their steps wait for each other, which is not simulated.",
                hint="Take a split whose experts stay inside a replica.",
            )
        if plan.split.pp > 1 and not self.scenario.rules.mixes:
            raise UsageError(
                f"{plan.name} under an engine whose prompts go alone is not simulated.",
                why="How its stages take turns is not known here.",
                hint="Take --engine vllm, or a split without pp.",
            )
        tables: dict[int, StepTimes] = {}
        found = []
        for one in engine.replicas(plan):
            prices = engine.prices(one)
            if id(prices) not in tables:
                tables[id(prices)] = _step_times(engine, one, self.scenario, self._pick)
            found.append(tables[id(prices)])
        # Replicas over which nothing crosses are alike: `replicas` gives one for all.
        return found * (plan.split.replicas // len(found))


def play(tables: Tables, seed: int) -> tuple[Fleet, list[Sequence]]:
    """One draw of the load, played to its end. Raises UsageError for what fits nowhere."""
    scenario = tables.scenario
    serving = _pool(scenario, scenario.plan, scenario.cache, tables.serving, f"serve {seed}")
    prefilling = None
    if scenario.prefill is not None and scenario.prefill_cache is not None:
        plan, cache = scenario.prefill, scenario.prefill_cache
        prefilling = _pool(scenario, plan, cache, tables.prefilling, f"prefill {seed}")
    fleet = Fleet(
        msgspec.structs.replace(scenario.cell, seed=seed),
        serving,
        prefilling=prefilling,
        handover=tables.handover,
        front_s=tables.front_s,
        reuse=scenario.reuse,
        block_tokens=scenario.cache.block_tokens,
    )
    return fleet, fleet.play()


def _step_times(engine: Engine, plan: Plan, scenario: Scenario, pick: Pick) -> StepTimes:
    table = StepTable(stage_prices(engine, plan, scenario, pick))
    if plan.split.pp > 1:
        return StepTimes(table, None, StepTable(stage_prices(engine, plan, scenario, pick, 1.0)))
    return StepTimes(table, StepTable(launch_prices(engine, plan, scenario, pick)), None)


def stage_prices(
    engine: Engine, plan: Plan, scenario: Scenario, pick: Pick, rested: float = 0.0
) -> StagePrices:
    """Seconds of a step on every stage of one replica, as the closed form prices them.

    `rested`: how far stages rest (`stage.rested_in_row`). Raises NoForecast where a crossing has no
    curve.
    """
    prices, rules = engine.prices(plan), scenario.rules
    error = engine.model_error(plan.split, longest(scenario.cell))

    def seconds(chunks: Chunks, decodes: int, context: float) -> tuple[float, ...]:
        step = _step(chunks, decodes, context)
        costs = []
        for one in stage_costs(prices, step, rules, engine.paces, rested):
            for _ in range(one.stages):
                cost = Cost()
                cost.add_cost(one.cost)
                costs.append(cost)
        # The engine's own time for each sequence comes when the last stage has its tokens.
        add_sampling(costs[-1], step, engine.pace)
        found = [pick(cost.estimate(error)) for cost in costs]
        if len(found) > 1:
            between = prices.between(phase_of(step), padded_tokens(step.tokens, rules))
            send_s = 0.0 if between is None else pick(between.time) / (len(found) - 1)
            found = [*(one + send_s for one in found[:-1]), found[-1]]
        return tuple(found)

    return seconds


def launch_prices(engine: Engine, plan: Plan, scenario: Scenario, pick: Pick) -> StagePrices:
    """Seconds to launch a step of one replica on one stage, and those that the device waits for it.

    Both are off by what the whole step is. Raises NoForecast where a crossing has no curve.
    """
    prices, rules = engine.prices(plan), scenario.rules
    error = engine.model_error(plan.split, longest(scenario.cell))

    def seconds(chunks: Chunks, decodes: int, context: float) -> tuple[float, ...]:
        (one,) = stage_costs(prices, _step(chunks, decodes, context), rules, engine.paces)
        off = pick(one.cost.estimate(error)) / one.seconds
        waits_s = one.cost.parts.get(TermKind.HOST, (0.0,))[0]
        return one.launch_s * off, waits_s * off

    return seconds


def _step(chunks: Chunks, decodes: int, context: float) -> Step:
    """The step as the closed form knows it; every prompt in it is taken to get a token."""
    return Step(
        chunks=tuple(
            Chunk(tokens=tokens, cached=cached, count=len(list(alike)))
            for (tokens, cached), alike in groupby(chunks)
        ),
        decodes=decodes,
        context_tokens=context,
        sampled=decodes + len(chunks),
    )


def _pool(scenario: Scenario, plan: Plan, cache: Cache, steps: list[StepTimes], seed: str) -> Pool:
    tokens = longest(scenario.cell)
    engines: list[AnyEngine] = []
    for at, (table, launches, rested) in enumerate(steps):
        noise = normal(scenario.step_spread, f"{seed} {at}")
        if plan.split.pp == 1:
            engines.append(Simulated(scenario.rules, table, noise, cache, tokens, launches))
        else:
            stages = plan.split.pp
            engines.append(
                Pipeline(scenario.rules, table, noise, cache, tokens, stages=stages, rested=rested)
            )
    if not engines[0].batching.fits(tokens):
        raise UsageError(
            f"{plan.name}: a request of {tokens:,} tokens does not fit into its cache.",
            why="It would wait for ever.",
            hint="Ask for shorter requests, or take a split that leaves more memory.",
        )
    return Pool(engines, scenario.balance)


def longest(cell: Cell) -> int:
    """Tokens of the longest request, prompt and answer."""
    if cell.arrival is not Arrival.TRACE:
        return cell.prompt_tokens + cell.output_tokens
    return max(sum(lengths_of(cell, index)) for index in range(cell.requests))


def _handover(engine: Engine, scenario: Scenario, pick: Pick) -> Handover:
    """Seconds of the sends of a prompt's cache; all pairs of ranks send at the same time."""
    prefill, arm = scenario.prefill, scenario.handover_arm
    assert prefill is not None
    assert arm is not None
    sources, targets = _lone(prefill), _lone(scenario.plan)
    known: dict[tuple[int, int, int], float] = {}

    def seconds(src: int, dst: int, tokens: int) -> float:
        key = (src, dst, tokens)
        if key not in known:
            gpus = (*sources[src], *targets[dst])
            labels = tuple(engine.book.machine.gpu(gpu).label for gpu in gpus)
            split_from = msgspec.structs.replace(prefill.split, replicas=1)
            split_to = msgspec.structs.replace(scenario.plan.split, replicas=1)
            times = []
            for crossing in kv_transfer(engine.shape, split_from, split_to, tokens):
                found = price((crossing,), labels, arm, engine.book)
                if isinstance(found, NoCurve):
                    raise NoForecast(found)
                times.append(pick(found.time))
            known[key] = max(times, default=0.0)
        return known[key]

    return seconds


def _lone(plan: Plan) -> list[tuple[str, ...]]:
    """The GPUs of each replica."""
    gpus, size = plan.placement.gpus, plan.split.tp * plan.split.pp
    return [gpus[at : at + size] for at in range(0, len(gpus), size)]


def curve_ids(engine: Engine, scenario: Scenario) -> tuple[str, ...]:
    """Records of the curves that price small and large steps of every replica."""
    found: dict[str, None] = {}
    for plan in (scenario.plan, scenario.prefill):
        if plan is None or plan.arm is None:
            continue
        for one in engine.replicas(plan):
            prices = engine.prices(one)
            for phase, tokens in (
                (Phase.DECODE, 1),
                (Phase.PREFILL, scenario.rules.max_batched_tokens),
            ):
                found |= dict.fromkeys(prices.source(phase, tokens)[2])
    return tuple(found)
