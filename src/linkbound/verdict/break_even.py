"""The link at which the answer flips: bandwidth with latency held, and the reverse (D5).

The plan is priced again with a link of latency + bytes / bandwidth, fitted to the curve it was
priced with; bisection finds where its gain over the baseline crosses the line.
"""

from collections.abc import Callable

from linkbound.links.fit import fit
from linkbound.links.types import Arm, Operation
from linkbound.model.types import Load
from linkbound.predict.assumed import wire_share
from linkbound.predict.forecast import call_cost, replica_load
from linkbound.predict.stated import StatedBook
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Forecast, Plan
from linkbound.splits.types import Split
from linkbound.verdict.types import BreakEven

LOWEST_BYTES_PER_S, HIGHEST_BYTES_PER_S = 1e6, 1e13
LOWEST_LATENCY_S, HIGHEST_LATENCY_S = 1e-8, 1.0
STEPS = 60
# Size at which the held bandwidth is read where a curve has no asymptote of its own.
LARGE_BYTES = 64 * 1024 * 1024
SMALL_BYTES = 8 * 1024
MIDDLE_BYTES = 1024 * 1024
"""At which the slowest group is told: neither latency nor bandwidth alone decides."""


def break_even(
    engine: Engine, plan: Plan, load: Load, baseline: Forecast, min_gain: float
) -> BreakEven | None:
    """Break-even bandwidth and latency; None for a plan over which nothing crosses.

    A figure is None where no such link is fast enough, or where none is slow enough to matter.
    """
    link = fitted_link(engine, plan)
    if link is None:
        return None
    latency_s, bytes_per_s = link

    def pays(latency: float, rate: float) -> bool:
        book = StatedBook(engine.book, latency_s=latency, bytes_per_s=rate)
        stated = engine.with_book(book)
        # A baseline that is split itself lives with the same link.
        other_s = (
            baseline.latency_s.value
            if baseline.plan.arm is None
            else _call_s(stated, baseline.plan, load)
        )
        return _call_s(stated, plan, load) <= other_s / (1 + min_gain)

    rate = _crossing(
        lambda value: pays(latency_s, value),
        LOWEST_BYTES_PER_S,
        HIGHEST_BYTES_PER_S,
    )
    latency = _crossing(
        lambda value: not pays(value, bytes_per_s),
        LOWEST_LATENCY_S,
        HIGHEST_LATENCY_S,
    )
    return BreakEven(
        baseline=baseline.plan,
        bytes_per_s=rate,
        latency_s=latency,
        basis=f"the other one held at this machine's {latency_s * 1e6:.1f} us and "
        f"{bytes_per_s / 1e9:.1f} GB/s each way, the fit of its curve",
    )


def _call_s(engine: Engine, plan: Plan, load: Load) -> float:
    return call_cost(engine, plan, replica_load(load, plan.split)).seconds


def fitted_link(engine: Engine, plan: Plan) -> tuple[float, float] | None:
    """Latency and bandwidth each way of the curve that prices the plan's calls.

    Of its groups the slowest, which all others wait for; None where one has no curve.
    """
    if plan.arm is None:
        return None
    labels = tuple(engine.book.machine.gpu(key).label for key in plan.placement.gpus)
    operation = Operation.ALL_REDUCE if plan.split.tp > 1 else Operation.SEND_RECV
    links = [_fitted(engine, operation, group, plan.arm) for group in _groups(labels, plan.split)]
    known = [one for one in links if one is not None]
    if len(known) < len(links):
        return None
    return max(known, key=lambda link: link[0] + MIDDLE_BYTES / link[1])


def _groups(labels: tuple[str, ...], split: Split) -> list[tuple[str, ...]]:
    """Tensor groups; without them the neighbours of each replica's pipeline, or of the experts."""
    if split.tp > 1:
        return [labels[first : first + split.tp] for first in range(0, len(labels), split.tp)]
    size = split.pp if split.pp > 1 else len(labels)
    return [
        labels[first : first + 2] for first in range(len(labels) - 1) if (first + 1) % size != 0
    ]


def _fitted(
    engine: Engine, operation: Operation, group: tuple[str, ...], arm: Arm
) -> tuple[float, float] | None:
    small = engine.book.curve(operation, group, arm, SMALL_BYTES)
    large = engine.book.curve(operation, group, arm, LARGE_BYTES)
    if small is None or large is None:
        return None
    latency_s = fit(small).latency_s or small.points[0].time_s
    last = large.points[-1]
    rate = fit(large).bytes_per_s or last.size_bytes / last.time_s
    return latency_s, rate * wire_share(operation, len(group))


def _crossing(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    """The value from which on `holds` is true, by bisection of the logarithm; None if never, or
    always."""
    if holds(low) or not holds(high):
        return None
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if holds(middle) else (middle, high)
        if high / low < 1.01:
            break
    return high
