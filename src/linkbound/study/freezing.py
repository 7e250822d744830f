"""Predictions of a study as a frozen set: a file to post, and a record of it (E3)."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from linkbound import __version__
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record
from linkbound.model.derive import shape_key
from linkbound.model.types import Load
from linkbound.predict.frozen import Frozen, FrozenContent, freeze
from linkbound.predict.load_points import LoadPrediction
from linkbound.predict.points import Metric, Prediction, spec_of
from linkbound.predict.reference import RUNTIME, predict_steps
from linkbound.predict.shards import ShardTable
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Forecast, Plan
from linkbound.serve import VLLM, RunSpec
from linkbound.serve.batch_records import model_label
from linkbound.study.latest import latest_forecasts
from linkbound.study.points import predict_points, seen_by
from linkbound.study.predicting import engine_for
from linkbound.study.profiled_shards import read_shards
from linkbound.study.reading import read_calibration, read_machine_record, read_shape
from linkbound.study.runs_files import read_runs_file, shapes_beside
from linkbound.study.sources import Sources

_INPUTS = ("links.curve", "links.rates", "links.latencies", "predict.curve")


def freeze_model(study: Study, sources: Sources, model: str, loads: Iterable[Load]) -> Frozen:
    """The calls that the study predicts, and steps of the reference runtime for the same plans."""
    engine = engine_for(study, sources.name, read_shape(study, model)[1])
    seen = seen_by(study, sources)
    shards = read_shards(study, read_machine_record(study, sources.name), engine.shape)
    predictions: list[Prediction] = []
    left_out: dict[str, None] = {}
    for load in loads:
        subject = {"machine": sources.name, "model": model, **msgspec.to_builtins(load)}
        for _, found in latest_forecasts(study, **subject):
            # The name by which runs of it are filed, also where it was given as a path.
            spec = spec_of(found.plan.split, found.plan.arm, load, model=model_label(model))
            if spec is None:
                left_out[f"{found.plan.name}: no run of one engine is asked so."] = None
                continue
            call = _call(engine, found, spec)
            predictions.append(msgspec.structs.replace(call, seen=seen(spec, call.shape)))
            predictions.append(_steps(engine, found.plan, spec, shards))
    return frozen_set(study, sources.name, predictions=_once(predictions), left_out=left_out)


def freeze_points(study: Study, sources: Sources, path: Path) -> Frozen:
    """The points of a runs file; its times, if it has any, are not read."""
    data = read_runs_file(path)
    fixed = predict_points(study, sources, path.name, data, shapes_beside(path, data))
    predictions = _once(fixed.predictions.values())
    return frozen_set(study, sources.name, predictions=predictions, left_out=fixed.skipped)


def _once(predictions: Iterable[Prediction]) -> tuple[Prediction, ...]:
    """One prediction a point: repeated rows of a file ask the same."""
    return tuple({one.spec: one for one in predictions}.values())


def _call(engine: Engine, found: Forecast, spec: RunSpec) -> Prediction:
    estimates = {Metric.PREFILL: found.ttft_s}
    if found.tpot_s is not None:
        estimates[Metric.TPOT] = found.tpot_s
    tokens = spec.prompt_tokens + spec.output_tokens
    return Prediction(
        spec=spec,
        shape=shape_key(engine.shape),
        estimates=estimates,
        unseen=engine.unseen(found.plan.split, tokens),
    )


def _steps(engine: Engine, plan: Plan, spec: RunSpec, shards: ShardTable) -> Prediction:
    asked = msgspec.structs.replace(spec, engine=RUNTIME, output_tokens=1)
    return predict_steps(engine, plan, asked, shards)


def frozen_set(
    study: Study,
    machine: str,
    *,
    predictions: tuple[Prediction, ...] = (),
    loads: tuple[LoadPrediction, ...] = (),
    left_out: Iterable[str] = (),
    also: tuple[str, ...] = (),
) -> Frozen:
    """Predictions as they stand now, with what they rest on in the study; `also` are more ids."""
    held = read_machine_record(study, machine)
    record, calibration = read_calibration(study, machine)
    curves = (one.id for kind in _INPUTS for one in study.find(kind, machine=machine))
    shards = (one for each in predictions for ids in each.shards.values() for one in ids)
    return freeze(
        FrozenContent(
            frozen=datetime.now(UTC).isoformat(),
            linkbound=__version__,
            machine=held.name,
            fingerprint=held.fingerprint,
            engine=VLLM.source,
            calibration=calibration,
            inputs=tuple(
                dict.fromkeys((held.record_id, record.id, *record.parents, *curves, *shards, *also))
            ),
            predictions=predictions,
            loads=loads,
            left_out=tuple(left_out),
        )
    )


def append_frozen(study: Study, frozen: Frozen) -> str:
    """Keep a frozen set; returns the record's id. A set that is already there is kept once."""
    held = study.find("predict.frozen", id=frozen.id)
    if held:
        return held[0].id
    return study.append(
        Record(
            kind="predict.frozen",
            subject={"machine": frozen.content.machine, "id": frozen.id},
            outcome=Derived(
                values={
                    "predictions": len(frozen.content.predictions),
                    "loads": len(frozen.content.loads),
                }
            ),
            method="linkbound.predict.freeze",
            machine=frozen.content.fingerprint.id,
            started=frozen.content.frozen,
            parents=tuple(one for one in frozen.content.inputs if study.has(one)),
            blobs=(study.add_blob(frozen.text.encode()),),
        )
    )
