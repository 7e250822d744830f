"""A runs file predicted first, read second: no measured field is seen before (E3)."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record
from linkbound.predict.calibrate import split_of
from linkbound.predict.points import Prediction, observation
from linkbound.predict.score import score
from linkbound.predict.score_types import Score
from linkbound.serve import parse_runs
from linkbound.study.points import predict_points
from linkbound.study.reading import read_calibration, read_run_shapes
from linkbound.study.runs_files import Shapes, read_runs_file, shapes_beside
from linkbound.study.sources import Sources


def score_file(study: Study, sources: Sources, path: Path) -> Score:
    """Score the predictions of a runs file. The study must hold the machine and its constants."""
    data = read_runs_file(path)
    return score_runs(study, sources, path.name, data, shapes_beside(path, data))


def score_own(study: Study, sources: Sources) -> None:
    """Score the predictions of the machine's own runs, where some calibrated nothing."""
    for named in sources.runs:
        data = next(file.data for file in sources.files if file.name == named.file)
        if any(run.tag not in named.calibrate for run in parse_runs(data, named.file)):
            shapes = read_run_shapes(study, sources.name)
            score_runs(study, sources, named.file, data, shapes)


def score_runs(study: Study, sources: Sources, name: str, data: bytes, shapes: Shapes) -> Score:
    """Predict every point of the runs, then read what was measured; a record of both."""
    fixed = predict_points(study, sources, name, data, shapes)
    runs = {run.line: run for run in parse_runs(data, name)}
    pairs = [
        (prediction, observation(runs[line]))
        for line, prediction in fixed.predictions.items()
        if line in runs
    ]
    unmeasured = tuple(
        f"line {line}, {split_of(one.spec).name}: it has no time."
        for line, one in fixed.predictions.items()
        if line not in runs
    )
    found = score(pairs, (*fixed.skipped, *unmeasured))
    calibration, _ = read_calibration(study, sources.name)
    study.append(
        score_record(
            {"machine": sources.name, "file": name},
            fixed.predictions.values(),
            found,
            machine=calibration.machine,
            parents=(calibration.id,),
            blobs=(study.add_blob(data),),
        )
    )
    return found


def score_record(
    subject: dict[str, str],
    predictions: Iterable[Prediction],
    found: Score,
    *,
    machine: str | None,
    parents: tuple[str, ...],
    blobs: tuple[str, ...],
) -> Record:
    """A score with the predictions that it is of."""
    return Record(
        kind="predict.score",
        subject=subject,
        outcome=Derived(
            values={
                "predictions": msgspec.to_builtins(tuple(predictions)),
                "score": msgspec.to_builtins(found),
            }
        ),
        method="linkbound.predict.score",
        machine=machine,
        parents=parents,
        blobs=blobs,
    )
