"""Points of a runs file predicted on a machine of the study: no time is read (E3)."""

from collections.abc import Mapping

from linkbound.errors import ModelRefused
from linkbound.evidence.study import Study
from linkbound.model.derive import shape_key
from linkbound.model.types import ModelShape
from linkbound.predict.calibrate import split_of
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.points import Prediction, Seen, point_of, predict_specs
from linkbound.predict.steptime import Engine
from linkbound.serve import VLLM, RunSpec, parse_specs
from linkbound.splits.possible import impossible
from linkbound.study.calibrating import calibrating_runs
from linkbound.study.history import frozen_scores
from linkbound.study.predicting import engine_for
from linkbound.study.reading import read_access, read_machine_record, read_run_shapes
from linkbound.study.runs_files import Shapes
from linkbound.study.sources import Sources
from linkbound.values import Value


class Fixed(Value, frozen=True, kw_only=True):
    """Predictions of a runs file's points by their line, and the points without one."""

    predictions: Mapping[int, Prediction]
    skipped: tuple[str, ...]


def predict_points(study: Study, sources: Sources, name: str, data: bytes, shapes: Shapes) -> Fixed:
    """Predictions of every point that this machine and model can have; no time is read."""
    held = read_machine_record(study, sources.name)
    excluded = excluded_gpus(held.machine, read_access(study, sources.name))
    usable = len(held.machine.gpus) - len(excluded)
    specs, skipped = {}, []
    for line, _, spec in parse_specs(data, name):
        problem = _problem(shapes[spec.model], spec, usable)
        if problem is None:
            specs[line] = spec
        else:
            skipped.append(_left_out(line, spec, problem))
    engines: dict[str, Engine] = {}

    def engine_of(model: str) -> Engine:
        if model not in engines:
            shape = shapes[model]
            assert isinstance(shape, ModelShape)
            engines[model] = engine_for(study, sources.name, shape)
        return engines[model]

    found = predict_specs(tuple(specs.values()), engine_of, seen_by(study, sources), excluded)
    predictions = {}
    for (line, spec), one in zip(specs.items(), found, strict=True):
        if isinstance(one, Prediction):
            predictions[line] = one
        else:
            skipped.append(_left_out(line, spec, one.seen))
    return Fixed(predictions=predictions, skipped=tuple(skipped))


def _left_out(line: int, spec: RunSpec, problem: str) -> str:
    return f"line {line}, {split_of(spec).name}: {problem}"


def _problem(shape: ModelShape | ModelRefused, spec: RunSpec, usable: int) -> str | None:
    """Why this machine, model or engine cannot have such a point; None where it can."""
    if isinstance(shape, ModelRefused):
        return shape.seen
    if spec.engine != VLLM.engine:
        return f"the rules and constants of {spec.engine} are not known, those of vllm are."
    split = split_of(spec)
    if split.gpus > usable:
        return f"{split.gpus} GPUs are asked for, this machine has {usable} to use."
    problem = impossible(shape, split)
    return None if problem is None else problem.text


def seen_by(study: Study, sources: Sources) -> Seen:
    """Whether constants or stated errors rest on the same point of the same shape."""
    names = [sources.name, *filter(None, [sources.engine_from])]
    known = {
        (point_of(one.spec), one.shape)
        for found in frozen_scores(study, sources.name)
        for counted in [{point_of(row.spec) for row in found.score.rows if row.counts}]
        for one in found.predictions
        if point_of(one.spec) in counted
    }
    known |= {
        (point_of(run.spec), shape_key(shapes[run.spec.model]))
        for name in names
        for shapes in [read_run_shapes(study, name)]
        for _, run in calibrating_runs(study, name)
    }
    return lambda spec, shape: (point_of(spec), shape) in known
