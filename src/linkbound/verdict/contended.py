"""Groups that send at the same time over a path that they share: times alone are too short.

Copies that ran together show what each pair keeps of its rate (L3). A plan whose groups send at
once can take as long as if they always did; one that asks for more than the path carries, does.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import permutations

import msgspec

from linkbound.evidence.types import Figure, Provenance
from linkbound.links.types import Arm, Operation, PairRate
from linkbound.model.types import Load
from linkbound.predict.assumed import wire_share
from linkbound.predict.compute import padded_tokens
from linkbound.predict.forecast import replica_load
from linkbound.predict.schedule import sampled_schedule
from linkbound.predict.stage import phase_of
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate, Forecast, Plan, TermKind
from linkbound.splits.types import Split
from linkbound.units import format_rate
from linkbound.values import Value
from linkbound.verdict.link_gain import SAME
from linkbound.verdict.types import Reason

ABOVE, SHARED = "demand-above-contended", "shared-path"
HOST = "host"


class Shared(Value, frozen=True, kw_only=True):
    """A pair that keeps least of its rate while others copy: bytes a second."""

    pair: tuple[str, str]
    alone: float
    together: float
    setting: str
    """Name of the set of copies that ran together."""


def shared_path(plan: Plan, labels: Sequence[str], rates: Iterable[PairRate]) -> Shared | None:
    """What the groups of a plan share, where more than one sends at once; None where none does.

    `labels` are its GPUs in rank order. Copies beside traffic of the host are no such setting.
    """
    groups = _groups(plan.split, labels)
    if len(groups) < 2:
        return None
    direct = plan.arm is not Arm.STAGED
    mine = {pair for group in groups for pair in permutations(group, 2)}
    alone: dict[tuple[str, str], float] = {}
    found: list[tuple[tuple[str, str], float, str]] = []
    for one in rates:
        pair = (one.src, one.dst)
        if one.operation is not Operation.COPY or pair not in mine:
            continue
        if (one.arm is not Arm.STAGED) is not direct or one.arm is None:
            continue
        if one.concurrency == "alone":
            alone[pair] = max(alone.get(pair, 0.0), one.bytes_per_s)
        elif HOST not in one.concurrency:
            found.append((pair, one.bytes_per_s, one.concurrency))
    kept = [
        Shared(pair=pair, alone=alone[pair], together=rate, setting=setting)
        for pair, rate, setting in found
        if pair in alone and rate < alone[pair] * (1 - SAME)
    ]
    return min(kept, key=lambda one: one.together / one.alone, default=None)


def _groups(split: Split, labels: Sequence[str]) -> list[Sequence[str]]:
    """Tensor groups; without them the stages of each replica, which send one after the other."""
    size = split.tp if split.tp > 1 else split.pp
    if size < 2:
        return []
    return [labels[at : at + size] for at in range(0, len(labels), size)]


def demand_bytes_per_s(engine: Engine, forecast: Forecast) -> float:
    """What one rank sends in the whole call, over the time that the call takes."""
    split = forecast.plan.split
    load: Load = replica_load(forecast.load, split)
    total = 0.0
    for step in sampled_schedule(load, engine.rules):
        tokens = padded_tokens(step.tokens, engine.rules)
        for crossing in engine.work.crossings(split, phase_of(step), tokens):
            share = wire_share(crossing.operation, len(crossing.ranks))
            total += step.count * crossing.count * crossing.size_bytes * share
    return total / split.pp / forecast.latency_s.value


def while_shared(engine: Engine, forecast: Forecast, shared: Shared) -> tuple[Forecast, Reason]:
    """The forecast with what sharing may add, and why.

    Above the rate that the path carries for all at once, crossings take that much longer; below,
    they may: nobody knows how often two groups send in the same moment.
    """
    longer = shared.alone / shared.together
    demand = demand_bytes_per_s(engine, forecast)
    above = demand > shared.together
    stretched = _stretched(forecast, longer, certain=above)
    name = f"{shared.pair[0]} -> {shared.pair[1]}"
    carried = (
        f'{name} carries {format_rate(shared.together)} in "{shared.setting}" and '
        f"{format_rate(shared.alone)} alone"
    )
    plan = forecast.plan.name
    text = (
        f"{plan} asks for {format_rate(demand)} on every link while all its groups send: "
        f"{carried}, so that its crossings take as much longer."
        if above
        else f"The groups of {plan} share a path: {carried}; how much longer its crossings take "
        "depends on how often they send at once."
    )
    return stretched, Reason(
        code=ABOVE if above else SHARED,
        text=text,
        figures=tuple(
            Figure(value=value, unit="bytes/s", provenance=provenance)
            for value, provenance in (
                (demand, Provenance.CALIBRATED),
                (shared.together, Provenance.MEASURED),
                (shared.alone, Provenance.MEASURED),
            )
        ),
        record_ids=forecast.record_ids,
    )


def _stretched(forecast: Forecast, longer: float, *, certain: bool) -> Forecast:
    crossings = forecast.parts.get(TermKind.CROSSINGS)
    if crossings is None:
        return forecast
    most = crossings.high * longer
    value = crossings.value * longer if certain else crossings.value
    part = Estimate(value=value, low=min(crossings.low, value), high=max(most, value))
    more, further = value - crossings.value, most - value
    whole = forecast.latency_s
    latency = Estimate(
        value=whole.value + more,
        low=whole.low,
        high=whole.value + more + math.hypot(whole.high - whole.value, further),
    )
    tokens = forecast.load.concurrency * forecast.load.output_tokens
    return msgspec.structs.replace(
        forecast,
        latency_s=latency,
        tokens_per_s=Estimate(
            value=tokens / latency.value, low=tokens / latency.high, high=tokens / latency.low
        ),
        parts={**forecast.parts, TermKind.CROSSINGS: part},
    )
