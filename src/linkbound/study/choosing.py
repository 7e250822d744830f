"""Engine runs chosen to calibrate: from a runs file, or from what a study measured (D5)."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from linkbound.errors import InputError, UsageError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record, canonical_json
from linkbound.model.parse_config import parse_config
from linkbound.model.read_model import read_model
from linkbound.model.types import ModelShape
from linkbound.predict.calibration import Calibration
from linkbound.serve import EngineRun, RunSpec, RunTimes, parse_runs
from linkbound.study.calibrating import (
    append_calibration,
    calibrating_runs,
    choose,
    constants_with,
)
from linkbound.study.importing_runs import append_runs, shape_record
from linkbound.study.reading import (
    MachineRead,
    convert,
    read_calibration,
    read_machine_record,
    read_run_shapes,
)
from linkbound.study.runs_files import configs_beside, read_runs_file
from linkbound.study.sources import Sources
from linkbound.study.stages import prepare
from linkbound.values import Value


class Calibrated(Value, frozen=True, kw_only=True):
    """What runs made of the constants."""

    machine: str
    recorded: bool
    before: Calibration
    after: Calibration
    runs: tuple[EngineRun, ...]
    """Those that moved the constants now."""
    used: tuple[EngineRun, ...]
    """Those that had calibrated them already: they move nothing again."""
    record_id: str


def calibrate_with(
    study: Study, sources: Sources, engine: str, path: Path | None, tags: Collection[str]
) -> Calibrated:
    """Choose runs, and calibrate the machine's constants with them; all of it is kept.

    The runs of a file, or those that the study measured; without `tags` those on one GPU. Raises
    InputError or UsageError where there is none, or where they are not of this machine's GPUs.
    """
    prepare(study, sources)
    held = read_machine_record(study, sources.name)
    before = read_calibration(study, sources.name)[1]
    used = {_content(run) for _, run in calibrating_runs(study, held.name)}
    file = None if path is None else _read(path)
    measured = [] if file is not None else _measured(study, held)
    runs = [convert(one, "run", EngineRun) for one in measured] if file is None else file.runs
    places = [
        place
        for place, run in enumerate(runs)
        if run.spec.engine == engine
        and (run.tag in tags if tags else run.spec.arm is None)
        and (file is not None or _shape_is_known(study, held, measured[place], run))
    ]
    _check(tags, runs, bool(places), f"{engine} on one GPU of {held.name}")
    new = [place for place in places if _content(runs[place]) not in used]
    if new:
        # Before anything is kept: a study with runs that calibrate nothing would be of no use.
        shapes = {} if file is None else file.shapes
        constants_with(study, sources, held, [runs[place] for place in new], shapes)
    ids = [one.id for one in measured] if file is None else _keep(study, held, file)
    if new:
        choose(study, held, [study.get(ids[place]) for place in new])
    record = append_calibration(study, sources, held)
    return Calibrated(
        machine=held.name,
        recorded=held.recorded,
        before=before,
        after=convert(record, "calibration", Calibration),
        runs=tuple(runs[place] for place in new),
        used=tuple(runs[place] for place in places if place not in new),
        record_id=record.id,
    )


def _content(run: EngineRun) -> tuple[RunSpec, RunTimes]:
    """What a run is known by, whichever file or record it stands in."""
    return run.spec, run.times


class _RunsFile(Value, frozen=True, kw_only=True):
    data: bytes
    runs: tuple[EngineRun, ...]
    configs: Mapping[str, tuple[str, str]]

    @property
    def shapes(self) -> dict[str, ModelShape]:
        return {model: parse_config(text, name) for model, (name, text) in self.configs.items()}


def _read(path: Path) -> _RunsFile:
    data = read_runs_file(path, "Constants are calibrated from its runs.")
    runs = parse_runs(data, path.name)
    return _RunsFile(data=data, runs=runs, configs=configs_beside(path, data))


def _keep(study: Study, held: MachineRead, file: _RunsFile) -> list[str]:
    return append_runs(study, held.name, held.fingerprint.id, file.data, file.runs, file.configs)


def _measured(study: Study, held: MachineRead) -> list[Record]:
    """Runs that the study measured on this machine; not those of the machine's own files."""
    return [
        record
        for record in study.find("serve.run", machine=held.name)
        if isinstance(record.outcome, Measured) and "line" not in record.subject
    ]


def _shape_is_known(study: Study, held: MachineRead, record: Record, run: EngineRun) -> bool:
    """Whether the run's model has a shape; one that is a name or a path is read and kept."""
    label, model = run.spec.model, record.subject.get("model")
    if label in read_run_shapes(study, held.name):
        return True
    if model is None or record.subject.get("twin"):
        return False
    shape = read_model(str(model))
    blob = study.add_blob(canonical_json(shape))
    study.append(shape_record(held.name, held.fingerprint.id, label, shape, blob))
    return True


def _check(
    tags: Collection[str],
    runs: Sequence[EngineRun],
    found: bool,
    what: str,
) -> None:
    known = sorted({run.tag for run in runs})
    unknown = [tag for tag in tags if tag not in known]
    if unknown:
        raise UsageError(
            f"No run has the tag '{unknown[0]}'.",
            why="Constants would rest on fewer runs than asked.",
            hint=f"Its tags are {', '.join(known)}." if known else "There is no run at all.",
        )
    if not found:
        raise InputError(
            f"There is no run of {what}.",
            why="Constants are calibrated from what the engine takes there.",
            hint="Measure one: linkbound serve MODEL --engine vllm-offline --split one, or name a "
            "runs file.",
        )
