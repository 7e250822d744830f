"""Forecasts and fits to a verdict: each split against one GPU and against replicas (D1, D2)."""

from linkbound.evidence.types import Figure, Provenance
from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.types import Estimate, Forecast, Plan
from linkbound.splits.types import Fit, Placement
from linkbound.units import format_time
from linkbound.values import Value
from linkbound.verdict.compare import MIN_GAIN, answer
from linkbound.verdict.gain import time_gain
from linkbound.verdict.types import (
    Aim,
    Answer,
    Comparison,
    Measurement,
    PlanVerdict,
    Reason,
    Verdict,
)

_WEAKEST_FIRST = (Answer.REJECT, Answer.UNDECIDED, Answer.KEEP)


class Case(Value, frozen=True, kw_only=True):
    """What a verdict is about: plans that were priced, and what fits."""

    load: Load
    forecasts: tuple[Forecast, ...]
    """One GPU, replicas, and splits in each arm, where they fit and can be priced."""
    fits: tuple[Fit, ...]
    gain_error: float
    min_gain: float = MIN_GAIN
    unpriced: tuple[str, ...] = ()
    """Plans that fit but could not be priced, and why."""


def decide(case: Case) -> Verdict:
    """The verdict of a case. Every split gets an answer of its own, the case gets the best."""
    plans = tuple(_judge(forecast, case) for forecast in case.forecasts if _is_split(forecast.plan))
    kept = [one for one in plans if one.answer is Answer.KEEP]
    open_ones = [one for one in plans if one.answer is Answer.UNDECIDED]
    chosen = _choose(case, [one.plan for one in kept])
    overall = Answer.KEEP if kept else Answer.UNDECIDED if open_ones else Answer.REJECT
    return Verdict(
        load=case.load,
        answer=overall,
        plan=None if chosen is None else chosen.plan,
        headline=_headline(overall, chosen, plans, case),
        reasons=(*_reasons(chosen, plans), *_link_reasons(case)),
        plans=plans,
        would_change=_would_change(case, plans),
        measurements=_measurements(open_ones),
    )


def _is_split(plan: Plan) -> bool:
    """Whether anything crosses: replicas that share experts are a split, not a baseline."""
    return plan.split.tp * plan.split.pp * plan.split.ep > 1


def _judge(forecast: Forecast, case: Case) -> PlanVerdict:
    comparisons = [
        _compare(aim, forecast, baseline, case) for aim, baseline in _baselines(forecast, case)
    ]
    capacity = _capacity(forecast, case)
    if capacity is not None:
        comparisons.append(capacity)
    weakest = min(
        (one.answer for one in comparisons), key=_WEAKEST_FIRST.index, default=Answer.UNDECIDED
    )
    return PlanVerdict(
        plan=forecast.plan,
        answer=weakest,
        reasons=tuple(reason for one in comparisons for reason in one.reasons),
        comparisons=tuple(comparisons),
    )


def _baselines(forecast: Forecast, case: Case) -> list[tuple[Aim, Forecast]]:
    """The best plan on fewer GPUs for latency, replicas on as many for throughput."""
    mine = forecast.plan
    same_arm = [one for one in case.forecasts if one.plan.arm in (None, mine.arm)]
    smaller = [one for one in same_arm if one.plan.split.gpus < mine.split.gpus]
    replicas = [
        one
        for one in same_arm
        if one.plan.split.replicas > mine.split.replicas
        and one.plan.split.ep == 1
        and one.plan.split.gpus == mine.split.gpus
        and one.plan.split.replicas <= case.load.concurrency
    ]
    found = []
    if smaller:
        found.append((Aim.LATENCY, min(smaller, key=_time)))
    if replicas:
        found.append((Aim.THROUGHPUT, min(replicas, key=_time)))
    return found


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
        reasons=(_gain_reason(aim, forecast, baseline, gain, found, case.min_gain),),
    )


def _gain_reason(
    aim: Aim,
    forecast: Forecast,
    baseline: Forecast,
    gain: Estimate,
    found: Answer,
    min_gain: float,
) -> Reason:
    name = baseline.plan.name
    figures = f"~{gain.value:.2f}x ({gain.low:.2f}-{gain.high:.2f})"
    calls = (
        f"a call takes ~{format_time(forecast.latency_s.value)} against "
        f"~{format_time(baseline.latency_s.value)}"
    )
    what = "the speed" if aim is Aim.LATENCY else "the throughput"
    if found is Answer.KEEP:
        code = "faster" if aim is Aim.LATENCY else "more-throughput"
        text = f"{forecast.plan.name} has {figures} {what} of {name}: {calls}."
    elif gain.high < 1 and aim is Aim.LATENCY:
        code = "second-gpu-slower"
        text = f"{forecast.plan.name} is slower than {name}, {figures} its speed: {calls}."
    elif found is Answer.REJECT and gain.value < 1:
        code = "replicas-better" if aim is Aim.THROUGHPUT else "gain-too-small"
        text = f"{forecast.plan.name} has only {figures} {what} of {name}: {calls}."
    elif found is Answer.REJECT:
        code = "gain-too-small"
        text = (
            f"{forecast.plan.name} gains less than {min_gain:.0%} over {name}, "
            f"{figures} {what}: {calls}."
        )
    else:
        code = "within-error"
        text = (
            f"Whether {forecast.plan.name} gains {min_gain:.0%} over {name} is inside the error, "
            f"{figures} {what}: {calls}."
        )
    return Reason(
        code=code,
        text=text,
        figures=(_figure(gain),),
        record_ids=tuple(dict.fromkeys((*forecast.record_ids, *baseline.record_ids))),
    )


def _figure(gain: Estimate) -> Figure:
    return Figure(
        value=gain.value,
        unit="x",
        provenance=Provenance.CALIBRATED,
        low=gain.low,
        high=gain.high,
        basis="predicted: calls of both plans, shared errors left out",
    )


def _fit_of(plan: Plan, case: Case) -> Fit | None:
    return next((fit for fit in case.fits if fit.split == plan.split), None)


def _capacity(forecast: Forecast, case: Case) -> Comparison | None:
    """A split that holds what no smaller plan holds is kept for that; None where one does."""
    smaller = [fit for fit in case.fits if fit.split.gpus < forecast.plan.split.gpus]
    if not smaller or any(_holds_all(fit, case.load) for fit in smaller):
        return None
    fullest = max(smaller, key=lambda fit: (fit.largest_batch or 0, fit.split.gpus))
    placement = forecast.plan.placement
    return Comparison(
        aim=Aim.CAPACITY,
        plan=forecast.plan,
        baseline=Plan(
            split=fullest.split,
            placement=Placement(gpus=placement.gpus[: fullest.split.gpus]),
            arm=None,
        ),
        gain=None,
        answer=Answer.KEEP,
        reasons=(Reason(code="capacity-only", text=_capacity_text(forecast.plan, fullest, case)),),
    )


def _holds_all(fit: Fit, load: Load) -> bool:
    """Whether the whole load is in memory at once; None stands for no limit."""
    return fit.fits and (fit.largest_batch is None or fit.largest_batch >= load.concurrency)


def _capacity_text(plan: Plan, fullest: Fit, case: Case) -> str:
    if fullest.fits:
        return (
            f"{plan.split.name} holds all {case.load.concurrency:,} sequences at once; "
            f"{fullest.split.name} holds {fullest.largest_batch:,}, the rest would wait."
        )
    mine = _fit_of(plan, case)
    tokens = mine.kv_tokens if mine is not None else None
    room = f" and leaves room for {tokens:,} tokens of cache" if tokens is not None else ""
    return f"{plan.split.name} fits{room}; {fullest.split.name} does not: {fullest.reason}"


def _choose(case: Case, kept: list[Plan]) -> Forecast | None:
    """The fastest of the kept plans; without one the fastest baseline."""
    wanted = [one for one in case.forecasts if one.plan in kept] or [
        one for one in case.forecasts if not _is_split(one.plan)
    ]
    return min(wanted, key=_time, default=None)


def _headline(
    overall: Answer, chosen: Forecast | None, plans: tuple[PlanVerdict, ...], case: Case
) -> str:
    load = case.load
    where = f"{load.prompt_tokens:,} in, {load.output_tokens:,} out, {load.concurrency} at once"
    if chosen is None:
        reason = next((fit.reason for fit in case.fits if not fit.fits), "no plan could be priced")
        return f"{where}: nothing here runs it. {reason}"
    name = chosen.plan.name
    match overall:
        case Answer.KEEP:
            arms = [one.plan.name for one in plans if one.answer is Answer.KEEP]
            return f"{where}: keep {name}. Kept: {'; '.join(arms)}."
        case Answer.REJECT:
            return f"{where}: do not split; run {name}."
        case Answer.UNDECIDED:
            arms = [one.plan.name for one in plans if one.answer is Answer.UNDECIDED]
            return f"{where}: undecided between {name} and {'; '.join(arms)}."


def _reasons(chosen: Forecast | None, plans: tuple[PlanVerdict, ...]) -> tuple[Reason, ...]:
    """Those of the chosen split first; of the rest, each plan's decisive one."""
    mine = [one for one in plans if chosen is not None and one.plan == chosen.plan]
    rest = [one for one in plans if one not in mine]
    found = [reason for one in mine for reason in one.reasons]
    found += [reason for one in rest for reason in one.reasons if reason.code != "capacity-only"]
    return tuple(dict.fromkeys(found))


def _link_reasons(case: Case) -> tuple[Reason, ...]:
    """What the direct link is worth: the same split with and without it."""
    found = []
    for direct in case.forecasts:
        staged = _in_arm(case, direct.plan, Arm.STAGED)
        if direct.plan.arm is not Arm.P2P or staged is None:
            continue
        gain = time_gain(direct, staged, 0.0)
        figures = f"~{gain.value:.2f}x ({gain.low:.2f}-{gain.high:.2f})"
        name = direct.plan.split.name
        if gain.high < 1 + case.min_gain:
            code = "link-does-not-matter"
            text = f"The direct link does not matter here: with it {name} has {figures} the speed."
        elif gain.low >= 1 + case.min_gain:
            code = "link-matters"
            text = f"The direct link matters: {name} has {figures} the speed it has when staged."
        else:
            code = "link-unclear"
            text = f"Whether the direct link matters for {name} is inside the error: {figures}."
        ids = dict.fromkeys((*direct.record_ids, *staged.record_ids))
        found.append(Reason(code=code, text=text, figures=(_figure(gain),), record_ids=tuple(ids)))
    return tuple(found)


def _in_arm(case: Case, plan: Plan, arm: Arm) -> Forecast | None:
    return next(
        (one for one in case.forecasts if one.plan.split == plan.split and one.plan.arm is arm),
        None,
    )


def _would_change(case: Case, plans: tuple[PlanVerdict, ...]) -> tuple[str, ...]:
    found = []
    for one in plans:
        for comparison in one.comparisons:
            if comparison.answer is Answer.UNDECIDED and comparison.gain is not None:
                found.append(
                    f"A measured gain of {one.plan.name} over {comparison.baseline.name} "
                    f"outside {comparison.gain.low:.2f}-{comparison.gain.high:.2f}x settles it."
                )
    found.extend(case.unpriced)
    return tuple(found)


def _measurements(open_ones: list[PlanVerdict]) -> tuple[Measurement, ...]:
    found = []
    for one in open_ones:
        for comparison in one.comparisons:
            if comparison.answer is Answer.UNDECIDED:
                found.append(
                    Measurement(
                        what=f"One run each of {one.plan.name} and {comparison.baseline.name} "
                        "at this load on this machine",
                        command="linkbound predict --score RUNS.jsonl",
                        why=f"The {comparison.aim.value} comparison is inside the error of the "
                        "prediction; a measured pair of runs has a spread of a few percent.",
                    )
                )
    return tuple(found)
