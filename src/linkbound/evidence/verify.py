"""Is a study what it was when it was written? Ids, chain, parents, samples and blobs (E2).

The chain shows accidents and careless edits. It is no signature: who rewrites the whole file with
new ids and a new chain is not caught.
"""

import hashlib
import sqlite3
from collections.abc import Iterator

from linkbound.errors import InputError
from linkbound.evidence.content import from_stored, unpack_blob
from linkbound.evidence.store import missing_and_foreign, primary_code
from linkbound.evidence.types import Failed, Finding, Level, Record, Severity

# Cast, because SQLite keeps any type in any column and an edited file may hold any.
RECORD_CELLS = "SELECT seq, CAST(id AS TEXT), CAST(content AS TEXT) FROM records"
SAMPLE_CELLS = "SELECT CAST(cells AS TEXT) FROM samples"
BLOB_CELLS = "SELECT CAST(size_bytes AS INTEGER), CAST(data AS BLOB) FROM blobs"

_WHY = {
    "study-damaged": "What it holds cannot be trusted.",
    "study-guards-changed": "Records could be changed or removed without a trace.",
    "study-foreign-objects": "Objects that linkbound did not make can change what it reads.",
    "record-edited": "Its figures are not what was measured.",
    "record-removed": "Evidence that conclusions may rest on is gone.",
    "chain-broken": "A record before this one was edited, removed or put in another place.",
    "parent-missing": "Its figures cannot be led back to their evidence.",
    "blob-missing": "The raw output behind it is gone.",
    "blob-edited": "The raw output is not what the tool printed.",
    "samples-orphaned": "Samples without a record belong to no figure.",
}
_REMEDY = "Take the study from a backup, or run it again into a new file."


def chained(previous: str, record_id: str) -> str:
    """The chain value of a record: it depends on every id before it and on their order."""
    return hashlib.sha256((previous + record_id).encode()).hexdigest()


def verified(connection: sqlite3.Connection, name: str) -> list[Finding]:
    """All that is wrong with the study called `name`, in the order of its records."""
    try:
        # One snapshot: a writer at work meanwhile must not look like an edit.
        connection.execute("BEGIN")
        try:
            damage = list(_damage(connection, name))
            return damage or list(_checks(connection, name))
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        if primary_code(error) == sqlite3.SQLITE_BUSY:
            raise
        return [_finding("study-damaged", f"{name}: SQLite says '{error}'.")]


def _checks(connection: sqlite3.Connection, name: str) -> Iterator[Finding]:
    yield from _schema(connection, name)
    yield from _sequence(connection, name)
    yield from _records(connection)
    yield from _blobs(connection)
    yield from _orphans(connection, name)


def _finding(code: str, seen: str, *record_ids: str) -> Finding:
    return Finding(
        code=code,
        level=Level.SEEN,
        severity=Severity.ERROR,
        seen=seen,
        why=_WHY[code],
        remedy=_REMEDY,
        record_ids=record_ids,
    )


def _damage(connection: sqlite3.Connection, name: str) -> Iterator[Finding]:
    for (line,) in connection.execute("PRAGMA integrity_check(10)"):
        if line != "ok":
            yield _finding("study-damaged", f"{name}: SQLite says '{line}'.")


def _schema(connection: sqlite3.Connection, name: str) -> Iterator[Finding]:
    missing, foreign = missing_and_foreign(connection)
    if missing:
        yield _finding("study-guards-changed", f"{name} lacks or changed: {', '.join(missing)}.")
    if foreign:
        yield _finding("study-foreign-objects", f"{name} has {', '.join(foreign)} besides.")


def _sequence(connection: sqlite3.Connection, name: str) -> Iterator[Finding]:
    """Removed records, the last ones too: SQLite remembers the highest number ever given."""
    (ever,) = connection.execute(
        "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'records'"
    ).fetchone()
    count, last = connection.execute(
        "SELECT count(*), coalesce(max(seq), 0) FROM records"
    ).fetchone()
    gone = max(ever, last) - count
    if gone:
        yield _finding("record-removed", f"{name} once held {gone} records more than now.")


def _records(connection: sqlite3.Connection) -> Iterator[Finding]:
    blobs = {blob_id for (blob_id,) in connection.execute("SELECT CAST(id AS TEXT) FROM blobs")}
    earlier: set[str] = set()
    previous = ""
    rows = connection.execute(
        "SELECT seq, CAST(id AS TEXT), CAST(kind AS TEXT), CAST(chain AS TEXT) "
        "FROM records ORDER BY seq"
    )
    for seq, record_id, kind, chain in rows:
        name = f"Record {record_id[:12]} (number {seq}, {kind})"
        if chain != chained(previous, record_id):
            yield _finding("chain-broken", f"{name} does not follow the one before it.", record_id)
        # Go on from what is written, so that one edit gives one finding.
        previous = chain
        record = _reread(connection, seq, record_id)
        if record is None or record.kind != kind:
            yield _finding("record-edited", f"{name} has other content than its id.", record_id)
        else:
            yield from _unnamed(record, record_id, name, earlier, blobs)
        earlier.add(record_id)


def _reread(connection: sqlite3.Connection, seq: int, record_id: str) -> Record | None:
    """The record as written; None where its content does not give its id."""
    (content,) = connection.execute(
        "SELECT CAST(content AS TEXT) FROM records WHERE seq = ?", (seq,)
    ).fetchone()
    cells = connection.execute(f"{SAMPLE_CELLS} WHERE record = ? ORDER BY row", (seq,))
    try:
        return from_stored(record_id, content, [cell for (cell,) in cells], record_id)
    except InputError:
        return None


def _unnamed(
    record: Record, record_id: str, name: str, earlier: set[str], blobs: set[str]
) -> Iterator[Finding]:
    for parent in record.parents:
        if parent not in earlier:
            seen = f"{name} names record {parent[:12]}, which is not before it."
            yield _finding("parent-missing", seen, record_id)
    log = record.outcome.log if isinstance(record.outcome, Failed) else None
    for blob_id in (*record.blobs, *(() if log is None else (log,))):
        if blob_id not in blobs:
            yield _finding("blob-missing", f"{name} names blob {blob_id[:12]}.", record_id)


def _blobs(connection: sqlite3.Connection) -> Iterator[Finding]:
    ids = [blob_id for (blob_id,) in connection.execute("SELECT CAST(id AS TEXT) FROM blobs")]
    for blob_id in ids:
        row = connection.execute(f"{BLOB_CELLS} WHERE id = ?", (blob_id,)).fetchone()
        if row is None or unpack_blob(blob_id, *row) is None:
            yield _finding("blob-edited", f"Blob {blob_id[:12]} has other bytes than its id.")


def _orphans(connection: sqlite3.Connection, name: str) -> Iterator[Finding]:
    (count,) = connection.execute(
        "SELECT count(*) FROM samples WHERE record NOT IN (SELECT seq FROM records)"
    ).fetchone()
    if count:
        yield _finding("samples-orphaned", f"{name} has {count} samples of no record.")
