"""A runs file predicted first, read second: no measured field is seen before (E3)."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record
from linkbound.model.parse_config import parse_config
from linkbound.model.types import ModelShape
from linkbound.predict.score import Prediction, Score, predict_specs, score
from linkbound.predict.steptime import Engine
from linkbound.serve import RunSpec, parse_runs, parse_specs
from linkbound.study.importing import import_links, import_runs, import_topology
from linkbound.study.predicting import append_calibration, engine_for
from linkbound.study.reading import read_machine_record, read_run_shapes, read_runs
from linkbound.study.sources import Sources, read_recorded


def prepare(study: Study, sources: Sources) -> None:
    """Everything that predictions on this machine rest on: map, links, runs, constants."""
    names = [sources, *_stand_in(sources)]
    for one in names:
        import_topology(study, one)
        machine_id = read_machine_record(study, one.name).fingerprint.id
        import_links(study, one, machine_id)
        import_runs(study, one, machine_id)
    append_calibration(study, sources, read_machine_record(study, sources.name))


def _stand_in(sources: Sources) -> list[Sources]:
    if sources.runs is not None or sources.engine_from is None:
        return []
    return [read_recorded(sources.engine_from)]


def score_file(study: Study, sources: Sources, path: Path) -> Score:
    """Score the predictions of a runs file. The study must be prepared for the machine."""
    data = _bytes(path)
    specs = parse_specs(data, path.name)
    shapes = _shapes(path, tuple(spec for _, _, spec in specs))
    engines: dict[str, Engine] = {}

    def engine_of(model: str) -> Engine:
        if model not in engines:
            engines[model] = engine_for(study, sources.name, shapes[model])
        return engines[model]

    predictions = predict_specs(tuple(spec for _, _, spec in specs), engine_of)
    found = score(predictions, parse_runs(data, path.name), shapes, _seen(study, sources))
    study.append(_record(study, sources, path, predictions, found))
    return found


def _seen(study: Study, sources: Sources) -> Callable[[RunSpec, ModelShape], bool]:
    """Whether a point is one that the constants were calibrated with: same shape, same point."""
    names = [sources.name, *(one.name for one in _stand_in(sources))]
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


def _shapes(path: Path, specs: tuple[RunSpec, ...]) -> dict[str, ModelShape]:
    shapes = {}
    for model in dict.fromkeys(spec.model for spec in specs):
        config = path.parent / "configs" / model / "config.json"
        if Path(model).name != model or not config.is_file():
            raise InputError(
                f"{path.name} names the model '{model}', and there is no {config}.",
                why="The shape decides the work.",
                hint="Put its config.json there.",
            )
        shapes[model] = parse_config(config.read_text(encoding="utf-8"), str(config))
    return shapes


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}.",
            why="Predictions are scored against its runs.",
            hint="Name a runs.jsonl.",
        ) from None


def _record(
    study: Study,
    sources: Sources,
    path: Path,
    predictions: tuple[Prediction, ...],
    found: Score,
) -> Record:
    calibration = study.find("predict.calibration", machine=sources.name)[-1]
    return Record(
        kind="predict.score",
        subject={"machine": sources.name, "file": path.name},
        outcome=Derived(
            values={
                "predictions": msgspec.to_builtins(predictions),
                "score": msgspec.to_builtins(found),
            }
        ),
        method="linkbound.predict.score",
        machine=calibration.machine,
        parents=(calibration.id,),
        blobs=(study.add_blob(_bytes(path)),),
    )
