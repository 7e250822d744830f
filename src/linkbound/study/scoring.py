"""A runs file predicted first, read second: no measured field is seen before (E3)."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record
from linkbound.model.parse_config import parse_config
from linkbound.model.types import ModelShape
from linkbound.predict.calibrate import split_of
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.score import Prediction, Score, predict_specs, score
from linkbound.predict.steptime import Engine
from linkbound.serve import RunSpec, parse_runs, parse_specs
from linkbound.serve.runs import MAX_FILE_BYTES
from linkbound.splits.possible import impossible
from linkbound.study.importing_runs import decode_config
from linkbound.study.predicting import engine_for
from linkbound.study.reading import read_access, read_machine_record, read_run_shapes, read_runs
from linkbound.study.sources import Sources


def score_file(study: Study, sources: Sources, path: Path) -> Score:
    """Score the predictions of a runs file. The study must hold the machine and its constants."""
    data = _bytes(path)
    models = tuple(spec.model for _, _, spec in parse_specs(data, path.name))
    return score_runs(study, sources, path.name, data, _shapes(path, models))


def score_own(study: Study, sources: Sources) -> None:
    """Score the predictions of the machine's own runs, where it has some."""
    if sources.runs is None:
        return
    name = sources.runs.file
    data = next(file.data for file in sources.files if file.name == name)
    score_runs(study, sources, name, data, read_run_shapes(study, sources.name))


def score_runs(
    study: Study, sources: Sources, name: str, data: bytes, shapes: Mapping[str, ModelShape]
) -> Score:
    """Predict every point of the runs, then read what was measured; a record of both."""
    held = read_machine_record(study, sources.name)
    excluded = excluded_gpus(held.machine, read_access(study, sources.name))
    usable = len(held.machine.gpus) - len(excluded)
    specs, skipped = [], []
    for line, _, spec in parse_specs(data, name):
        problem = _problem(shapes[spec.model], spec, usable)
        if problem is None:
            specs.append((line, spec))
        else:
            skipped.append(f"line {line}, {split_of(spec).name}: {problem}")
    engines: dict[str, Engine] = {}

    def engine_of(model: str) -> Engine:
        if model not in engines:
            engines[model] = engine_for(study, sources.name, shapes[model])
        return engines[model]

    predictions = predict_specs(tuple(spec for _, spec in specs), engine_of, excluded)
    lines = {line for line, _ in specs}
    runs = tuple(run for run in parse_runs(data, name) if run.line in lines)
    found = score(predictions, runs, shapes, _seen(study, sources))
    found = msgspec.structs.replace(found, skipped=tuple(skipped))
    study.append(_record(study, sources, name, data, predictions, found))
    return found


def _problem(shape: ModelShape, spec: RunSpec, usable: int) -> str | None:
    """Why this machine or this model cannot have such a point; None where it can."""
    split = split_of(spec)
    if split.gpus > usable:
        return f"{split.gpus} GPUs are asked for, this machine has {usable} to use."
    problem = impossible(shape, split)
    return None if problem is None else problem.text


def _seen(study: Study, sources: Sources) -> Callable[[RunSpec, ModelShape], bool]:
    """Whether a point is one that the constants were calibrated with: same shape, same point."""
    names = [sources.name]
    if sources.runs is None and sources.engine_from is not None:
        names.append(sources.engine_from)
    known = {
        (_point(run.spec), _size(shapes[run.spec.model]))
        for name in names
        for shapes in [read_run_shapes(study, name)]
        for record, run in read_runs(study, name)
        if record.subject["calibrates"]
    }
    return lambda spec, shape: (_point(spec), _size(shape)) in known


def _point(spec: RunSpec) -> RunSpec:
    """The point without the model's name; custom all-reduce means nothing on one GPU."""
    alone = spec.arm is None
    return msgspec.structs.replace(
        spec,
        model="",
        custom_all_reduce=alone or spec.custom_all_reduce,
        p2p_disabled=not alone and spec.p2p_disabled,
    )


def _size(shape: ModelShape) -> tuple[int, int, int, float]:
    return len(shape.layers), shape.hidden, shape.parameters, shape.weight_bytes


def _shapes(path: Path, models: tuple[str, ...]) -> dict[str, ModelShape]:
    shapes = {}
    for model in dict.fromkeys(models):
        config = path.parent / "configs" / model / "config.json"
        if Path(model).name != model or model == ".." or not _is_file(config):
            raise InputError(
                f"{path.name} names the model '{model}', and there is no {config}.",
                why="The shape decides the work.",
                hint="Put its config.json there.",
            )
        name = f"configs/{model}/config.json"
        shapes[model] = parse_config(decode_config(_bytes(config), name), name)
    return shapes


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A name too long for a file names none.
        return False


def _bytes(path: Path) -> bytes:
    """At most one byte more than a runs file may have: what is longer is refused by its reader."""
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}.",
            why="Predictions are scored against its runs.",
            hint="Name a runs.jsonl.",
        ) from None


def _record(
    study: Study,
    sources: Sources,
    file: str,
    data: bytes,
    predictions: tuple[Prediction, ...],
    found: Score,
) -> Record:
    calibration = study.find("predict.calibration", machine=sources.name)[-1]
    return Record(
        kind="predict.score",
        subject={"machine": sources.name, "file": file},
        outcome=Derived(
            values={
                "predictions": msgspec.to_builtins(predictions),
                "score": msgspec.to_builtins(found),
            }
        ),
        method="linkbound.predict.score",
        machine=calibration.machine,
        parents=(calibration.id,),
        blobs=(study.add_blob(data),),
    )
