"""Engine runs of a machine into records: the shapes they name, and every repeat (P2, E2)."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record, Samples, Stated
from linkbound.model.derive import shape_key
from linkbound.model.parse_config import parse_config
from linkbound.model.types import ModelShape
from linkbound.serve import EngineRun, parse_runs
from linkbound.study.reading import values_of
from linkbound.study.sources import MANIFEST, RunsNamed, SourceFile, Sources

# Beside a runs file: what these hold tells of the engine and its models, not of the machine.
# `again` and `experts` have further runs: to be scored, never to calibrate.
RUNS_FOLDERS = ("logs/", "configs/", "again/", "experts/")


def import_runs(study: Study, sources: Sources, machine_id: str) -> None:
    """Records of engine runs and of the shapes they name; nothing where the machine has none."""
    for named in sources.runs:
        _import_file(study, sources, machine_id, named)


def _import_file(study: Study, sources: Sources, machine_id: str, named: RunsNamed) -> None:
    data = _file(sources, named.file).data
    folder = named.file.rpartition("/")[0]
    runs = parse_runs(data, named.file)
    _check_tags(named, {run.tag for run in runs})
    names = {
        run.spec.model: f"{folder}/configs/{run.spec.model}/config.json".lstrip("/") for run in runs
    }
    configs = {
        model: (name, decode_config(_file(sources, name).data, name))
        for model, name in names.items()
    }
    append_runs(study, sources.name, machine_id, data, runs, configs, named.calibrate)


def append_runs(
    study: Study,
    machine: str,
    machine_id: str,
    data: bytes,
    runs: tuple[EngineRun, ...],
    configs: Mapping[str, tuple[str, str]],
    calibrate: Collection[str] = (),
) -> list[str]:
    """Records of the shapes and of the runs of a file; returns the ids of the runs.

    `configs` has the name and the text of each model's configuration. Raises InputError where the
    study knows another shape by a model's name.
    """
    blob = study.add_blob(data)
    for model, (name, text) in configs.items():
        shape = parse_config(text, name)
        _check_name(study, machine, model, shape)
        study.append(shape_record(machine, machine_id, model, shape, study.add_blob(text.encode())))
    return study.append_many(
        _run_record(run, machine, machine_id, blob, run.tag in calibrate) for run in runs
    )


def shape_record(machine: str, machine_id: str, model: str, shape: ModelShape, blob: str) -> Record:
    """The shape behind the name by which runs of this machine know a model."""
    return Record(
        kind="serve.shape",
        subject={"machine": machine, "model": model},
        outcome=Stated(values={"shape": msgspec.to_builtins(shape)}),
        method="linkbound.model.parse_config",
        machine=machine_id,
        blobs=(blob,),
    )


def _check_name(study: Study, machine: str, model: str, shape: ModelShape) -> None:
    for record in study.find("serve.shape", machine=machine, model=model):
        known = msgspec.convert(values_of(record)["shape"], ModelShape)
        if shape_key(known) != shape_key(shape):
            raise InputError(
                f"'{model}' has {shape_key(shape)}; the study knows it with {shape_key(known)}.",
                why="Runs of two models under one name could not be told apart.",
                hint="Give the model another name in the runs file and beside it.",
            )


def belongs_to_runs(file: SourceFile, runs: Iterable[RunsNamed]) -> bool:
    """Whether a file is a runs file itself or lies in a folder beside one that it owns."""
    for named in runs:
        folder, slash, _ = named.file.rpartition("/")
        if file.name.startswith((named.file, *(folder + slash + one for one in RUNS_FOLDERS))):
            return True
    return False


def _check_tags(named: RunsNamed, tags: set[str]) -> None:
    unknown = [tag for tag in named.calibrate if tag not in tags]
    if unknown:
        raise InputError(
            f"{MANIFEST} lets '{unknown[0]}' calibrate, and {named.file} has no such tag.",
            why="Constants would rest on fewer runs than stated.",
            hint=f"Its tags are {', '.join(sorted(tags))}.",
        )


def decode_config(data: bytes, name: str) -> str:
    """The text of a model's configuration. Raises InputError."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text (byte {error.start}).",
            why="A config.json is text.",
            hint="Put the model's config.json there.",
        ) from None


def _run_record(
    run: EngineRun, machine: str, machine_id: str, blob: str, calibrates: bool
) -> Record:
    rows = [("prefill", time_s) for time_s in run.times.prefill_s]
    rows += [("total", time_s) for time_s in run.times.total_s]
    return Record(
        kind="serve.run",
        subject={
            "machine": machine,
            "tag": run.tag,
            "line": run.line,
            "calibrates": calibrates,
        },
        outcome=Measured(values={"run": msgspec.to_builtins(run)}),
        method="vllm offline generate, whole call timed",
        machine=machine_id,
        started=run.started,
        samples=Samples(columns=("call", "time_s"), rows=tuple(rows)),
        blobs=(blob,),
    )


def _file(sources: Sources, name: str) -> SourceFile:
    for file in sources.files:
        if file.name == name:
            return file
    raise InputError(
        f"{sources.name} has no file {name}.",
        why="A runs file is read together with the shapes it names.",
        hint="Put it where the runs file is.",
    )
