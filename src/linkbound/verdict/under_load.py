"""Splits against plans over which nothing crosses, at one rate of requests (D1).

What is compared is the worst request that so many samples show (p99, else p90, p50) of the whole
time, or the share of good requests where a target is stated. All plans meet the same arrivals.
"""

from collections.abc import Sequence

from linkbound.predict.simulate.outlook import crosses
from linkbound.predict.simulate.types import Outlook, Simulation, in_squares
from linkbound.predict.types import Estimate, Plan
from linkbound.units import format_significant
from linkbound.values import Value
from linkbound.verdict.compare import answer
from linkbound.verdict.types import Answer

LEAST_REQUESTS = 36
"""The fewest of which two hold the p90 between them at 95 % (`evidence.stats`)."""
_MORE_IS_BETTER = ("goodput", "requests_per_s")
_TIMES = ("e2e_p99_s", "e2e_p90_s", "e2e_p50_s")


class LoadComparison(Value, frozen=True, kw_only=True):
    """A split against the best plan without crossings under the same load."""

    plan: Plan
    baseline: Plan
    figure: str
    """`goodput` where a target was stated, else the highest percentile of the whole time;
    `requests_per_s` where a plan does not keep up."""
    gain: Estimate | None
    """Above 1 the split is better; None where only one of the two keeps up with the load, or the
    baseline has no good request."""
    answer: Answer
    text: str


def judge_under_load(
    simulations: Sequence[Simulation], min_gain: float
) -> tuple[LoadComparison, ...]:
    """One comparison for each split among simulations of one load."""
    baselines = [one for one in simulations if not crosses(one.scenario)]
    return tuple(
        _compare(one, baseline, min_gain)
        for one in simulations
        if crosses(one.scenario)
        for baseline in _best(one, baselines)
    )


def _gpus(one: Simulation) -> int:
    prefill = one.scenario.prefill
    return one.scenario.plan.split.gpus + (0 if prefill is None else prefill.split.gpus)


def _best(one: Simulation, baselines: Sequence[Simulation]) -> list[Simulation]:
    """The best plan on at most as many GPUs; none where there is none."""
    found = [other for other in baselines if _gpus(other) <= _gpus(one)]
    figure = _figure(one)
    found = [other for other in found if figure in other.figures]
    if not found:
        return []
    keeps_up = [other for other in found if not other.overloaded] or found
    return [max(keeps_up, key=lambda other: _worth(figure, other.figures[figure]))]


def _figure(one: Simulation) -> str:
    if "goodput" in one.figures:
        return "goodput"
    return next((name for name in _TIMES if name in one.figures), "requests_per_s")


def _worth(figure: str, found: Outlook) -> tuple[float, float]:
    """More is better; among equal values the better end decides."""
    if figure in _MORE_IS_BETTER:
        return found.value, found.whole.high
    return -found.value, -found.whole.low


def _compare(one: Simulation, baseline: Simulation, min_gain: float) -> LoadComparison:
    names = one.scenario.name, baseline.scenario.name
    gain: Estimate | None
    if one.overloaded != baseline.overloaded:
        slow, fast = names if one.overloaded else names[::-1]
        gain, figure = None, "requests_per_s"
        found = Answer.REJECT if one.overloaded else Answer.KEEP
        text = f"{slow} does not keep up with this load, {fast} does."
    else:
        # Where neither keeps up, times only say how long it was watched.
        figure = "requests_per_s" if one.overloaded else _figure(one)
        mine, other = one.figures[figure], baseline.figures[figure]
        n = min(mine.n, other.n)
        if figure == "goodput" and other.value == 0:
            gain, found, text = None, *_over_none(names, mine, other)
        else:
            gain = _gain(figure, mine, other)
            found = answer(gain, min_gain)
            value, low, high = map(format_significant, (gain.value, gain.low, gain.high))
            text = (
                f"{names[0]} over {names[1]}: {figure} ~{value} times as good ({low}-{high}), "
                f"{1 + min_gain:.2f} is asked."
            )
        if n < LEAST_REQUESTS:
            found = Answer.UNDECIDED
            text += f" It rests on {n} of the {LEAST_REQUESTS} requests that a verdict takes."
    return LoadComparison(
        plan=one.scenario.plan,
        baseline=baseline.scenario.plan,
        figure=figure,
        gain=gain,
        answer=found,
        text=text,
    )


def _over_none(names: tuple[str, str], mine: Outlook, other: Outlook) -> tuple[Answer, str]:
    """A baseline without a good request: no ratio says by how much a split is better."""
    if mine.value == 0:
        text = f"Neither {names[0]} nor {names[1]} has a request that keeps the demand."
        return Answer.UNDECIDED, text
    good, low, high = map(format_significant, (mine.value, mine.whole.low, mine.whole.high))
    most = format_significant(other.whole.high)
    text = (
        f"{names[0]} over {names[1]}: ~{good} ({low}-{high}) of its requests keep the demand, "
        f"~0 (0-{most}) do there."
    )
    return (Answer.KEEP if mine.whole.low > other.whole.high else Answer.UNDECIDED), text


def _gain(figure: str, mine: Outlook, other: Outlook) -> Estimate:
    """The ratio that is above 1 where the first is better; its steps off, and other draws."""

    def ratio(one: float, another: float) -> float:
        over, under = (one, another) if figure in _MORE_IS_BETTER else (another, one)
        return over / max(under, 1e-9)

    value = ratio(mine.value, other.value)
    apart = [ratio(end, other.value) for end in (mine.apart.low, mine.apart.high)]
    draws = [ratio(*pair) for pair in zip(mine.drawn, other.drawn, strict=False)]
    return in_squares(
        value,
        (
            Estimate(value=value, low=min(value, *apart), high=max(value, *apart)),
            Estimate(value=value, low=min(value, *draws), high=max(value, *draws)),
        ),
    )
