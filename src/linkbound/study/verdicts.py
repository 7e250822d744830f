"""The verdict stage: one verdict a load, resting on the calls it compares (D1-D3)."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record
from linkbound.links import Arm, Operation
from linkbound.model.types import Load
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.forecast import forecast
from linkbound.predict.kernels import KernelBook, kernels_timed
from linkbound.predict.pricing import NoForecast
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Forecast, Plan, PlanKey
from linkbound.study.cases import StudiedCase, cases
from linkbound.study.profiles import read_profiled
from linkbound.study.reading import MachineRead, read_access, read_machine_record, read_shape
from linkbound.verdict.attribution import staging_share
from linkbound.verdict.break_even import break_even
from linkbound.verdict.decide import WEAKEST_FIRST, Case, decide
from linkbound.verdict.link_gain import link_gain
from linkbound.verdict.other_order import best_order
from linkbound.verdict.profiled import profiled_reasons
from linkbound.verdict.proposals import LINK_BOUND, link_share, proposals
from linkbound.verdict.slow_member import slow_member
from linkbound.verdict.types import PlanVerdict, Reason, Verdict

_RATE_KINDS = ("links.rates", "links.latencies")


def judge_all(
    study: Study, machine: str, model: str, loads: Iterable[Load], min_gain: float
) -> None:
    """A record of the verdict for each load."""
    held = read_machine_record(study, machine)
    profiled = read_profiled(study, held, read_shape(study, model)[1])
    for one in cases(study, machine, model, loads, min_gain):
        case = one.case
        verdict = with_break_even(judge(one), case, one.engine)
        link = _link_reason(study, held, one.engine)
        beside = (*profiled_reasons(case.load, profiled), *(() if link is None else (link,)))
        verdict = msgspec.structs.replace(verdict, reasons=(*verdict.reasons, *beside))
        study.append(
            Record(
                kind="verdict.load",
                subject={"machine": machine, "model": model, **msgspec.to_builtins(case.load)},
                outcome=Derived(values={"verdict": msgspec.to_builtins(verdict)}),
                method="linkbound.verdict.decide",
                machine=held.fingerprint.id,
                parents=one.records,
            )
        )


def judge(one: StudiedCase) -> Verdict:
    """The verdict of a case, with what its links do to plans and what to try instead."""
    case = one.case
    verdict = decide(case)
    mine = {plan.plan.key: tuple(_of_plan(one, plan.plan)) for plan in verdict.plans}
    plans = tuple(
        msgspec.structs.replace(plan, reasons=(*plan.reasons, *mine[plan.plan.key]))
        for plan in verdict.plans
    )
    added = [reason for reasons in mine.values() for reason in reasons]
    shares = [found for found in map(staging_share, *_in_both_arms(case)) if found is not None]
    tried = proposals(case, one.held.machine, _others(one))
    reasons = dict.fromkeys((*verdict.reasons, *added, *shares, *tried))
    return msgspec.structs.replace(verdict, plans=plans, reasons=tuple(reasons))


def _of_plan(one: StudiedCase, plan: Plan) -> Iterator[Reason]:
    """What is wrong with the links of one plan."""
    labels = [one.case.labels[key] for key in plan.placement.gpus]
    slow = slow_member(plan, labels, one.rates, one.rate_ids)
    if slow is not None:
        yield slow
    if plan.key in one.beside:
        yield one.beside[plan.key]


def _in_both_arms(case: Case) -> tuple[list[Forecast], list[Forecast]]:
    """Splits that are priced direct and staged, and the same staged."""
    staged = {one.plan.split: one for one in case.forecasts if one.plan.arm is Arm.STAGED}
    direct = [one for one in case.forecasts if one.plan.arm is Arm.P2P and one.plan.split in staged]
    return direct, [staged[one.plan.split] for one in direct]


def _others(one: StudiedCase) -> Mapping[PlanKey, Mapping[str, Forecast]]:
    """Each link-bound split in its best order, and over the other all-reduces that were timed."""
    found: dict[PlanKey, dict[str, Forecast]] = {}
    for mine in one.case.forecasts:
        plan = mine.plan
        if plan.arm is None or link_share(mine) < LINK_BOUND:
            continue
        other = best_order(one.engine, one.tree, plan, one.case.load)
        names = {} if other is None or _same_groups(plan, other) else {"order": (one.engine, other)}
        if plan.arm is Arm.P2P and plan.split.tp > 1:
            group = tuple(one.case.labels[key] for key in plan.placement.gpus[: plan.split.tp])
            for kernel in kernels_timed(one.engine.book, group):
                names[kernel] = (one.engine.with_book(KernelBook(one.engine.book, kernel)), plan)
        found[plan.key] = {
            name: forecasted
            for name, (engine, asked) in names.items()
            for forecasted in _forecast(engine, asked, mine)
        }
    return found


def _same_groups(plan: Plan, other: Plan) -> bool:
    """Whether both put the same GPUs into the same groups, in whatever order inside them."""
    size = plan.split.tp

    def groups(gpus: tuple[str, ...]) -> list[frozenset[str]]:
        return [frozenset(gpus[at : at + size]) for at in range(0, len(gpus), size)]

    return groups(plan.placement.gpus) == groups(other.placement.gpus)


def _forecast(engine: Engine, plan: Plan, mine: Forecast) -> Iterator[Forecast]:
    try:
        found = forecast(engine, plan, mine.load)
    except NoForecast:
        return
    yield msgspec.structs.replace(found, record_ids=mine.record_ids)


def _link_reason(study: Study, held: MachineRead, engine: Engine) -> Reason | None:
    excluded = excluded_gpus(held.machine, read_access(study, held.name))
    book = engine.book
    copies = [one for one in book.curves if one.key.operation is Operation.COPY]
    ids = [one.id for kind in _RATE_KINDS for one in study.find(kind, machine=held.name)]
    return link_gain(
        tuple(gpu.label for gpu in held.machine.gpus if gpu.label not in excluded),
        book.rates,
        book.latencies,
        copies,
        tuple(ids),
    )


def with_break_even(verdict: Verdict, case: Case, engine: Engine) -> Verdict:
    """The link at which each direct split would stop to gain over what decides its answer."""
    plans = tuple(_with_break_even(one, case, engine) for one in verdict.plans)
    return msgspec.structs.replace(verdict, plans=plans)


def _with_break_even(one: PlanVerdict, case: Case, engine: Engine) -> PlanVerdict:
    baseline = _decisive_baseline(one, case)
    if one.plan.arm is not Arm.P2P or baseline is None:
        return one
    found = break_even(engine, one.plan, case.load, baseline, case.min_gain)
    if found is None or (found.bytes_per_s is None and found.latency_s is None):
        return one
    return msgspec.structs.replace(one, break_even=found)


def _decisive_baseline(one: PlanVerdict, case: Case) -> Forecast | None:
    """The baseline of the weakest comparison, of several the one over which it gains least."""
    compared = [
        (WEAKEST_FIRST.index(found.answer), found.gain.value, found.baseline)
        for found in one.comparisons
        if found.gain is not None
    ]
    if not compared:
        return None
    baseline = min(compared, key=lambda found: found[:2])[2]
    return next(found for found in case.forecasts if found.plan == baseline)
