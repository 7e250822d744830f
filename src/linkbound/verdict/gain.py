"""The gain of one plan over another, with what both share left out of the interval (D1, D2).

ln(gain) moves with each constant by the difference of the two plans' shares of time that depend on
it: a weight-streaming rate that is 10 % off shifts both plans and hardly their ratio. Crossings are
not shared: each arm has curves of its own. Nor is imbalance: each split has its own.
"""

import math

import msgspec

from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.forecast import replica_load
from linkbound.predict.types import Estimate, Forecast, TermKind
from linkbound.splits.types import Split

_OWN = frozenset({TermKind.CROSSINGS, TermKind.IMBALANCE})


def time_gain(plan: Forecast, baseline: Forecast, gain_error: float) -> Estimate:
    """Baseline time over plan time for the whole call: above 1, the plan is faster."""
    value = baseline.latency_s.value / plan.latency_s.value
    if _of_a_copy(plan) == _of_a_copy(baseline) and plan.parts == baseline.parts:
        # Copies that take no part of the load: whatever a copy takes, it is the same.
        return Estimate(value=value, low=value, high=value)
    if plan.plan.split != baseline.plan.split:
        gain_error = math.hypot(gain_error, plan.unseen_gain_error, baseline.unseen_gain_error)
    down = up = gain_error**2
    for kind in {*plan.parts, *baseline.parts}:
        for below, above in _pulls(kind, plan, baseline):
            down += min(below, above, 0.0) ** 2
            up += max(below, above, 0.0) ** 2
    return Estimate(
        value=value,
        low=value * math.exp(-math.sqrt(down)),
        high=value * math.exp(math.sqrt(up)),
    )


def _of_a_copy(forecast: Forecast) -> tuple[Split, Arm | None, Load]:
    """What one copy of the model is, and its share of the load; copies sharing experts are one."""
    split = forecast.plan.split
    alone = split if split.ep > split.tp else msgspec.structs.replace(split, replicas=1)
    return alone, forecast.plan.arm, replica_load(forecast.load, split)


def _pulls(kind: TermKind, plan: Forecast, baseline: Forecast) -> list[tuple[float, float]]:
    """Change of ln(gain) when the kind's constant goes to its low and to its high end."""
    mine = _shares(plan, kind)
    other = _shares(baseline, kind)
    if kind in _OWN:
        return [(-mine[0], -mine[1]), other]
    return [(other[0] - mine[0], other[1] - mine[1])]


def _shares(forecast: Forecast, kind: TermKind) -> tuple[float, float]:
    part = forecast.parts.get(kind)
    if part is None:
        return 0.0, 0.0
    whole = forecast.latency_s.value
    return (part.low - part.value) / whole, (part.high - part.value) / whole
