"""A machine as files: a recorded one by name, or a folder of tool output that people have (M4)."""

import socket
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from linkbound.errors import InputError, UsageError
from linkbound.topology.probe import probe_machine
from linkbound.topology.types import Machine
from linkbound.units import parse_size_bytes
from linkbound.values import Value

DEFAULT_MACHINE = "h200-pair"
MANIFEST = "machine.toml"
MAX_FILES = 500
MAX_FILE_BYTES = 64 * 1024 * 1024


class SourceFile(Value, frozen=True, kw_only=True):
    """One file: its name inside the folder, and its bytes."""

    name: str
    data: bytes


class RunsNamed(Value, frozen=True, kw_only=True):
    """The runs file of a machine, and which tags of it may calibrate."""

    file: str
    calibrate: tuple[str, ...] = ()


class Sources(Value, frozen=True, kw_only=True):
    """A machine's files with what its manifest adds."""

    name: str
    recorded: bool
    note: str
    files: tuple[SourceFile, ...]
    runs: RunsNamed | None = None
    engine_from: str | None = None
    """Recorded machine whose engine runs stand in where this one has none."""
    live: Machine | None = None
    """This host as it was probed; None for a recorded machine."""
    memory_bytes: Mapping[str, int] = {}
    """GPU model to memory, stated by the manifest for files that do not print it."""


def recorded_names() -> tuple[str, ...]:
    """Names of the machines that the package ships."""
    return tuple(sorted(one.name for one in _recorded().iterdir() if one.is_dir()))


def read_recorded(name: str) -> Sources:
    """A shipped machine. Raises UsageError for an unknown name."""
    if name not in recorded_names():
        raise UsageError(
            f"There is no recorded machine '{name}'.",
            why="It is neither a shipped name nor a file or folder here.",
            hint=f"Shipped: {', '.join(recorded_names())}.",
        )
    return _read(_recorded() / name, name, recorded=True)


def read_sources(name_or_path: str) -> Sources:
    """A shipped machine by name, or a file or folder by path."""
    path = Path(name_or_path)
    if name_or_path in recorded_names():
        return read_recorded(name_or_path)
    if path.is_dir():
        return _read(path, path.resolve().name, recorded=True)
    if path.is_file():
        file = SourceFile(name=path.name, data=path.read_bytes())
        return Sources(name=path.name, recorded=True, note=f"{path.name}: a file", files=(file,))
    return read_recorded(name_or_path)


def read_host() -> Sources | None:
    """This host's GPUs; None where there is none. Constants come from a recorded machine."""
    machine = probe_machine()
    if not machine.gpus:
        return None
    return Sources(
        name=socket.gethostname(),
        recorded=False,
        note=f"{len(machine.gpus)} GPUs of this host",
        files=(),
        live=machine,
        engine_from=DEFAULT_MACHINE,
    )


def _recorded() -> Traversable:
    return files("linkbound") / "recorded"


def _read(folder: Traversable, name: str, *, recorded: bool) -> Sources:
    found = tuple(_walk(folder, ""))
    manifest = _manifest(found, name)
    runs = manifest.get("runs")
    return Sources(
        name=name,
        recorded=recorded,
        note=str(manifest.get("note", f"{name}: a folder of tool output")),
        files=tuple(one for one in found if one.name != MANIFEST),
        runs=None
        if runs is None
        else RunsNamed(file=str(runs["file"]), calibrate=tuple(runs.get("calibrate", ()))),
        engine_from=manifest.get("engine_from"),
        memory_bytes={
            str(model): parse_size_bytes(str(size))
            for model, size in manifest.get("memory", {}).items()
        },
    )


def _walk(folder: Traversable, prefix: str) -> list[SourceFile]:
    found: list[SourceFile] = []
    for one in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = prefix + one.name
        if one.name.startswith(".") or len(found) > MAX_FILES:
            continue
        if one.is_dir():
            found += _walk(one, name + "/")
        elif one.is_file():
            found.append(SourceFile(name=name, data=_bytes(one, name)))
    if len(found) > MAX_FILES:
        raise InputError(
            f"The folder holds more than {MAX_FILES} files.",
            why="A machine is a handful of tool outputs; this is something else.",
            hint="Name a folder with those files alone.",
        )
    return found


def _bytes(file: Traversable, name: str) -> bytes:
    with file.open("rb") as stream:
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InputError(
            f"{name} is larger than {MAX_FILE_BYTES // 2**20} MiB.",
            why="No tool output about a machine is that large.",
            hint="Leave it out of the folder.",
        )
    return data


def _manifest(found: tuple[SourceFile, ...], name: str) -> dict[str, Any]:
    data = next((one.data for one in found if one.name == MANIFEST), b"")
    try:
        manifest = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{name}/{MANIFEST} cannot be read: {error}.",
            why="It says which rows may calibrate.",
            hint="Mend it or take it away.",
        ) from None
    runs = manifest.get("runs")
    if runs is not None and not (isinstance(runs, dict) and isinstance(runs.get("file"), str)):
        raise InputError(
            f"{name}/{MANIFEST} has no runs.file.",
            why="[runs] must name the runs file.",
            hint='Write file = "runs.jsonl" below [runs].',
        )
    return manifest
