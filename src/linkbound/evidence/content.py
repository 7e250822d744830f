"""Records as text and back: JSON for the study, one line of JSON a sample (E2).

Whatever the text, only InputError is raised; NaN and infinity are refused, as in canonical_json.
"""

import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.types import Record, Samples, as_read_back, canonical_json
from linkbound.values import Value

_LARGEST_BLOB_BYTES = 2**40


class StoredRecord(Value, frozen=True, kw_only=True):
    """A record as the study keeps it: the rows of its samples apart from the rest."""

    id: str
    kind: str
    content: str
    rows: tuple[str, ...]


def to_stored(record: Record) -> StoredRecord:
    """Text of a record. Raises ValueError where a value is NaN, infinite or of a wrong type."""
    record = as_read_back(record)
    bare = record
    rows: tuple[str, ...] = ()
    if record.samples is not None:
        empty = Samples(columns=record.samples.columns, rows=())
        bare = msgspec.structs.replace(record, samples=empty)
        rows = tuple(canonical_json(row).decode() for row in record.samples.rows)
    return StoredRecord(
        id=hashlib.sha256(canonical_json(record)).hexdigest(),
        kind=record.kind,
        content=canonical_json(bare).decode(),
        rows=rows,
    )


def from_stored(record_id: str, content: str, rows: Sequence[str], source: str) -> Record:
    """The record that `content` and its sample `rows` spell; `source` names it in the error."""
    plain = read_json(content, source)
    if rows:
        if not isinstance(plain, dict) or not isinstance(plain.get("samples"), dict):
            raise InputError(
                f"{source} has {len(rows)} rows of samples and no columns for them.",
                why="The rows cannot be told apart.",
            )
        plain["samples"]["rows"] = read_json(f"[{','.join(rows)}]", source)
    return record_with_id(record_id, plain, source)


def record_with_id(record_id: str, plain: object, source: str) -> Record:
    """The record that decoded JSON spells. Raises InputError unless `record_id` is its hash."""
    try:
        record = msgspec.convert(plain, Record)
        found = hashlib.sha256(canonical_json(record)).hexdigest()
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{source} is not a record: {error}.",
            why="Its evidence cannot be read.",
            hint="If a newer linkbound wrote it, read it with that version.",
        ) from error
    if found != record_id:
        raise InputError(
            f"{source} is not what it was when it was written.",
            why="It was edited or damaged, and its figures are no evidence any more.",
        )
    return record


def read_json(text: str | bytes, source: str) -> object:
    """Decoded JSON. Raises InputError for anything else, NaN included."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{source} is not JSON: {error}.", why="Its evidence cannot be read."
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


def pack_blob(data: bytes) -> bytes:
    """Raw bytes as the study keeps them."""
    return zlib.compress(data)


def unpack_blob(blob_id: str, size_bytes: int, packed: bytes) -> bytes | None:
    """The bytes whose SHA-256 is `blob_id`; None where `packed` holds anything else."""
    if not 0 <= size_bytes < _LARGEST_BLOB_BYTES:
        return None
    try:
        # Bounded: an edited file must not unpack to more than its row says.
        data = zlib.decompressobj().decompress(packed, size_bytes + 1)
    except zlib.error:
        return None
    return data if hashlib.sha256(data).hexdigest() == blob_id else None
