"""A machine as files: a recorded one by name, or a folder of tool output that people have (M4)."""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec

from linkbound.errors import InputError, UsageError
from linkbound.links.live.records import HOST_NAME
from linkbound.topology.probe import probe_machine
from linkbound.topology.types import Machine
from linkbound.units import parse_size_bytes
from linkbound.values import Value

DEFAULT_MACHINE = "h200-pair"
MANIFEST = "machine.toml"
_MANIFEST_WHY = "It says what the files of a machine cannot."
MAX_FILES = 500
MAX_FILE_BYTES = 64 * 1024 * 1024


class SourceFile(Value, frozen=True, kw_only=True):
    """One file: its name inside the folder, and its bytes."""

    name: str
    data: bytes


class RunsNamed(Value, frozen=True, kw_only=True):
    """A runs file of a machine, and which tags of it may calibrate."""

    file: str
    calibrate: tuple[str, ...] = ()


class Manifest(Value, frozen=True, kw_only=True):
    """machine.toml: what the files of a folder cannot say themselves."""

    note: str | None = None
    runs: tuple[RunsNamed, ...] = ()
    engine_from: str | None = None
    memory: Mapping[str, str] = {}


class Sources(Value, frozen=True, kw_only=True):
    """A machine's files with what its manifest adds."""

    name: str
    recorded: bool
    note: str
    files: tuple[SourceFile, ...]
    runs: tuple[RunsNamed, ...] = ()
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


def read_sources(name_or_path: str, *, is_machine: bool = True) -> Sources:
    """A shipped machine by name, or a file or folder by path.

    `is_machine`: a study keeps what it says under the folder's name, which must be free.
    """
    path = Path(name_or_path)
    if name_or_path in recorded_names():
        return read_recorded(name_or_path)
    with _readable(name_or_path):
        if path.is_dir():
            name = _own_name(path) if is_machine else path.resolve().name
            return _read(path, name, recorded=True)
        if path.is_file():
            file = SourceFile(name=path.name, data=_bytes(path, path.name))
            note = f"{path.name}: a file"
            return Sources(name=path.name, recorded=True, note=note, files=(file,))
    return read_recorded(name_or_path)


def _own_name(folder: Path) -> str:
    """The folder's name, under which a study keeps its records. Raises UsageError if it is taken.

    Constants are carried from shipped machines into the same study: two machines of one name would
    be one there.
    """
    name = folder.resolve().name
    if name in (*recorded_names(), HOST_NAME):
        raise UsageError(
            f"A folder may not be called '{name}'.",
            why="In studies that is the name of a shipped machine, or of this host.",
            hint=f"Rename it, or write --machine {name} for the shipped one."
            if name != HOST_NAME
            else "Rename it.",
        )
    return name


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """What the file system refuses is the input's fault: rights, names too long, broken disks."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{name[:200]} cannot be read: {error.strerror}.",
            why="It should hold the files of a machine.",
            hint="Check its name and its rights.",
        ) from None


def read_host() -> Sources | None:
    """This host's GPUs; None where there is none. Constants come from a recorded machine."""
    machine = probe_machine()
    if not machine.gpus:
        return None
    return Sources(
        name=HOST_NAME,
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
    if manifest.engine_from is not None:
        _check_engine_from(manifest.engine_from, name)
    return Sources(
        name=name,
        recorded=recorded,
        note=manifest.note or f"{name}: a folder of tool output",
        files=tuple(one for one in found if one.name != MANIFEST),
        runs=manifest.runs,
        engine_from=manifest.engine_from,
        memory_bytes={
            model: _memory_bytes(name, model, size) for model, size in manifest.memory.items()
        },
    )


def _check_engine_from(other: str, name: str) -> None:
    """Raises InputError where no engine ran on the machine that should lend its constants."""
    lenders = tuple(
        one
        for one in recorded_names()
        if any(runs.calibrate for runs in _shipped_manifest(one).runs)
    )
    if other not in lenders:
        raise _manifest_error(
            name,
            f"engine_from is '{other}'",
            f"Machines whose engine runs are shipped: {', '.join(lenders)}.",
        )


def _shipped_manifest(name: str) -> Manifest:
    data = (_recorded() / name / MANIFEST).read_bytes()
    return _manifest((SourceFile(name=MANIFEST, data=data),), name)


def _memory_bytes(name: str, model: str, size: str) -> int:
    try:
        return parse_size_bytes(size)
    except UsageError as error:
        raise _manifest_error(
            name, f"the memory of {model} is '{size}'", error.hint or "Write 24GiB."
        ) from None


def _manifest_error(name: str, what: str, hint: str) -> InputError:
    return InputError(f"{name}/{MANIFEST} cannot be used: {what}.", why=_MANIFEST_WHY, hint=hint)


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


def _manifest(found: tuple[SourceFile, ...], name: str) -> Manifest:
    data = next((one.data for one in found if one.name == MANIFEST), b"")
    try:
        return msgspec.convert(tomllib.loads(data.decode()), Manifest)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(
            f"{name}/{MANIFEST} cannot be read: {error}.",
            why=_MANIFEST_WHY,
            hint="It may hold note, engine_from, memory, and [[runs]] with file and calibrate.",
        ) from None
