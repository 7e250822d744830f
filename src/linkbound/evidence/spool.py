"""Spool: a file of JSON lines that a child or a rank writes and the parent reads into the study.

SQLite's log does not work on network file systems; appending lines does. Each line carries the id
of its record and a last line the count, so that a torn or lost line is seen (E2, L6).
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from linkbound.errors import InputError, StudyError
from linkbound.evidence.content import read_json, record_with_id
from linkbound.evidence.study import Study
from linkbound.evidence.types import Finding, Level, Record, Severity, as_read_back, canonical_json
from linkbound.values import Value


class Ingested(Value, frozen=True, kw_only=True):
    """What came out of a spool."""

    record_ids: tuple[str, ...]
    findings: tuple[Finding, ...]


class Spool:
    """The writing end. Left by an exception or a kill, it lacks its last line, and that shows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._write({"end": self._count})
        self._file.close()

    def append(self, record: Record) -> str:
        """Write a record through to the disk and return its id."""
        record = as_read_back(record)
        self._write({"id": record.id, "record": record})
        self._count += 1
        return record.id

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(canonical_json(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def ingest(path: Path, study: Study) -> Ingested:
    """Append every whole record of the spool at `path`; what is torn or missing is a finding."""
    ids: list[str] = []
    findings: list[Finding] = []
    ended = False
    for number, line in enumerate(_lines(path), start=1):
        try:
            plain = _read_line(line, f"{path}, line {number},")
            if "end" in plain:
                ended = plain["end"] == number - 1
                continue
            ids.append(study.append(_read_record(plain, f"{path}, line {number},", study)))
        except InputError as error:
            findings.append(_finding("spool-line-unreadable", error.seen))
    if not ended:
        seen = f"{path} has no last line that counts its {len(ids)} records."
        findings.append(_finding("spool-unfinished", seen))
    return Ingested(record_ids=tuple(ids), findings=tuple(findings))


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise StudyError(
            f"The spool {path} cannot be read ({error.strerror}).",
            why="What the child measured is not in the study.",
            hint="Run the measurement again.",
        ) from error


def _read_line(line: bytes, source: str) -> dict[str, object]:
    plain = read_json(line, source)
    if not isinstance(plain, dict) or not ("end" in plain or "record" in plain):
        raise InputError(f"{source} is no line of a spool.", why="What it held is unknown.")
    return plain


def _read_record(plain: dict[str, object], source: str, study: Study) -> Record:
    record = record_with_id(str(plain.get("id")), plain["record"], source)
    missing = [parent[:12] for parent in record.parents if not study.has(parent)]
    if missing:
        raise InputError(
            f"{source} names records that are not in the study: {', '.join(missing)}.",
            why="Its figures could not be led back to their evidence.",
        )
    return record


def _finding(code: str, seen: str) -> Finding:
    return Finding(
        code=code,
        level=Level.SEEN,
        severity=Severity.WARNING,
        seen=seen,
        why="The process that wrote it ended early, or the file was cut: measurements are lost.",
        remedy="Look at the child's log, then run the measurement again.",
    )
