"""The predict stage: every plan under every load, then the maps of regimes (D5)."""

from collections.abc import Collection, Iterable

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import (
    Derived,
    Outcome,
    Predicted,
    Provenance,
    Reason,
    Record,
    Skipped,
)
from linkbound.links import Arm, Curve
from linkbound.model.types import Load, ModelShape
from linkbound.predict.book import CurveBook
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.forecast import forecast
from linkbound.predict.plans import candidate_splits, plans_of
from linkbound.predict.price import price
from linkbound.predict.pricing import NoForecast
from linkbound.predict.regimes import map_curve_ids, regime_map
from linkbound.predict.shortlist import shortlist
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Forecast, Plan
from linkbound.serve import VLLM
from linkbound.splits.types import Fit, Phase, Split
from linkbound.study.importing import curve_samples
from linkbound.study.reading import (
    MachineRead,
    MapRead,
    read_access,
    read_calibration,
    read_curves,
    read_fits,
    read_latencies,
    read_machine_record,
    read_rates,
    read_shape,
)
from linkbound.study.sources import Sources

LARGE_STEP_TOKENS = VLLM.max_batched_tokens


def predict_all(study: Study, sources: Sources, model: str, loads: Iterable[Load]) -> None:
    """Records of every plan's call and of the maps. The study must hold the constants."""
    held = read_machine_record(study, sources.name)
    engine = engine_for(study, sources.name, read_shape(study, model)[1])
    excluded = excluded_gpus(held.machine, read_access(study, held.name))
    _put_records(study, engine, held, excluded)
    kept: set[Split] = set()
    for load in loads:
        subject = {"machine": held.name, "model": model, **msgspec.to_builtins(load)}
        kept |= _append_calls(study, engine, held, excluded, subject, load)
    subject = {"machine": held.name, "model": model}
    study.append_many(_maps(study, engine, held, excluded, subject, kept))


def _append_calls(
    study: Study,
    engine: Engine,
    held: MachineRead,
    excluded: Collection[str],
    subject: dict[str, object],
    load: Load,
) -> frozenset[Split]:
    """Records of the calls that are worth judging, and one of the rest; the splits of the first."""
    calls = _calls(study, engine, held, excluded, subject, load)
    forecasts = [found for _, found, _ in calls if found is not None]
    if not forecasts:
        study.append_many([record for _, _, record in calls])
        return frozenset(split for split, _, _ in calls)
    kept = shortlist(forecasts, len(held.machine.gpus) - len(excluded))
    dropped = {one.plan.split.gpus for one in forecasts} - {split.gpus for split in kept}
    study.append_many(
        [
            record
            for split, found, record in calls
            if split in kept or (found is None and split.gpus not in dropped)
        ]
    )
    left = [one for one in forecasts if one.plan.split not in kept]
    if left:
        study.append(
            Record(
                kind="predict.left_out",
                subject=subject,
                outcome=Derived(
                    values={
                        "splits": list(dict.fromkeys(one.plan.split.name for one in left)),
                        "latency_s": {one.plan.name: one.latency_s.value for one in left},
                    }
                ),
                method="linkbound.predict.shortlist",
                machine=held.fingerprint.id,
                parents=(held.record_id, *engine.calibration.record_ids),
            )
        )
    return kept


def _put_records(study: Study, engine: Engine, held: MachineRead, excluded: Iterable[str]) -> None:
    """Records of the curves that nobody measured here and that price a plan all the same."""
    names = tuple(excluded)
    for split in candidate_splits(held.machine, engine.shape, names):
        for plan in plans_of(split, held.machine, names):
            for one in engine.replicas(plan):
                _look_up(engine, held, one)
    put_curve_records(study, engine.book, held)


def put_curve_records(study: Study, book: CurveBook, held: MachineRead) -> None:
    """A record of every curve in use that nobody measured here."""
    copies = tuple(
        record.id
        for kind in ("links.rates", "links.latencies")
        for record in study.find(kind, machine=held.name)
    )
    book.put_records(lambda curve: study.append(_curve_record(curve, held, copies)))


def _look_up(engine: Engine, held: MachineRead, plan: Plan) -> None:
    """Have the book find every curve that a step of this plan can be priced by."""
    if plan.arm is None:
        return
    labels = tuple(held.machine.gpu(key).label for key in plan.placement.gpus)
    for phase, tokens in ((Phase.DECODE, 1), (Phase.PREFILL, LARGE_STEP_TOKENS)):
        price(engine.work.crossings(plan.split, phase, tokens), labels, plan.arm, engine.book)


def _curve_record(curve: Curve, held: MachineRead, copies: tuple[str, ...]) -> Record:
    """`copies` are the records that rooflines are made of; a published table rests on none here."""
    return Record(
        kind="predict.curve",
        subject={"machine": held.name, **msgspec.to_builtins(curve.key)},
        outcome=Derived(
            values={
                "source": curve.source,
                "points": len(curve.points),
                "provenance": curve.provenance.value,
            }
        ),
        method="linkbound.predict.book",
        machine=held.fingerprint.id,
        parents=copies if curve.provenance is Provenance.ROOFLINE else (),
        samples=curve_samples(curve),
    )


def book_of(study: Study, machine: str) -> CurveBook:
    """The curves of a machine in the study."""
    return CurveBook(
        read_machine_record(study, machine).machine,
        read_curves(study, machine),
        read_rates(study, machine),
        read_latencies(study, machine),
        direct_limit_bytes=VLLM.direct_all_reduce_limit_bytes,
    )


def engine_for(study: Study, machine: str, shape: ModelShape) -> Engine:
    """What plans on this machine are priced with; its constants carry their record."""
    record, found = read_calibration(study, machine)
    constants = msgspec.structs.replace(found, record_ids=(record.id,))
    return Engine(shape, book_of(study, machine), VLLM, constants)


def _calls(
    study: Study,
    engine: Engine,
    held: MachineRead,
    excluded: Collection[str],
    subject: dict[str, object],
    load: Load,
) -> list[tuple[Split, Forecast | None, Record]]:
    """A record of every plan that fits, with what it is predicted to take, if it has a price."""
    records = []
    for record, fit in read_fits(study, **subject):
        if not fit.fits:
            continue
        for plan in plans_of(fit.split, held.machine, tuple(excluded)):
            outcome, found = _call(engine, plan, load, fit)
            arm = None if plan.arm is None else plan.arm.value
            curves = () if found is None else found.curve_ids
            call = Record(
                kind="predict.call",
                subject={**subject, "split": fit.split.name, "arm": arm},
                outcome=outcome,
                method="linkbound.predict.forecast",
                machine=held.fingerprint.id,
                parents=(record.id, *engine.calibration.record_ids, *curves),
            )
            records.append((fit.split, found, call))
    return records


def _call(engine: Engine, plan: Plan, load: Load, fit: Fit) -> tuple[Outcome, Forecast | None]:
    if fit.largest_batch is not None and load.concurrency > fit.largest_batch:
        text = (
            f"{plan.name}: {load.concurrency} sequences at once do not fit, at most "
            f"~{fit.largest_batch} do; the rest would queue, which is not predicted here."
        )
        return Skipped(reason=Reason(code="does-not-fit-at-once", text=text)), None
    try:
        found = forecast(engine, plan, load)
    except NoForecast as error:
        return Skipped(reason=Reason(code="no-curve", text=str(error))), None
    return (
        Predicted(
            value=found.latency_s.value,
            low=found.latency_s.low,
            high=found.latency_s.high,
            basis="whole call in seconds: steps of the engine's scheduler, priced term by term",
            values={"forecast": msgspec.to_builtins(found)},
        ),
        found,
    )


def _maps(
    study: Study,
    engine: Engine,
    held: MachineRead,
    excluded: Iterable[str],
    subject: dict[str, object],
    kept: Collection[Split],
) -> list[Record]:
    """One map for each kept split over two ranks or more, in the direct and the staged arm."""
    names = tuple(excluded)
    fits = {fit.split: (record.id, fit) for record, fit in read_fits(study, **subject) if fit.fits}
    one_gpu = plans_of(Split(), held.machine, names)[0] if Split() in fits else None
    one_id, one_fit = fits.get(Split(), (None, None))
    records = []
    for split, (fit_id, fit) in fits.items():
        if split.replicas > 1 or split not in kept:
            continue
        for plan in plans_of(split, held.machine, names):
            if plan.arm not in (Arm.P2P, Arm.STAGED):
                continue
            try:
                cells = regime_map(engine, plan, one_gpu, fit=fit, one_fit=one_fit)
            except NoForecast:
                continue
            records.append(
                Record(
                    kind="predict.map",
                    subject={**subject, "split": split.name, "arm": plan.arm.value},
                    outcome=Derived(
                        values={"map": msgspec.to_builtins(MapRead(plan=plan, cells=cells))}
                    ),
                    method="linkbound.predict.regime_map",
                    machine=held.fingerprint.id,
                    parents=(
                        *dict.fromkeys(one for one in (fit_id, one_id) if one is not None),
                        *engine.calibration.record_ids,
                        *map_curve_ids(engine, plan),
                    ),
                )
            )
    return records
