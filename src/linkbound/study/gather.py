"""A study's records to a Report: nothing is measured or predicted here (E2)."""

import platform
from typing import Any

import msgspec

from linkbound import __version__
from linkbound.evidence.study import Study
from linkbound.evidence.types import (
    Derived,
    Failed,
    Finding,
    Level,
    Measured,
    Predicted,
    Provenance,
    Record,
    Severity,
    Skipped,
    Stated,
)
from linkbound.links import fit
from linkbound.model.types import Load, ModelShape
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.score_types import Score
from linkbound.report.types import (
    CurveShown,
    Evidence,
    LoadShown,
    MapShown,
    Report,
    SplitShown,
)
from linkbound.serve import VLLM
from linkbound.splits.types import Crossing, Split
from linkbound.study.commands import command_lines
from linkbound.study.faults import read_findings
from linkbound.study.latest import latest, latest_forecasts
from linkbound.study.markers import Stage
from linkbound.study.profiles import read_profile
from linkbound.study.reading import (
    MachineRead,
    MapRead,
    convert,
    read_access,
    read_calibration,
    read_curves,
    read_fit,
    read_fits,
    read_latencies,
    read_machine_record,
    read_priced_curves,
    read_rates,
    read_shape,
    read_verdicts,
    values_of,
)
from linkbound.verdict.words import load_text


def gather(study: Study, machine: str, model: str, loads: tuple[Load, ...]) -> Report:
    """Everything the study holds of this machine, model and loads."""
    held = read_machine_record(study, machine)
    model_record, shape = read_shape(study, model)
    scope = {"machine": machine, "model": model}
    fits = read_fits(study, **scope)
    calibration_record, calibration = read_calibration(study, machine)
    access = read_access(study, machine)
    excluded = excluded_gpus(held.machine, access)
    first = [one for one in fits if _is_load(one[0], loads[-1])]
    left = _names_left_out(study, scope)
    first = [(record, fit) for record, fit in first if fit.split.name not in left]
    scores = study.find("predict.score", machine=machine)
    shown = tuple(_load(study, load, scope) for load in loads)
    return Report(
        machine_name=machine,
        recorded=held.recorded,
        machine_note=_note(held),
        machine=held.machine,
        fingerprint=held.fingerprint,
        machine_record_ids=(held.record_id,),
        shape=shape,
        model_record_ids=(model_record.id,),
        engine=f"{VLLM.engine}, {VLLM.source}",
        excluded=excluded,
        curves=_curves(study, machine),
        pair_rates=read_rates(study, machine),
        pair_latencies=read_latencies(study, machine),
        link_record_ids=tuple(
            record.id
            for kind in ("links.rates", "links.latencies")
            for record in study.find(kind, machine=machine)
        ),
        fits=tuple(fit for _, fit in first),
        fit_record_ids=tuple(record.id for record, _ in first),
        splits=tuple(one for one in _splits(study, scope, loads) if one.split.name not in left),
        calibration=msgspec.structs.replace(calibration, record_ids=(calibration_record.id,)),
        loads=shown,
        maps=tuple(
            MapShown(plan=found.plan, cells=found.cells, record_ids=(record.id,))
            for record in latest(study, "predict.map", **scope)
            for found in (convert(record, "map", MapRead),)
        ),
        score=convert(scores[-1], "score", Score) if scores else None,
        score_record_ids=tuple(record.id for record in scores[-1:]),
        profile=read_profile(study, held, shape),
        findings=(*read_findings(study, machine), *_findings(held, excluded)),
        not_known=_not_known(study, held),
        commands=_commands(held, shape, shown),
        study_path=study.path.name,
        evidence=tuple(_evidence(record) for record in study.records()),
        versions={"linkbound": __version__, "python": platform.python_version()},
    )


def _is_load(record: Record, load: Load) -> bool:
    return all(record.subject.get(name) == getattr(load, name) for name in Load.__struct_fields__)


def _note(held: MachineRead) -> str:
    if not held.recorded:
        return f"Measured on this host: {held.note}."
    return f"All figures are from a recorded machine, not from this host. {held.note}."


def _curves(study: Study, machine: str) -> tuple[CurveShown, ...]:
    measured = [(curve, read_fit(study, curve)) for curve in read_curves(study, machine)]
    priced = [
        (curve, fit(curve))
        for curve in read_priced_curves(study, machine)
        if curve.provenance is not Provenance.MEASURED
    ]
    return tuple(
        CurveShown(curve=curve, fit=fitted, record_ids=curve.record_ids)
        for curve, fitted in (*measured, *priced)
    )


def _splits(study: Study, scope: dict[str, Any], loads: tuple[Load, ...]) -> tuple[SplitShown, ...]:
    return tuple(
        SplitShown(
            split=convert(record, "split", Split),
            load=load,
            crossings=convert(record, "crossings", tuple[Crossing, ...]),
            record_ids=(record.id,),
        )
        for load in loads
        for record in study.find("splits.crossings", **scope)
        if _is_load(record, load)
    )


def _load(study: Study, load: Load, scope: dict[str, Any]) -> LoadShown:
    subject = {**scope, **msgspec.to_builtins(load)}
    calls = latest_forecasts(study, **subject)
    record, verdict = read_verdicts(study, **subject)[-1]
    return LoadShown(
        load=load,
        forecasts=tuple(
            msgspec.structs.replace(found, record_ids=(call.id,)) for call, found in calls
        ),
        verdict=verdict,
        record_ids=(record.id, *(call.id for call, _ in calls)),
    )


def _findings(held: MachineRead, excluded: Any) -> tuple[Finding, ...]:
    found = [
        Finding(
            code="sources-disagree",
            level=Level.SEEN,
            severity=Severity.WARNING,
            seen=f"{one.what}: "
            + "; ".join(f"{claim.source} says {claim.value}" for claim in one.claims),
            why="Two sources of one machine contradict each other.",
            remedy="Both are kept; the first is used. Check it on the machine.",
            record_ids=(held.record_id,),
        )
        for one in held.machine.contradictions
    ]
    found += [
        Finding(
            code="gpu-excluded",
            level=Level.SEEN,
            severity=Severity.WARNING,
            seen=reason,
            why="A split with it would wait for it in every layer, or cross without peer access.",
            remedy="Use the others together; give this one a model of its own.",
            record_ids=(held.record_id,),
        )
        for reason in excluded.values()
    ]
    return tuple(found)


def _unknown(notes: tuple[str, ...]) -> list[str]:
    """Notes on what a source leaves open; NCCL's own graphs are choices of NCCL, not gaps."""
    return [note for note in notes if not note.startswith("Graph ")]


def _not_known(study: Study, held: MachineRead) -> tuple[str, ...]:
    unread = [
        record.outcome.reason.text
        for record in study.find("study.unread", machine=held.name)
        if isinstance(record.outcome, Failed)
    ]
    waived = [
        record.outcome.reason.text
        for record in study.find("links.waived", machine=held.name)
        if isinstance(record.outcome, Failed)
    ]
    skipped = [
        record.outcome.reason.text
        for record in latest(study, "predict.call", machine=held.name)
        if isinstance(record.outcome, Skipped)
    ]
    # A later run may have measured what an earlier one could not.
    measured = study.find("study.stage", stage=Stage.LINKS.value, machine=held.name)
    unmeasured = [
        record.outcome.reason.text
        for record in study.find("links.skipped", machine=held.name)
        if isinstance(record.outcome, Skipped) and not measured
    ]
    left = _left_out(study, held)
    return tuple(
        dict.fromkeys(
            (*_unknown(held.machine.notes), *unmeasured, *waived, *skipped, *left, *unread)
        )
    )


def _names_left_out(study: Study, scope: dict[str, Any]) -> frozenset[str]:
    """Splits that were priced and judged under no load: what they hold and send is not shown."""
    left = latest(study, "predict.left_out", **scope)
    judged = {str(one.subject["split"]) for one in latest(study, "predict.call", **scope)}
    names = {name for record in left for name in values_of(record)["splits"]}
    return frozenset(names - judged)


def _left_out(study: Study, held: MachineRead) -> list[str]:
    """Plans that were priced and not judged, a sentence a load."""
    found = []
    for record in latest(study, "predict.left_out", machine=held.name):
        load = Load(**{name: record.subject[name] for name in Load.__struct_fields__})
        names = values_of(record)["splits"]
        found.append(
            f"{load_text(load)}: {len(names)} splits are not judged, since others on as many GPUs "
            f"or on fewer are faster: {', '.join(names)}."
        )
    return found


def _commands(
    held: MachineRead, shape: ModelShape, shown: tuple[LoadShown, ...]
) -> tuple[str, ...]:
    """How to run the plan of each verdict with vLLM, guards against multicast included."""
    lines = (
        line
        for one in shown
        if one.verdict.plan is not None
        for line in command_lines(
            held.machine,
            one.verdict.plan,
            VLLM.engine,
            one.load,
            limit=VLLM.max_sequences,
            longest=shape.max_context,
        )
    )
    return tuple(dict.fromkeys(lines))


def _evidence(record: Record) -> Evidence:
    return Evidence(
        id=record.id,
        kind=record.kind,
        subject={name: _word(value) for name, value in record.subject.items() if value is not None},
        outcome=type(record.outcome).__name__.lower(),
        method=record.method,
        summary=_summary(record),
        parents=record.parents,
    )


def _word(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _summary(record: Record) -> str:
    match record.outcome:
        case Predicted(value=value, low=low, high=high, basis=basis):
            return f"{value:.6g} ({low:.6g}-{high:.6g}): {basis}"
        case Skipped(reason=reason) | Failed(reason=reason):
            return reason.text
        case Measured(values=values) | Stated(values=values) | Derived(values=values):
            rows = "" if record.samples is None else f", {len(record.samples.rows)} samples"
            return ", ".join(values) + rows
