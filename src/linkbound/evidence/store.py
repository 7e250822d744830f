"""The SQLite file under a study: its tables and guards, opening it, and its errors in words (E1).

WAL and synchronous FULL: what is committed survives a kill and a power cut.
"""

import contextlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

from linkbound.errors import StudyError

APPLICATION_ID = 0x4C4B4244
"""`LKBD`: how `file` and we tell a study from any other SQLite database."""
FORMAT_VERSION = 1
BUSY_WAIT_S = 30.0
"""How long a writer waits for another one: an append holds the file for milliseconds."""
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\x00"

SCHEMA: tuple[str, ...] = (
    """CREATE TABLE records (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    content TEXT NOT NULL,
    chain TEXT NOT NULL
)""",
    """CREATE TABLE samples (
    record INTEGER NOT NULL REFERENCES records (seq) DEFERRABLE INITIALLY DEFERRED,
    row INTEGER NOT NULL,
    cells TEXT NOT NULL,
    PRIMARY KEY (record, row)
) WITHOUT ROWID""",
    """CREATE TABLE blobs (
    id TEXT NOT NULL PRIMARY KEY,
    size_bytes INTEGER NOT NULL,
    data BLOB NOT NULL
)""",
    "CREATE INDEX records_by_kind ON records (kind)",
    # INSERT OR REPLACE deletes without a delete trigger, so each table also guards its inserts.
    """CREATE TRIGGER records_keep_insert BEFORE INSERT ON records
WHEN EXISTS (SELECT 1 FROM records WHERE id = NEW.id OR seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'records are append-only'); END""",
    # Samples are written before their record: a finished record takes no more of them.
    """CREATE TRIGGER samples_keep_insert BEFORE INSERT ON samples
WHEN EXISTS (SELECT 1 FROM records WHERE seq = NEW.record)
    OR EXISTS (SELECT 1 FROM samples WHERE record = NEW.record AND row = NEW.row)
BEGIN SELECT RAISE(ABORT, 'samples are append-only'); END""",
    """CREATE TRIGGER blobs_keep_insert BEFORE INSERT ON blobs
WHEN EXISTS (SELECT 1 FROM blobs WHERE id = NEW.id OR rowid = NEW.rowid)
BEGIN SELECT RAISE(ABORT, 'blobs are append-only'); END""",
    *(
        f"CREATE TRIGGER {table}_keep_{verb.lower()} BEFORE {verb} ON {table}\n"
        f"BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
        for table in ("records", "samples", "blobs")
        for verb in ("UPDATE", "DELETE")
    ),
)

_WORDS: dict[int, tuple[str, str, str]] = {
    sqlite3.SQLITE_BUSY: (
        "is locked by another process.",
        "Only one process may write at a time.",
        "Wait for the other linkbound to end, then run this again.",
    ),
    sqlite3.SQLITE_READONLY: (
        "is read-only here.",
        "Nothing can be added to it.",
        "Copy it to a folder that you can write to, or name another study with -C.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened.",
        "The file or its folder does not let this user read or write.",
        "Copy it to a folder that you can write to, or name another study with -C.",
    ),
    sqlite3.SQLITE_FULL: (
        "cannot grow: the disk is full.",
        "The last record was not kept; everything before it was.",
        "Free space and run this again: it goes on from there.",
    ),
    sqlite3.SQLITE_IOERR: (
        "cannot be read or written: the disk reports an error.",
        "Records may be lost.",
        "Copy the file to another disk and run `linkbound check` on the copy.",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged or cut short.",
        "Its records cannot be trusted.",
        "Take a backup, or run the study again into a new file.",
    ),
    sqlite3.SQLITE_NOTADB: (
        "is not a study.",
        "It is not an SQLite file.",
        "Name a study file (*.linkbound) with -C.",
    ),
}
_UNKNOWN = ("cannot be used.", "SQLite refused it.", "Run `linkbound check` on it.")


def is_database(path: Path) -> bool:
    """Whether a file is one of SQLite: a study, or what only `open` can tell from one."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


@contextlib.contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite raises into one StudyError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise explained(path, error) from error


def explained(path: Path, error: sqlite3.Error) -> StudyError:
    """What SQLite said about the study, in our words first and its own in brackets."""
    seen, why, hint = _WORDS.get(primary_code(error), _UNKNOWN)
    return StudyError(f"{path} {seen} ({error})", why=why, hint=hint)


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's error code without its extension; errors of the Python module have none."""
    # Extended codes keep the primary one in their low byte (sqlite.org/rescode.html).
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def create_file(path: Path) -> None:
    """Make an empty study. It appears under its name whole or not at all. Raises StudyError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        # By ourselves: SQLite would not say why it cannot.
        unfinished.write_bytes(b"")
        with sqlite_errors(path):
            _write_empty(unfinished)
        os.link(unfinished, path)
        _sync_folder(path.parent)
    except FileExistsError as error:
        raise StudyError(
            f"{path} already exists.",
            why="A study is never overwritten.",
            hint="Add to it, remove it yourself, or name another with -C.",
        ) from error
    except OSError as error:
        raise StudyError(
            f"{path} cannot be created ({error.strerror}).",
            why="There is no place to keep the evidence.",
            hint="Name a file in a folder that you can write to with -C.",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _write_empty(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        for statement in SCHEMA:
            connection.execute(statement)
        # Last, and then closed: the header on disk is complete before the file has its name.
        connection.execute("PRAGMA journal_mode = WAL")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def connect(path: Path, wait_s: float) -> sqlite3.Connection:
    """Open an existing study, waiting up to `wait_s` for a lock. Raises StudyError.

    One that this user cannot write is opened to be read; the first append then says so.
    """
    _check_header(path)
    with sqlite_errors(path):
        address = f"{path.resolve().as_uri()}?{_mode(path.resolve())}"
        connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=wait_s)
        # Bytes that are not UTF-8 were put there by an edit: their record's id will not match.
        connection.text_factory = lambda data: data.decode(errors="replace")
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA recursive_triggers = ON")
            connection.execute("SELECT max(seq) FROM records").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
    return connection


def _mode(path: Path) -> str:
    """How SQLite is to open the file at this resolved path.

    A reader of a WAL file makes -shm and -wal beside it: that fails in a folder that cannot be
    written, and beside a file that cannot be written both stay. An immutable file needs neither
    (sqlite.org/wal.html, "Read-Only Databases"); it leaves out what a log beside it still holds.
    """
    if all(os.access(one, os.W_OK, effective_ids=True) for one in (path, path.parent)):
        return "mode=rw"
    log = path.with_name(f"{path.name}-wal")
    return "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"


def _check_header(path: Path) -> None:
    """Refuse what is no study before SQLite, which would create or lock, touches it."""
    if not path.is_file():
        seen = "is a folder or a device" if path.exists() else "does not exist"
        raise StudyError(
            f"{path} {seen}.",
            why="A study is one file.",
            hint="Name a study file (*.linkbound), or make one with `linkbound study`.",
        )
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise StudyError(
            f"{path} cannot be read ({error.strerror}).",
            why="Its records are out of reach.",
            hint="Change its permissions or name another study.",
        ) from error
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        raise StudyError(
            f"{path} is not a study ({'empty' if not header else 'not an SQLite file'}).",
            why="Its first bytes are not those of an SQLite file.",
            hint="Name a study file (*.linkbound), or make one with `linkbound study`.",
        )
    # Offsets of user_version and application_id: sqlite.org/fileformat.html, section 1.3.
    (version,) = struct.unpack_from(">i", header, 60)
    (application,) = struct.unpack_from(">I", header, 68)
    if application != APPLICATION_ID:
        raise StudyError(
            f"{path} is an SQLite file of another program (application id {application:#x}).",
            why="linkbound adds only to its own files.",
            hint="Name a study file (*.linkbound), or make one with `linkbound study`.",
        )
    if version != FORMAT_VERSION:
        raise StudyError(
            f"{path} has study format {version}; this linkbound reads {FORMAT_VERSION}.",
            why="Its records could be misread.",
            hint="Use the linkbound version that wrote it.",
        )


def missing_and_foreign(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
    """Names of our tables and guards that are gone or changed, and of objects not ours."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    present = {name: sql for name, sql in rows if not name.startswith("sqlite_")}
    expected = {statement.split()[2]: statement for statement in SCHEMA}
    missing = [name for name, sql in expected.items() if present.get(name) != sql]
    return missing, sorted(set(present) - set(expected))
