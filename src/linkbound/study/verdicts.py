"""The verdict stage: one verdict a load, resting on the calls it compares (D1-D3)."""

from collections.abc import Iterable

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record, Skipped
from linkbound.links import Arm, Operation
from linkbound.model.types import Load
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Forecast
from linkbound.study.predicting import engine_for
from linkbound.study.reading import (
    MachineRead,
    read_access,
    read_fits,
    read_forecasts,
    read_machine_record,
    read_shape,
)
from linkbound.verdict.break_even import break_even
from linkbound.verdict.decide import Case, decide
from linkbound.verdict.link_gain import link_gain
from linkbound.verdict.types import PlanVerdict, Reason, Verdict

_RATE_KINDS = ("links.rates", "links.latencies")


def judge_all(
    study: Study, machine: str, model: str, loads: Iterable[Load], min_gain: float
) -> None:
    """A record of the verdict for each load."""
    held = read_machine_record(study, machine)
    engine = engine_for(study, machine, read_shape(study, model)[1])
    for load in loads:
        subject = {"machine": machine, "model": model, **msgspec.to_builtins(load)}
        calls = read_forecasts(study, **subject)
        fits = read_fits(study, **subject)
        case = Case(
            load=load,
            forecasts=tuple(found for _, found in calls),
            fits=tuple(fit for _, fit in fits),
            gain_error=engine.calibration.gain_error,
            min_gain=min_gain,
            unpriced=tuple(
                record.outcome.reason.text
                for record in study.find("predict.call", **subject)
                if isinstance(record.outcome, Skipped)
            ),
        )
        verdict = with_break_even(decide(case), case, engine)
        link = _link_reason(study, held, engine)
        if link is not None:
            verdict = msgspec.structs.replace(verdict, reasons=(*verdict.reasons, link))
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


def _link_reason(study: Study, held: MachineRead, engine: Engine) -> Reason | None:
    excluded = excluded_gpus(held.machine, read_access(study, held.name))
    book = engine.book
    copies = [one for one in book.curves if one.key.operation is Operation.COPY]
    ids = [one.id for kind in _RATE_KINDS for one in study.find(kind, machine=held.name)]
    ids += [one for curve in copies for one in curve.record_ids]
    return link_gain(
        tuple(gpu.label for gpu in held.machine.gpus if gpu.label not in excluded),
        book.rates,
        book.latencies,
        copies,
        tuple(ids),
    )


def with_break_even(verdict: Verdict, case: Case, engine: Engine) -> Verdict:
    """The link at which each direct split would stop to gain over its smaller plan."""
    plans = tuple(_with_break_even(one, case, engine) for one in verdict.plans)
    return msgspec.structs.replace(verdict, plans=plans)


def _with_break_even(one: PlanVerdict, case: Case, engine: Engine) -> PlanVerdict:
    baseline = _baseline(one, case)
    if one.plan.arm is not Arm.P2P or baseline is None:
        return one
    found = break_even(engine, one.plan, case.load, baseline, case.min_gain)
    return msgspec.structs.replace(one, break_even=found)


def _baseline(one: PlanVerdict, case: Case) -> Forecast | None:
    smaller = [
        found
        for found in case.forecasts
        if found.plan.split.gpus < one.plan.split.gpus and found.plan.arm is None
    ]
    return min(smaller, key=lambda found: found.latency_s.value, default=None)
