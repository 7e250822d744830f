"""Engine runs chosen to calibrate: from a runs file, or from what a study measured (D5)."""

from collections.abc import Collection
from pathlib import Path

from linkbound.errors import InputError, UsageError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record, canonical_json
from linkbound.model.read_model import read_model
from linkbound.predict.calibration import Calibration
from linkbound.serve import EngineRun, parse_runs
from linkbound.study.calibrating import append_calibration, choose
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
    record_id: str


def calibrate_with(
    study: Study, sources: Sources, engine: str, path: Path | None, tags: Collection[str]
) -> Calibrated:
    """Choose runs, and calibrate the machine's constants with them; all of it is kept.

    The runs of a file, or those that the study measured; without `tags` those on one GPU. Raises
    InputError or UsageError where there is none.
    """
    prepare(study, sources)
    held = read_machine_record(study, sources.name)
    before = read_calibration(study, sources.name)[1]
    records = _measured(study, held) if path is None else _imported(study, held, path)
    runs = [(one, convert(one, "run", EngineRun)) for one in records]
    chosen = [
        (record, run)
        for record, run in runs
        if run.spec.engine == engine
        and (run.tag in tags if tags else run.spec.arm is None)
        and _shape_is_known(study, held, record, run)
    ]
    _check(tags, runs, bool(chosen), f"{engine} on one GPU of {held.name}")
    choose(study, held, [record for record, _ in chosen])
    record = append_calibration(study, sources, held)
    return Calibrated(
        machine=held.name,
        recorded=held.recorded,
        before=before,
        after=convert(record, "calibration", Calibration),
        runs=tuple(run for _, run in chosen),
        record_id=record.id,
    )


def _imported(study: Study, held: MachineRead, path: Path) -> list[Record]:
    data = read_runs_file(path)
    runs, configs = parse_runs(data, path.name), configs_beside(path, data)
    ids = append_runs(study, held.name, held.fingerprint.id, data, runs, configs)
    return [study.get(one) for one in ids]


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
    runs: list[tuple[Record, EngineRun]],
    found: bool,
    what: str,
) -> None:
    known = sorted({run.tag for _, run in runs})
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
