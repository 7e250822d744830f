"""Engine runs of a machine into records: the shapes they name, and every repeat (P2, E2)."""

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record, Samples, Stated
from linkbound.model.parse_config import parse_config
from linkbound.serve import EngineRun, parse_runs
from linkbound.study.sources import MANIFEST, RunsNamed, SourceFile, Sources

# Beside a runs file: what these hold tells of the engine and its models, not of the machine.
RUNS_FOLDERS = ("logs/", "configs/")


def import_runs(study: Study, sources: Sources, machine_id: str) -> None:
    """Records of engine runs and of the shapes they name; nothing where the machine has none."""
    if sources.runs is None:
        return
    named = sources.runs
    data = _file(sources, named.file).data
    folder = named.file.rpartition("/")[0]
    runs = parse_runs(data, named.file)
    _check_tags(named, {run.tag for run in runs})
    blob = study.add_blob(data)
    for model in dict.fromkeys(run.spec.model for run in runs):
        name = f"{folder}/configs/{model}/config.json".lstrip("/")
        text = decode_config(_file(sources, name).data, name)
        study.append(
            Record(
                kind="serve.shape",
                subject={"machine": sources.name, "model": model},
                outcome=Stated(values={"shape": msgspec.to_builtins(parse_config(text, name))}),
                method="linkbound.model.parse_config",
                machine=machine_id,
                blobs=(study.add_blob(text.encode()),),
            )
        )
    for run in runs:
        study.append(_run_record(run, sources, machine_id, blob))


def belongs_to_runs(file: SourceFile, named: RunsNamed | None) -> bool:
    """Whether a file is the runs file itself or lies in a folder beside it that it owns."""
    if named is None:
        return False
    folder, slash, _ = named.file.rpartition("/")
    return file.name.startswith((named.file, *(folder + slash + one for one in RUNS_FOLDERS)))


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


def _run_record(run: EngineRun, sources: Sources, machine_id: str, blob: str) -> Record:
    assert sources.runs is not None
    rows = [("prefill", time_s) for time_s in run.times.prefill_s]
    rows += [("total", time_s) for time_s in run.times.total_s]
    return Record(
        kind="serve.run",
        subject={
            "machine": sources.name,
            "tag": run.tag,
            "line": run.line,
            "calibrates": run.tag in sources.runs.calibrate,
        },
        outcome=Measured(values={"run": msgspec.to_builtins(run)}),
        method="vllm offline generate, whole call timed",
        machine=machine_id,
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
