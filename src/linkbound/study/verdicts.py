"""The verdict stage: one verdict a load, resting on the calls it compares (D1-D3)."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record, Skipped
from linkbound.links import Arm, Operation
from linkbound.model.types import Load
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.plans import plans_of
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Forecast
from linkbound.splits.types import Fit
from linkbound.study.faults import read_findings
from linkbound.study.latest import latest, latest_forecasts
from linkbound.study.predicting import engine_for
from linkbound.study.profiles import read_profiled
from linkbound.study.reading import (
    MachineRead,
    read_access,
    read_fits,
    read_machine_record,
    read_shape,
)
from linkbound.verdict.break_even import break_even
from linkbound.verdict.decide import WEAKEST_FIRST, Case, Unpriced, decide
from linkbound.verdict.link_gain import link_gain
from linkbound.verdict.profiled import profiled_reasons
from linkbound.verdict.types import PlanVerdict, Reason, Verdict

_RATE_KINDS = ("links.rates", "links.latencies")


def judge_all(
    study: Study, machine: str, model: str, loads: Iterable[Load], min_gain: float
) -> None:
    """A record of the verdict for each load."""
    held = read_machine_record(study, machine)
    shape = read_shape(study, model)[1]
    engine = engine_for(study, machine, shape)
    profiled = read_profiled(study, held, shape.name)
    for load in loads:
        subject = {"machine": machine, "model": model, **msgspec.to_builtins(load)}
        calls = latest_forecasts(study, **subject)
        fits = read_fits(study, **subject)
        case = Case(
            load=load,
            # A reason cites the call that holds its figures; the call leads on to the constants.
            forecasts=tuple(
                msgspec.structs.replace(found, record_ids=(record.id,)) for record, found in calls
            ),
            fits=tuple(fit for _, fit in fits),
            gain_error=engine.calibration.gain_error,
            min_gain=min_gain,
            unpriced=_unpriced(study, held, fits, subject),
            model=model,
            labels={gpu.key: gpu.label for gpu in held.machine.gpus},
            findings=read_findings(study, machine),
        )
        verdict = with_break_even(decide(case), case, engine)
        link = _link_reason(study, held, engine)
        beside = (*profiled_reasons(load, profiled), *(() if link is None else (link,)))
        verdict = msgspec.structs.replace(verdict, reasons=(*verdict.reasons, *beside))
        study.append(
            Record(
                kind="verdict.load",
                subject=subject,
                outcome=Derived(values={"verdict": msgspec.to_builtins(verdict)}),
                method="linkbound.verdict.decide",
                machine=held.fingerprint.id,
                parents=tuple(record.id for record, _ in (*calls, *fits)),
            )
        )


def _unpriced(
    study: Study,
    held: MachineRead,
    fits: Iterable[tuple[Record, Fit]],
    subject: Mapping[str, Any],
) -> tuple[Unpriced, ...]:
    """Plans that fit and whose call was skipped, with the reason."""
    excluded = excluded_gpus(held.machine, read_access(study, held.name))
    plans = {
        (plan.split.name, None if plan.arm is None else plan.arm.value): plan
        for _, fit in fits
        if fit.fits
        for plan in plans_of(fit.split, held.machine, excluded)
    }
    return tuple(
        Unpriced(
            plan=plans[record.subject["split"], record.subject["arm"]],
            reason=Reason(
                code=record.outcome.reason.code,
                text=record.outcome.reason.text,
                record_ids=(record.id,),
            ),
        )
        for record in latest(study, "predict.call", **subject)
        if isinstance(record.outcome, Skipped)
    )


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
