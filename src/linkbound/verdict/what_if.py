"""The verdict again with other links: an arm alone, half the lanes, a stated link, another's (D5).

Everything it says is predicted, and what the links are is stated by whoever asks.
"""

from collections.abc import Collection

import msgspec

from linkbound.links.types import Arm
from linkbound.predict.book import CurveBook
from linkbound.predict.forecast import forecast
from linkbound.predict.pricing import NoForecast
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate, Forecast, Plan
from linkbound.values import Value
from linkbound.verdict.decide import NO_CURVE, Case, Unpriced, decide
from linkbound.verdict.types import Aim, Answer, Comparison, PlanVerdict, Reason, Verdict


class Changed(Value, frozen=True, kw_only=True):
    """One plan now and with the supposed links; gains are over its decisive baseline."""

    plan: Plan
    now: Answer | None
    """None where it is not judged now."""
    then: Answer | None
    """None where it is not in the question."""
    aim: Aim | None
    baseline: Plan | None
    gain_now: Estimate | None
    gain_then: Estimate | None
    reason: Reason | None = None
    """Why it is open then, where it has no gain."""


class WhatIf(Value, frozen=True, kw_only=True):
    """A verdict with other links, beside the one with those that are there."""

    supposed: str
    """What the links are taken to be, in words."""
    now: Verdict
    then: Verdict
    plans: tuple[Changed, ...]


def what_if(
    case: Case,
    engine: Engine,
    now: Verdict,
    supposed: str,
    arms: Collection[Arm],
    book: CurveBook | None,
    changed: Collection[Arm],
) -> WhatIf:
    """The case again with splits in `arms` alone, those in `changed` over the links of `book`.

    A split that no plan of the case has in these arms is priced in them; without a time it is open.
    """
    plans = [one.plan for one in case.forecasts if _asked(one.plan, arms)]
    plans += [
        one.plan
        for one in case.unpriced
        if one.reason.code == NO_CURVE and _asked(one.plan, arms) and book is not None
    ]
    plans += _in_new_arms(case, arms)
    forecasts, unpriced = [], []
    supposing = engine if book is None else engine.with_book(book)
    known = {one.plan.key: one for one in case.forecasts}
    for plan in plans:
        if plan.key in known and (plan.arm is None or plan.arm not in changed):
            forecasts.append(known[plan.key])
            continue
        found = _forecast(supposing, plan, case)
        if isinstance(found, Forecast):
            forecasts.append(found)
        else:
            unpriced.append(Unpriced(plan=plan, reason=found))
    rest = [one for one in case.unpriced if one.plan not in plans and _asked(one.plan, arms)]
    then = decide(
        msgspec.structs.replace(case, forecasts=tuple(forecasts), unpriced=(*unpriced, *rest))
    )
    return WhatIf(supposed=supposed, now=now, then=then, plans=_changes(now, then))


def _in_new_arms(case: Case, arms: Collection[Arm]) -> list[Plan]:
    """Splits that the case has in other arms alone, in these."""
    fitting = [one.plan for one in case.forecasts]
    fitting += [one.plan for one in case.unpriced if one.reason.code == NO_CURVE]
    known = {one.split for one in fitting if one.arm in arms}
    new = {one.split: one for one in fitting if one.arm is not None and one.split not in known}
    return [msgspec.structs.replace(plan, arm=arm) for plan in new.values() for arm in arms]


def _asked(plan: Plan, arms: Collection[Arm]) -> bool:
    return plan.arm is None or plan.arm in arms


def _forecast(engine: Engine, plan: Plan, case: Case) -> Forecast | Reason:
    try:
        return forecast(engine, plan, case.load)
    except NoForecast as error:
        return Reason(code=NO_CURVE, text=str(error))


def _changes(now: Verdict, then: Verdict) -> tuple[Changed, ...]:
    before = {one.plan.key: one for one in now.plans}
    after = {one.plan.key: one for one in then.plans}
    plans = {one.plan.key: one.plan for one in (*now.plans, *then.plans)}
    return tuple(_changed(plan, before.get(key), after.get(key)) for key, plan in plans.items())


def _changed(plan: Plan, before: PlanVerdict | None, after: PlanVerdict | None) -> Changed:
    one, two = _decisive(before), _decisive(after)
    shown = two or one
    return Changed(
        plan=plan,
        now=None if before is None else before.answer,
        then=None if after is None else after.answer,
        aim=None if shown is None else shown.aim,
        baseline=None if shown is None else shown.baseline,
        gain_now=None if one is None else one.gain,
        gain_then=None if two is None else two.gain,
        reason=_why_open(after) if two is None else None,
    )


def _why_open(one: PlanVerdict | None) -> Reason | None:
    if one is None or one.answer is not Answer.UNDECIDED:
        return None
    return next(iter(one.reasons), None)


def _decisive(one: PlanVerdict | None) -> Comparison | None:
    """The comparison with a gain in which the plan stands worst."""
    if one is None:
        return None
    compared = [found for found in one.comparisons if found.gain is not None]
    return min(compared, key=_gain, default=None)


def _gain(comparison: Comparison) -> float:
    assert comparison.gain is not None
    return comparison.gain.value
