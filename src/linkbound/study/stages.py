"""The stages of a study in order: each reads records of earlier ones and appends its own (E1).

A stage that the study already holds for the same inputs is not run again.
"""

from collections.abc import Callable, Mapping

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record, Stated, canonical_json
from linkbound.model.read_model import read_model
from linkbound.model.types import Load, ModelShape
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.plans import candidate_splits
from linkbound.splits.crossings import crossings
from linkbound.splits.fit import fit_machine
from linkbound.splits.types import Phase
from linkbound.study.calibrating import append_calibration, taught_by
from linkbound.study.importing import import_links, import_topology
from linkbound.study.importing_runs import import_runs
from linkbound.study.live_links import measure_links
from linkbound.study.markers import (
    Stage,
    StageKey,
    inputs_of,
    is_held,
    machine_inputs,
    machine_key,
    mark,
)
from linkbound.study.predicting import predict_all
from linkbound.study.profiles import effect_records
from linkbound.study.reading import read_access, read_machine_record, read_shape
from linkbound.study.scoring import score_own
from linkbound.study.sources import Sources, read_recorded
from linkbound.study.verdicts import judge_all
from linkbound.values import Value
from linkbound.verdict.compare import MIN_GAIN

DEFAULT_LOADS = (
    Load(prompt_tokens=1024, output_tokens=256, concurrency=1),
    Load(prompt_tokens=1024, output_tokens=256, concurrency=32),
)


class Request(Value, frozen=True, kw_only=True):
    """What a study is asked."""

    model: str
    shape: ModelShape
    sources: Sources
    loads: tuple[Load, ...] = DEFAULT_LOADS
    min_gain: float = MIN_GAIN


Progress = Callable[[Stage, bool], None]
"""Called when a stage starts; the flag says that it was already there."""


def request(
    model: str,
    sources: Sources,
    loads: tuple[Load, ...] = DEFAULT_LOADS,
    overrides: Mapping[str, str] | None = None,
    min_gain: float = MIN_GAIN,
) -> Request:
    """A request with its model read. Raises InputError or ModelRefused."""
    shape = read_model(model, overrides or {})
    return Request(model=model, shape=shape, sources=sources, loads=loads, min_gain=min_gain)


def prepare(study: Study, sources: Sources) -> None:
    """Everything that predictions on this machine rest on: map, links, runs, constants."""
    run_machine_stages(study, sources)
    append_calibration(study, sources, read_machine_record(study, sources.name))


def prepare_model(study: Study, asked: Request) -> None:
    """What predictions of the asked model rest on."""
    prepare(study, asked.sources)
    _model(study, asked)


def run_stages(
    study: Study, asked: Request, progress: Progress, until: Stage = Stage.VERDICT
) -> None:
    """Run every stage up to and including `until`, those that are missing. Raises StudyError."""
    for stage in Stage:
        key = _key(study, stage, asked)
        held = is_held(study, key)
        progress(stage, held)
        if not held:
            if stage in _MACHINE_STAGES:
                final = _MACHINE_STAGES[stage](study, asked.sources)
            else:
                _MODEL_STAGES[stage](study, asked)
                final = stage not in _ON_LINKS or _has_links(study, asked.sources)
            if final:
                mark(study, key)
        if stage is until:
            break


def run_machine_stages(study: Study, sources: Sources) -> None:
    """Run the stages that need no model: what is wired, its links, its engine runs."""
    for stage, run in _MACHINE_STAGES.items():
        key = machine_key(stage, sources)
        if not is_held(study, key) and run(study, sources):
            mark(study, key)


def _has_links(study: Study, sources: Sources) -> bool:
    """Whether the links stage is complete: what rests on links is made again once it is."""
    return is_held(study, machine_key(Stage.LINKS, sources))


def _key(study: Study, stage: Stage, asked: Request) -> StageKey:
    if stage in _MACHINE_STAGES:
        return machine_key(stage, asked.sources)
    shape = msgspec.to_builtins(asked.shape)
    if stage is Stage.MODEL:
        return StageKey(stage=stage, scope={"model": asked.model}, inputs=inputs_of(shape))
    parts = [machine_inputs(asked.sources), shape]
    if stage is Stage.VERDICT:
        parts.append(asked.min_gain)
    taught = taught_by(study, asked.sources.name) if stage in _ON_LINKS else ()
    profiled = _profiled_by(study, asked) if stage is Stage.VERDICT else ()
    return StageKey(
        stage=stage,
        scope={
            "machine": asked.sources.name,
            "model": asked.model,
            # What rests on constants is made again once scores or other runs have moved them.
            **({"taught_by": inputs_of(taught)} if taught else {}),
            # A verdict shows what profiles measured: it is made again after each.
            **({"profiled_by": inputs_of(profiled)} if profiled else {}),
        },
        inputs=inputs_of(parts),
        loads=asked.loads,
    )


def _profiled_by(study: Study, asked: Request) -> tuple[str, ...]:
    """Records of profiles that a verdict shows."""
    held = read_machine_record(study, asked.sources.name)
    return tuple(one.id for one in effect_records(study, held, asked.shape))


def _topology(study: Study, sources: Sources) -> bool:
    import_topology(study, sources)
    return True


def _links(study: Study, sources: Sources) -> bool:
    import_links(study, sources, _machine_id(study, sources.name))
    return sources.live is None or measure_links(study, sources)


def _model(study: Study, asked: Request) -> None:
    study.append(
        Record(
            kind="model.shape",
            subject={"model": asked.model},
            outcome=Stated(values={"shape": msgspec.to_builtins(asked.shape)}),
            method="linkbound.model.read_model",
            blobs=(study.add_blob(canonical_json(asked.shape)),),
        )
    )


def _splits(study: Study, asked: Request) -> None:
    held = read_machine_record(study, asked.sources.name)
    model, shape = read_shape(study, asked.model)
    excluded = excluded_gpus(held.machine, read_access(study, held.name))
    parents = (held.record_id, model.id)
    records = []
    for load in asked.loads:
        for split in candidate_splits(held.machine, shape, excluded):
            fit = fit_machine(shape, split, held.machine, load, excluded=excluded)
            subject = {"machine": held.name, "model": asked.model, "split": split.name}
            load_subject = msgspec.to_builtins(load)
            records.append(
                Record(
                    kind="splits.fit",
                    subject={**subject, **load_subject},
                    outcome=Derived(values={"fit": msgspec.to_builtins(fit)}),
                    method="linkbound.splits.fit_machine",
                    machine=held.fingerprint.id,
                    parents=parents,
                )
            )
            found = [
                *crossings(shape, split, Phase.PREFILL, load.prompt_tokens, 1),
                *crossings(shape, split, Phase.DECODE, load.concurrency, load.concurrency),
            ]
            records.append(
                Record(
                    kind="splits.crossings",
                    subject={**subject, **load_subject},
                    outcome=Derived(
                        values={
                            "split": msgspec.to_builtins(split),
                            "crossings": msgspec.to_builtins(found),
                        }
                    ),
                    method="linkbound.splits.crossings",
                    parents=(model.id,),
                )
            )
    study.append_many(records)


def _serve(study: Study, sources: Sources) -> bool:
    """Engine runs of this machine, and of the recorded one that constants are carried from."""
    import_runs(study, sources, _machine_id(study, sources.name))
    if sources.engine_from is not None:
        other = read_recorded(sources.engine_from)
        import_topology(study, other)
        machine_id = _machine_id(study, other.name)
        import_links(study, other, machine_id)
        import_runs(study, other, machine_id)
    return True


def _predict(study: Study, asked: Request) -> None:
    append_calibration(study, asked.sources, read_machine_record(study, asked.sources.name))
    predict_all(study, asked.sources, asked.model, asked.loads)
    score_own(study, asked.sources)


def _verdict(study: Study, asked: Request) -> None:
    judge_all(study, asked.sources.name, asked.model, asked.loads, asked.min_gain)


def _machine_id(study: Study, name: str) -> str:
    return read_machine_record(study, name).fingerprint.id


_ON_LINKS = frozenset({Stage.PREDICT, Stage.VERDICT})
_MACHINE_STAGES: Mapping[Stage, Callable[[Study, Sources], bool]] = {
    Stage.TOPOLOGY: _topology,
    Stage.LINKS: _links,
    Stage.SERVE: _serve,
}
"""Each says whether it is complete; one that is not runs again next time."""
_MODEL_STAGES: Mapping[Stage, Callable[[Study, Request], None]] = {
    Stage.MODEL: _model,
    Stage.SPLITS: _splits,
    Stage.PREDICT: _predict,
    Stage.VERDICT: _verdict,
}
