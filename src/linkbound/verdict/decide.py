"""Forecasts and fits to a verdict: each split against one GPU and against replicas (D1, D2)."""

from collections.abc import Mapping

import msgspec

from linkbound.evidence.types import Finding
from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.types import Forecast, Plan
from linkbound.splits.types import Fit, Placement, Split
from linkbound.values import Value
from linkbound.verdict import words
from linkbound.verdict.compare import MIN_GAIN, answer
from linkbound.verdict.distrust import faults
from linkbound.verdict.gain import time_gain
from linkbound.verdict.settle import curve_measurement, engine_measurements
from linkbound.verdict.types import (
    Aim,
    Answer,
    Comparison,
    Measurement,
    PlanVerdict,
    Reason,
    Verdict,
)

NO_CURVE = "no-curve"
"""Code of the reason of a plan whose crossings have no time."""
WEAKEST_FIRST = (Answer.REJECT, Answer.UNDECIDED, Answer.KEEP)


class Unpriced(Value, frozen=True, kw_only=True):
    """A plan that fits and that nobody could price."""

    plan: Plan
    reason: Reason


class Case(Value, frozen=True, kw_only=True):
    """What a verdict is about: plans that were priced, and what fits."""

    load: Load
    forecasts: tuple[Forecast, ...]
    """One GPU, replicas, and splits in each arm, where they fit and can be priced."""
    fits: tuple[Fit, ...]
    gain_error: float
    min_gain: float = MIN_GAIN
    unpriced: tuple[Unpriced, ...] = ()
    """Plans that fit but could not be priced, and why."""
    model: str = "MODEL"
    labels: Mapping[str, str] = {}
    """Key of a GPU to its label."""
    findings: tuple[Finding, ...] = ()
    """Faults that were seen on this machine."""


def decide(case: Case) -> Verdict:
    """The verdict of a case. Every split gets an answer of its own, the case gets the best."""
    if _nothing_holds(case):
        return _no_plan(case)
    judged = [_judge(forecast, case) for forecast in case.forecasts if _is_split(forecast.plan)]
    judged += [_judge_unpriced(one, case) for one in _open_unpriced(case)]
    plans = tuple(_with_faults(one, case) for one in judged)
    found = {one.answer for one in plans}
    # Where nothing could be compared, that is no reason against a split that fits.
    blank = not plans and not case.forecasts and bool(case.unpriced)
    overall = next(
        (one for one in (Answer.KEEP, Answer.UNDECIDED) if one in found),
        Answer.UNDECIDED if blank else Answer.REJECT,
    )
    chosen = _choose(case, [one.plan for one in plans if one.answer is Answer.KEEP])
    return Verdict(
        load=case.load,
        answer=overall,
        plan=chosen,
        headline=words.headline(overall, chosen, plans, case.load),
        reasons=(*_reasons(chosen, plans), *_link_reasons(case)),
        plans=plans,
        would_change=_would_change(case, plans),
        measurements=_measurements(case, plans),
    )


def _nothing_holds(case: Case) -> bool:
    """Whether the load is in memory nowhere: then nothing is compared, so no split is rejected."""
    blind = any(one.reason.code == NO_CURVE for one in case.unpriced)
    return not (case.forecasts or blind or any(_holds_all(fit, case.load) for fit in case.fits))


def _no_plan(case: Case) -> Verdict:
    reason = words.no_plan_reason(case.load, case.fits)
    return Verdict(
        load=case.load,
        answer=Answer.UNDECIDED,
        plan=None,
        headline=words.no_plan_headline(case.load),
        reasons=(reason,),
        plans=(),
        would_change=words.fewer_at_once(case.fits),
    )


def _is_split(plan: Plan) -> bool:
    """Whether anything crosses: replicas that share experts are a split, not a baseline."""
    return plan.split.tp * plan.split.pp * plan.split.ep > 1


def _judge(forecast: Forecast, case: Case) -> PlanVerdict:
    comparisons = [
        _compare(aim, forecast, baseline, case) for aim, baseline in _baselines(forecast, case)
    ]
    capacity = _capacity(forecast.plan, case)
    if capacity is not None:
        comparisons.append(capacity)
    weakest = min(
        (one.answer for one in comparisons), key=WEAKEST_FIRST.index, default=Answer.UNDECIDED
    )
    return PlanVerdict(
        plan=forecast.plan,
        answer=weakest,
        reasons=tuple(reason for one in comparisons for reason in one.reasons),
        comparisons=tuple(comparisons),
    )


def _open_unpriced(case: Case) -> list[Unpriced]:
    """Splits that may hold the load and whose crossings have no time."""
    return [one for one in case.unpriced if _is_split(one.plan) and one.reason.code == NO_CURVE]


def _judge_unpriced(one: Unpriced, case: Case) -> PlanVerdict:
    """Kept where only it holds the load; else undecided, whatever it would be worth."""
    mine = _fit_of(one.plan, case)
    holds = mine is not None and _holds_all(mine, case.load)
    capacity = _capacity(one.plan, case) if holds else None
    if capacity is None:
        return PlanVerdict(plan=one.plan, answer=Answer.UNDECIDED, reasons=(one.reason,))
    return PlanVerdict(
        plan=one.plan,
        answer=capacity.answer,
        reasons=(*capacity.reasons, one.reason),
        comparisons=(capacity,),
    )


def _with_faults(one: PlanVerdict, case: Case) -> PlanVerdict:
    """A plan with a fault on its path is open at best: its times say nothing about its results."""
    found = faults(one.plan, case.labels, case.findings)
    if not found:
        return one
    weaker = min(one.answer, Answer.UNDECIDED, key=WEAKEST_FIRST.index)
    return msgspec.structs.replace(one, answer=weaker, reasons=(*found, *one.reasons))


def _baselines(forecast: Forecast, case: Case) -> list[tuple[Aim, Forecast]]:
    """The best plan on fewer GPUs for latency, replicas on as many for throughput."""
    mine = forecast.plan
    same_arm = [one for one in case.forecasts if one.plan.arm in (None, mine.arm)]
    smaller = [one for one in same_arm if one.plan.split.gpus < mine.split.gpus]
    replicas = [
        one
        for one in same_arm
        if one.plan.split.ep == 1
        and _independence(one.plan.split) > _independence(mine.split)
        and one.plan.split.gpus == mine.split.gpus
        and one.plan.split.replicas <= case.load.concurrency
    ]
    found = []
    if smaller:
        found.append((Aim.LATENCY, min(smaller, key=_time)))
    if replicas:
        found.append((Aim.THROUGHPUT, min(replicas, key=_time)))
    return found


def _independence(split: Split) -> int:
    """Copies of the model that wait for nobody; copies that share experts wait for each other."""
    return split.replicas if split.ep <= split.tp else 1


def _time(forecast: Forecast) -> float:
    return forecast.latency_s.value


def _compare(aim: Aim, forecast: Forecast, baseline: Forecast, case: Case) -> Comparison:
    gain = time_gain(forecast, baseline, case.gain_error)
    found = answer(gain, case.min_gain)
    return Comparison(
        aim=aim,
        plan=forecast.plan,
        baseline=baseline.plan,
        gain=gain,
        answer=found,
        reasons=(words.gain_reason(aim, forecast, baseline, gain, found, case.min_gain),),
    )


def _fit_of(plan: Plan, case: Case) -> Fit | None:
    return next((fit for fit in case.fits if fit.split == plan.split), None)


def _capacity(plan: Plan, case: Case) -> Comparison | None:
    """A split that holds what no smaller plan holds is kept for that; None where one does."""
    smaller = [fit for fit in case.fits if fit.split.gpus < plan.split.gpus]
    if not smaller or any(_holds_all(fit, case.load) for fit in smaller):
        return None
    fullest = max(smaller, key=lambda fit: (fit.largest_batch or 0, fit.split.gpus))
    return Comparison(
        aim=Aim.CAPACITY,
        plan=plan,
        baseline=Plan(
            split=fullest.split,
            placement=Placement(gpus=plan.placement.gpus[: fullest.split.gpus]),
            arm=None,
        ),
        gain=None,
        answer=Answer.KEEP,
        reasons=(words.capacity_reason(plan.split, _fit_of(plan, case), fullest, case.load),),
    )


def _holds_all(fit: Fit, load: Load) -> bool:
    """Whether the whole load is in memory at once; None stands for no limit."""
    return fit.fits and (fit.largest_batch is None or fit.largest_batch >= load.concurrency)


def _choose(case: Case, kept: list[Plan]) -> Plan | None:
    """The fastest of the kept plans, or the first where none has a time; else the best baseline."""
    timed = [one for one in case.forecasts if one.plan in kept]
    if kept and not timed:
        return kept[0]
    wanted = timed or [one for one in case.forecasts if not _is_split(one.plan)]
    fastest = min(wanted, key=_time, default=None)
    return None if fastest is None else fastest.plan


def _reasons(chosen: Plan | None, plans: tuple[PlanVerdict, ...]) -> tuple[Reason, ...]:
    """Those of the chosen split first; of the rest, each plan's decisive one."""
    mine = [one for one in plans if one.plan == chosen]
    rest = [one for one in plans if one not in mine]
    found = [reason for one in mine for reason in one.reasons]
    found += [reason for one in rest for reason in one.reasons if reason.code != "capacity-only"]
    return tuple(dict.fromkeys(found))


def _link_reasons(case: Case) -> tuple[Reason, ...]:
    """What the direct link is worth: the same split with and without it."""
    found = []
    for direct in case.forecasts:
        staged = _in_arm(case, direct.plan, Arm.STAGED)
        if direct.plan.arm is Arm.P2P and staged is not None:
            gain = time_gain(direct, staged, 0.0)
            found.append(words.link_reason(direct, staged, gain, case.min_gain))
    return tuple(found)


def _in_arm(case: Case, plan: Plan, arm: Arm) -> Forecast | None:
    return next(
        (one for one in case.forecasts if one.plan.split == plan.split and one.plan.arm is arm),
        None,
    )


def _open_comparisons(plans: tuple[PlanVerdict, ...]) -> list[Comparison]:
    return [
        comparison
        for one in plans
        for comparison in one.comparisons
        if comparison.answer is Answer.UNDECIDED
    ]


def _would_change(case: Case, plans: tuple[PlanVerdict, ...]) -> tuple[str, ...]:
    settled = [
        words.settling_text(one, case.min_gain)
        for one in _open_comparisons(plans)
        if one.gain is not None
    ]
    return (*settled, *(one.reason.text for one in case.unpriced))


def _measurements(case: Case, plans: tuple[PlanVerdict, ...]) -> tuple[Measurement, ...]:
    open_ones = tuple(one for one in plans if one.answer is Answer.UNDECIDED)
    found = engine_measurements(
        _open_comparisons(open_ones),
        case.load,
        case.model,
        case.labels,
        {one.plan.key: one.latency_s.value for one in case.forecasts},
    )
    blind = [one.plan.name for one in _open_unpriced(case)]
    return (*found, *([curve_measurement(blind)] if blind else []))
