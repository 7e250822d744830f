"""The link at which the answer flips: bandwidth with latency held, and the reverse (D5).

The plan is priced again with a link of latency + bytes / bandwidth, fitted to the curve it was
priced with; bisection finds where its gain over the baseline crosses the line.
"""

from collections.abc import Callable

from linkbound.links.fit import fit
from linkbound.links.types import Operation
from linkbound.model.types import Load
from linkbound.predict.assumed import wire_share
from linkbound.predict.forecast import call_cost, replica_load
from linkbound.predict.stated import StatedBook
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Forecast, Plan
from linkbound.verdict.types import BreakEven

LOWEST_BYTES_PER_S, HIGHEST_BYTES_PER_S = 1e6, 1e13
LOWEST_LATENCY_S, HIGHEST_LATENCY_S = 1e-8, 1.0
STEPS = 60
# Size at which the held bandwidth is read where a curve has no asymptote of its own.
LARGE_BYTES = 64 * 1024 * 1024
SMALL_BYTES = 8 * 1024


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
    target_s = baseline.latency_s.value / (1 + min_gain)

    def time_s(latency: float, rate: float) -> float:
        book = StatedBook(engine.book, latency_s=latency, bytes_per_s=rate)
        return call_cost(engine.with_book(book), plan, replica_load(load, plan.split)).seconds

    rate = _crossing(
        lambda value: time_s(latency_s, value) <= target_s,
        LOWEST_BYTES_PER_S,
        HIGHEST_BYTES_PER_S,
    )
    latency = _crossing(
        lambda value: time_s(value, bytes_per_s) > target_s,
        LOWEST_LATENCY_S,
        HIGHEST_LATENCY_S,
    )
    return BreakEven(
        bytes_per_s=rate,
        latency_s=latency,
        basis=f"the other one held at this machine's {latency_s * 1e6:.1f} us and "
        f"{bytes_per_s / 1e9:.1f} GB/s each way, the fit of its curve",
    )


def fitted_link(engine: Engine, plan: Plan) -> tuple[float, float] | None:
    """Latency and bandwidth each way of the curve that prices the plan's calls."""
    if plan.arm is None:
        return None
    labels = tuple(engine.book.machine.gpu(key).label for key in plan.placement.gpus)
    operation = Operation.ALL_REDUCE if plan.split.tp > 1 else Operation.SEND_RECV
    group = labels[: max(plan.split.tp, 2)]
    small = engine.book.curve(operation, group, plan.arm, SMALL_BYTES)
    large = engine.book.curve(operation, group, plan.arm, LARGE_BYTES)
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
