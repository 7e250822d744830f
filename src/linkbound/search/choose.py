"""A search's options as choices: placed, with intervals, and the reason of the best (D1, E3)."""

import math
from collections.abc import Mapping

import msgspec

from linkbound.model.types import Load
from linkbound.predict.forecast import forecast
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate, Forecast
from linkbound.search.option import Option
from linkbound.search.placer import Placed
from linkbound.search.scoring import ttft_s, waves, within
from linkbound.search.search import Search
from linkbound.search.types import Choice, Found, Objective
from linkbound.search.words import no_plan, why
from linkbound.serve.load_types import Slo
from linkbound.splits.layouts import Layout
from linkbound.splits.tree import Tree


def find(
    engine: Engine, tree: Tree, load: Load, objective: Objective, slo: Slo | None = None
) -> Found:
    """The best plan for the objective, and all that no other one beats.

    Raises InputError where the machine does not say how much memory a GPU has.
    """
    return answer(Search(engine, tree, load, slo), objective)


def answer(
    search: Search, objective: Objective, left_out: Mapping[str, str] | None = None
) -> Found:
    """What a search found, for one objective; `left_out` are GPUs not in its tree, and why."""
    best = search.best(objective)
    chosen = None if best is None else _choice(search, best)
    front = sorted((_choice(search, one) for one in search.front), key=_latency)
    return Found(
        load=search.load,
        objective=objective,
        slo=search.slo,
        best=chosen,
        reason=_reason(search, objective, best, chosen),
        front=tuple(front),
        candidates=search.candidates,
        ruled_out=search.ruled_out,
        exhaustive=search.placer.exhaustive,
        unpriced=tuple(search.costs.unpriced),
        left_out=left_out or {},
    )


def _reason(
    search: Search, objective: Objective, best: Option | None, chosen: Choice | None
) -> str:
    if best is None or chosen is None:
        costs = search.costs
        return no_plan(search.candidates, costs.unheld, tuple(costs.unpriced))
    other = search.next_best(best, objective)
    return why(objective, chosen, None if other is None else _choice(search, other))


def _latency(choice: Choice) -> float:
    return choice.latency_s.value


def _choice(search: Search, option: Option) -> Choice:
    candidate, scores, load = option.candidate, option.scores, search.load
    unit, limit = candidate.unit, candidate.limit
    placed = option.place()
    slowest = _slowest(search, option, placed)
    full, rest = waves(load, candidate.replicas, limit)
    one = search.costs.plan(unit, (slowest,), candidate.arm)

    def of(sequences: int) -> Forecast:
        share = msgspec.structs.replace(load, concurrency=sequences * unit.replicas)
        return forecast(search.costs.engine, one, share)

    found, at_limit = of(rest or limit), of(limit)
    tokens_per_s = _as_wide(at_limit.tokens_per_s, scores.tokens_per_s)

    def call_s(sequences: int, output: int) -> float:
        return search.costs.call_s(unit, slowest, candidate.arm, sequences, output)

    whole = unit if unit.replicas > 1 else msgspec.structs.replace(unit, replicas=candidate.copies)
    first = ttft_s(load, candidate.replicas, limit, call_s)
    return Choice(
        plan=search.costs.plan(whole, placed, candidate.arm),
        limit=limit,
        waves=full + (rest > 0),
        latency_s=_as_wide(found.latency_s, scores.latency_s),
        ttft_s=_as_wide(found.ttft_s, first),
        tpot_s=found.tpot_s,
        tokens_per_s=tokens_per_s,
        held=None if math.isinf(scores.held) else int(scores.held),
        full_latency_s=at_limit.latency_s,
        full_ttft_s=at_limit.ttft_s,
        full_tpot_s=at_limit.tpot_s,
        goodput_per_s=None if search.slo is None else _goodput(search, at_limit, tokens_per_s),
        forecast=found,
    )


def _goodput(search: Search, full: Forecast, tokens_per_s: Estimate) -> Estimate:
    slo, each = search.slo or Slo(), search.load.output_tokens
    return within(
        ((full.latency_s, slo.e2e_s), (full.ttft_s, slo.ttft_s), (full.tpot_s, slo.tpot_s)),
        Estimate(
            value=tokens_per_s.value / each,
            low=tokens_per_s.low / each,
            high=tokens_per_s.high / each,
        ),
    )


def _slowest(search: Search, option: Option, placed: Placed) -> Layout:
    candidate = option.candidate

    def call_s(layout: Layout) -> float:
        return search.costs.call_s(
            candidate.unit, layout, candidate.arm, candidate.limit, search.load.output_tokens
        )

    return max({one.signature: one for one in placed}.values(), key=call_s)


def _as_wide(known: Estimate, value: float) -> Estimate:
    """`value` with the relative interval of a figure of the same plan."""
    return Estimate(
        value=value,
        low=min(value, value * known.low / known.value),
        high=max(value, value * known.high / known.value),
    )
