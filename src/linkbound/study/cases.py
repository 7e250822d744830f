"""What a verdict of a study is about: its calls, fits and faults, with what runs beside (D1)."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Record, Skipped
from linkbound.links.types import PairRate
from linkbound.model.types import Load
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.plans import plans_of
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Forecast, PlanKey
from linkbound.splits.modules import modules_of
from linkbound.splits.tree import Tree
from linkbound.splits.types import Fit
from linkbound.study.faults import read_findings
from linkbound.study.latest import latest, latest_forecasts
from linkbound.study.predicting import engine_for
from linkbound.study.reading import (
    MachineRead,
    read_access,
    read_fits,
    read_machine_record,
    read_rates,
    read_shape,
)
from linkbound.verdict.contended import shared_path, while_shared
from linkbound.verdict.decide import Case, Unpriced
from linkbound.verdict.types import Reason


class StudiedCase(NamedTuple):
    """A case with what it was made of."""

    case: Case
    engine: Engine
    held: MachineRead
    tree: Tree
    rates: tuple[PairRate, ...]
    rate_ids: tuple[str, ...]
    beside: Mapping[PlanKey, Reason]
    """Plans whose groups share a path, and what that does to their times."""
    records: tuple[str, ...]
    """Calls and fits that the case rests on."""


def cases(
    study: Study, machine: str, model: str, loads: Iterable[Load], min_gain: float
) -> tuple[StudiedCase, ...]:
    """The case of each load."""
    held = read_machine_record(study, machine)
    engine = engine_for(study, machine, read_shape(study, model)[1])
    rates = read_rates(study, machine)
    access = read_access(study, machine)
    excluded = excluded_gpus(held.machine, access)
    root = modules_of(held.machine, excluded, access, rates)
    tree = Tree(root, len(held.machine.gpus))
    rate_ids = tuple(record.id for record in study.find("links.rates", machine=machine))
    found = []
    for load in loads:
        subject = {"machine": machine, "model": model, **msgspec.to_builtins(load)}
        calls = latest_forecasts(study, **subject)
        fits = read_fits(study, **subject)
        labels = {gpu.key: gpu.label for gpu in held.machine.gpus}
        # A reason cites the call that holds its figures; the call leads on to the constants.
        forecasts = [msgspec.structs.replace(one, record_ids=(record.id,)) for record, one in calls]
        shared = [_while_shared(engine, one, labels, rates) for one in forecasts]
        found.append(
            StudiedCase(
                case=Case(
                    load=load,
                    forecasts=tuple(one for one, _ in shared),
                    fits=tuple(fit for _, fit in fits),
                    gain_error=engine.calibration.gain_error,
                    min_gain=min_gain,
                    unpriced=_unpriced(study, held, fits, subject),
                    model=model,
                    labels=labels,
                    findings=read_findings(study, machine),
                ),
                engine=engine,
                held=held,
                tree=tree,
                rates=rates,
                rate_ids=rate_ids,
                beside={one.plan.key: why for one, why in shared if why is not None},
                records=tuple(record.id for record, _ in (*calls, *fits)),
            )
        )
    return tuple(found)


def _while_shared(
    engine: Engine, forecast: Forecast, labels: Mapping[str, str], rates: tuple[PairRate, ...]
) -> tuple[Forecast, Reason | None]:
    names = [labels[key] for key in forecast.plan.placement.gpus]
    shared = None if forecast.plan.arm is None else shared_path(forecast.plan, names, rates)
    return (forecast, None) if shared is None else while_shared(engine, forecast, shared)


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
