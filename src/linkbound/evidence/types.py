"""What a record is: who measured what, how, on which machine, and what came of it (E2)."""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from linkbound.values import Value

SCHEMA_VERSION = 1
# Not msgspec's encoder: it writes NaN as null, so that a broken number would read as absent.
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


class Reason(Value, frozen=True, kw_only=True):
    """Why there is no number: a stable code and a sentence."""

    code: str
    text: str


class Measured(Value, frozen=True, kw_only=True, tag="measured", tag_field="outcome"):
    """Values that an instrument (ours or a foreign tool) gave; units are in the keys."""

    values: Mapping[str, Any]


class Stated(Value, frozen=True, kw_only=True, tag="stated", tag_field="outcome"):
    """Values that a file or the user states: a model's configuration, a load."""

    values: Mapping[str, Any]


class Derived(Value, frozen=True, kw_only=True, tag="derived", tag_field="outcome"):
    """Values computed from the parent records alone."""

    values: Mapping[str, Any]


class Predicted(Value, frozen=True, kw_only=True, tag="predicted", tag_field="outcome"):
    """A value that was not measured, with its interval and what it rests on (E3)."""

    value: float
    low: float
    high: float
    basis: str
    values: Mapping[str, Any] = {}


class Skipped(Value, frozen=True, kw_only=True, tag="skipped", tag_field="outcome"):
    """Not run, and why."""

    reason: Reason


class Failed(Value, frozen=True, kw_only=True, tag="failed", tag_field="outcome"):
    """Run, without a usable result; `log` is the id of the blob with its last words."""

    reason: Reason
    log: str | None = None


Outcome = Measured | Stated | Derived | Predicted | Skipped | Failed


class Samples(Value, frozen=True, kw_only=True):
    """Raw samples as rows of a table; a cell that was not measured is null."""

    columns: tuple[str, ...]
    rows: tuple[tuple[float | int | str | None, ...], ...]

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {number} has {len(row)} cells for {len(self.columns)} columns"
                )

    def column(self, name: str) -> tuple[float | int | str | None, ...]:
        """The cells of one column, in row order. Raises ValueError for an unknown name."""
        at = self.columns.index(name)
        return tuple(row[at] for row in self.rows)


class Record(Value, frozen=True, kw_only=True):
    """One piece of evidence. Its id is the hash of its content."""

    kind: str
    """Layer and noun: `topology.source`, `links.curve`, `serve.run`, `predict.step`, ..."""
    subject: Mapping[str, Any] = {}
    """The dimensions that name this record among its kind (file name, split, arm, batch, ...)."""
    outcome: Outcome
    method: str
    method_version: int = 1
    schema_version: int = SCHEMA_VERSION
    machine: str | None = None
    """Fingerprint id of the machine the figures are from; None where no machine is involved."""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    started: str | None = None
    """ISO 8601 with offset; None where the recording does not say."""
    duration_s: float | None = None
    parents: tuple[str, ...] = ()
    samples: Samples | None = None
    blobs: tuple[str, ...] = ()
    """Ids (SHA-256) of raw outputs kept in the study."""

    @property
    def id(self) -> str:
        """SHA-256 of the canonical JSON of the content, in hexadecimal."""
        return record_id(self)


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys and no spaces. Raises ValueError for NaN and infinity."""
    return _CANONICAL.encode(msgspec.to_builtins(value, str_keys=True)).encode()


def as_read_back(record: Record) -> Record:
    """The record as a reader of its JSON gets it: 3 in a float field is 3.0, a tuple a list."""
    return msgspec.convert(msgspec.to_builtins(record, str_keys=True), Record)


def record_id(record: Record) -> str:
    """The identity of a record: equal content, equal id, in any study (DESIGN decision 11)."""
    # Hashed as read back: a record built with `duration_s=3` must keep its id when it is reread.
    return hashlib.sha256(canonical_json(as_read_back(record))).hexdigest()


class Fingerprint(Value, frozen=True, kw_only=True):
    """Which machine: `identity` must agree for two records to meet, `condition` may differ."""

    identity: Mapping[str, str]
    condition: Mapping[str, str] = {}

    @property
    def id(self) -> str:
        """Hash of the identity keys alone, 16 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.identity)).hexdigest()[:16]


class Level(StrEnum):
    """How sure a finding is."""

    SEEN = "seen"
    SUSPECTED = "suspected"
    HEALTHY = "healthy"


class Severity(StrEnum):
    """What a finding means for the user's plan."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Finding(Value, frozen=True, kw_only=True):
    """What was seen, why it matters, what to do (M3)."""

    code: str
    level: Level
    severity: Severity
    seen: str
    why: str
    remedy: str
    record_ids: tuple[str, ...] = ()


class Provenance(StrEnum):
    """Where a figure comes from, weakest last."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    CALIBRATED = "calibrated"
    ROOFLINE = "roofline"
    PRIOR = "prior"
    STATED = "stated"


class Figure(Value, frozen=True, kw_only=True):
    """A number that may be shown: value, unit, interval, and the records it rests on (E2)."""

    value: float
    unit: str
    provenance: Provenance
    low: float | None = None
    high: float | None = None
    n: int | None = None
    record_ids: tuple[str, ...] = ()
    basis: str = ""
    """For a figure that was not measured: the sentence that says what it rests on."""
