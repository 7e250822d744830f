"""Study: one file to which every stage appends its records, and from which the next reads (E1, E2).

What `append` returned is on disk: a kill at any moment costs at most the record being written.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from linkbound.errors import InputError, StudyError
from linkbound.evidence.content import (
    StoredRecord,
    from_stored,
    pack_blob,
    read_json,
    to_stored,
    unpack_blob,
)
from linkbound.evidence.store import BUSY_WAIT_S, connect, create_file, sqlite_errors
from linkbound.evidence.types import Failed, Finding, Record, canonical_json
from linkbound.evidence.verify import (
    BLOB_CELLS,
    RECORD_CELLS,
    SAMPLE_CELLS,
    chained,
    verified,
)

SHORTEST_PREFIX = 8
"""Digits of an id that may stand for it: two of 10,000 records share eight once in 86 studies."""
_PAGE = 200
_Row = tuple[int, str, str]


class Study:
    """An open study. Use it in a `with` block, from one thread.

    An interrupt that leaves the block carries a note that records were kept, where some were.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._appended = False

    @classmethod
    def create(cls, path: Path | str, *, wait_s: float = BUSY_WAIT_S) -> Self:
        """Make an empty study and open it. Raises StudyError where the file exists."""
        create_file(Path(path))
        return cls.open(path, wait_s=wait_s)

    @classmethod
    def open(cls, path: Path | str, *, wait_s: float = BUSY_WAIT_S) -> Self:
        """Open a study; a lock of another process is waited for up to `wait_s` seconds."""
        return cls(Path(path), connect(Path(path), wait_s))

    @classmethod
    def open_or_create(cls, path: Path | str, *, wait_s: float = BUSY_WAIT_S) -> Self:
        """Open the study at `path`, made empty first where there is none."""
        if not Path(path).exists():
            try:
                create_file(Path(path))
            except StudyError:
                # Another process was faster: its file is as good as ours.
                if not Path(path).exists():
                    raise
        return cls.open(path, wait_s=wait_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and self._appended:
            error.add_note(f"{self.path} keeps what was measured; run again.")
        self.close()

    def close(self) -> None:
        """Fold the write-ahead log into the file and let go of it."""
        self._connection.close()

    def append(self, record: Record) -> str:
        """Add a record and return its id; equal content is added once. Raises StudyError."""
        return self.append_many([record])[0]

    def append_many(self, records: Iterable[Record]) -> list[str]:
        """Add records in one transaction, all or none; a parent comes before its child."""
        ids = []
        with self._transaction():
            seq, chain = self._last()
            for record in records:
                stored = to_stored(record)
                ids.append(stored.id)
                if self._has(stored.id):
                    continue
                self._require_named(record, stored.id)
                seq, chain = seq + 1, chained(chain, stored.id)
                self._insert(seq, stored, chain)
        self._appended = self._appended or bool(ids)
        return ids

    def add_blob(self, data: bytes) -> str:
        """Keep raw bytes (a log, a tool's output) and return their SHA-256; equal bytes once."""
        blob_id = hashlib.sha256(data).hexdigest()
        with self._transaction():
            if not self._has_blob(blob_id):
                self._connection.execute(
                    "INSERT INTO blobs (id, size_bytes, data) VALUES (?, ?, ?)",
                    (blob_id, len(data), pack_blob(data)),
                )
        return blob_id

    def blob(self, blob_id: str) -> bytes:
        """The bytes kept under this id. Raises StudyError where none or others are."""
        with sqlite_errors(self.path):
            row = self._connection.execute(f"{BLOB_CELLS} WHERE id = ?", (blob_id,)).fetchone()
        if row is None:
            raise StudyError(
                f"{self.path} has no blob {blob_id}.",
                why="A record's raw output is missing.",
                hint=f"Run `linkbound check {self.path}`.",
            )
        data = unpack_blob(blob_id, *row)
        if data is None:
            raise StudyError(
                f"Blob {blob_id[:12]} of {self.path} is not what it was when it was written.",
                why="The file was edited or damaged.",
                hint=f"Run `linkbound check {self.path}` to see what changed.",
            )
        return data

    def has(self, record_id: str) -> bool:
        """Whether a record with exactly this id is here."""
        with sqlite_errors(self.path):
            return self._has(record_id)

    def get(self, record_id: str) -> Record:
        """The record with this id or unique beginning of one, at least 8 digits long."""
        if len(record_id) < SHORTEST_PREFIX:
            raise StudyError(
                f"'{record_id}' is too short for a record id.",
                why="It could stand for several records.",
                hint=f"Give at least {SHORTEST_PREFIX} digits of it.",
            )
        # Hexadecimal digits sort below 'g', so this is the range of all ids that begin so.
        rows = self._rows("id >= ? AND id < ? LIMIT 2", (record_id, record_id + "g"))
        if len(rows) != 1:
            raise StudyError(
                f"{self.path} has {'no' if not rows else 'more than one'} record {record_id}.",
                why="A record is named by its id or the unique beginning of it.",
                hint="List the records with `linkbound show`.",
            )
        return self._record(rows[0])

    def find(self, kind: str | None = None, **subject: Any) -> list[Record]:
        """Records of this kind whose subject has these values, in append order."""
        wanted = {key: read_json(canonical_json(value), key) for key, value in subject.items()}
        return [
            record
            for record in self._read(kind)
            if all(record.subject.get(key) == value for key, value in wanted.items())
        ]

    def records(self) -> Iterator[Record]:
        """Every record in append order; records appended meanwhile come too."""
        return self._read(None)

    def verify(self) -> list[Finding]:
        """What is wrong with the file: damage, edits, removals; empty where nothing is."""
        with sqlite_errors(self.path):
            return verified(self._connection, str(self.path))

    def counts(self) -> tuple[int, int]:
        """How many records and blobs there are."""
        with sqlite_errors(self.path):
            row = self._connection.execute(
                "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM blobs)"
            ).fetchone()
        return int(row[0]), int(row[1])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """One write, the only writer meanwhile: the chain is read and continued inside it."""
        with sqlite_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk has already rolled back; there is nothing left to undo then.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _last(self) -> tuple[int, str]:
        row = self._connection.execute(
            "SELECT seq, chain FROM records ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        return (0, "") if row is None else (int(row[0]), str(row[1]))

    def _insert(self, seq: int, stored: StoredRecord, chain: str) -> None:
        self._connection.executemany(
            "INSERT INTO samples (record, row, cells) VALUES (?, ?, ?)",
            ((seq, number, cells) for number, cells in enumerate(stored.rows)),
        )
        self._connection.execute(
            "INSERT INTO records (seq, id, kind, content, chain) VALUES (?, ?, ?, ?, ?)",
            (seq, stored.id, stored.kind, stored.content, chain),
        )

    def _has(self, record_id: str) -> bool:
        found = self._connection.execute("SELECT 1 FROM records WHERE id = ?", (record_id,))
        return found.fetchone() is not None

    def _has_blob(self, blob_id: str) -> bool:
        found = self._connection.execute("SELECT 1 FROM blobs WHERE id = ?", (blob_id,))
        return found.fetchone() is not None

    def _require_named(self, record: Record, record_id: str) -> None:
        """Refuse a record whose evidence is not here: its figures could not be traced (E2)."""
        missing = [f"record {parent}" for parent in record.parents if not self._has(parent)]
        missing += [f"blob {blob}" for blob in record.blobs if not self._has_blob(blob)]
        match record.outcome:
            case Failed(log=str(log)) if not self._has_blob(log):
                missing.append(f"blob {log}")
        if missing:
            raise StudyError(
                f"Record {record_id[:12]} ({record.kind}) names {', '.join(missing)}, "
                f"not in {self.path}.",
                why="Its figures could not be led back to their evidence.",
                hint="Append what it rests on first.",
            )

    def _read(self, kind: str | None) -> Iterator[Record]:
        last = 0
        while True:
            if kind is None:
                rows = self._rows(f"seq > ? ORDER BY seq LIMIT {_PAGE}", (last,))
            else:
                rows = self._rows(f"kind = ? AND seq > ? ORDER BY seq LIMIT {_PAGE}", (kind, last))
            if not rows:
                return
            last = rows[-1][0]
            for row in rows:
                yield self._record(row)

    def _rows(self, condition: str, values: Sequence[int | str]) -> list[_Row]:
        with sqlite_errors(self.path):
            return self._connection.execute(f"{RECORD_CELLS} WHERE {condition}", values).fetchall()

    def _record(self, row: _Row) -> Record:
        """Read a record and prove that it is what its id says."""
        seq, record_id, content = row
        with sqlite_errors(self.path):
            cells = self._connection.execute(
                f"{SAMPLE_CELLS} WHERE record = ? ORDER BY row", (seq,)
            ).fetchall()
        source = f"Record {record_id[:12]} of {self.path}"
        try:
            return from_stored(record_id, content, [cell for (cell,) in cells], source)
        except InputError as error:
            hint = f"Run `linkbound check {self.path}` to see what changed. {error.hint}".strip()
            raise StudyError(error.seen, why=error.why, hint=hint) from error
