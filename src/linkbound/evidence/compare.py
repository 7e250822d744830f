"""Two studies side by side: what differs between machines that are the same (DESIGN decision 10).

Identity keys must agree, else the comparison is refused and names the key; condition keys that
differ are the difference.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard, assert_never

import msgspec

from linkbound.errors import StudyError
from linkbound.evidence.stats import median
from linkbound.evidence.study import Study
from linkbound.evidence.types import (
    Derived,
    Failed,
    Fingerprint,
    Measured,
    Outcome,
    Predicted,
    Record,
    Skipped,
    Stated,
    canonical_json,
)
from linkbound.values import Value

MACHINE_KIND = "topology.machine"
Scalar = float | int | str | bool | None
_RECORD_ID = re.compile(r"[0-9a-f]{64}")
_Key = tuple[str, str, str, str | None]


class Difference(Value, frozen=True, kw_only=True):
    """One thing that the studies say differently; None where one of them does not say it."""

    name: str
    a: Scalar
    b: Scalar
    ratio: float | None = None
    """b / a for numbers; None where a is 0 or one of the two is not a number."""


class RecordComparison(Value, frozen=True, kw_only=True):
    """Two records of the same thing, got by the same method, and where they differ."""

    kind: str
    subject: Mapping[str, Any]
    method: str
    a: str
    b: str
    """Record ids."""
    differences: tuple[Difference, ...]


class NotCompared(Value, frozen=True, kw_only=True):
    """A record without a counterpart, and why."""

    study: str
    record_id: str
    kind: str
    subject: Mapping[str, Any]
    reason: str


class StudyComparison(Value, frozen=True, kw_only=True):
    """Study b against study a."""

    machines: tuple[str, ...]
    """Fingerprint ids that both studies have."""
    conditions: tuple[Difference, ...]
    records: tuple[RecordComparison, ...]
    not_compared: tuple[NotCompared, ...]


def compare_studies(a: Study, b: Study) -> StudyComparison:
    """Compare the latest record of each subject. Raises StudyError for unlike machines."""
    machines_a, machines_b = _fingerprints(a), _fingerprints(b)
    shared = [key for key in machines_a if key in machines_b]
    # A study may hold a second machine whose engine runs stand in: the first is what it is about.
    if next(iter(machines_a), None) != next(iter(machines_b), None):
        raise _unlike(a, b, list(machines_a.values()), list(machines_b.values()))
    conditions = [
        difference
        for key in shared
        for difference in _differences(machines_a[key].condition, machines_b[key].condition)
    ]
    latest_a, latest_b = _latest(a), _latest(b)
    pairs = [
        _compare_records(a, latest_a[key], b, latest_b[key])
        for key in latest_a
        if key in latest_b and _comparable(latest_a[key], latest_b[key])
    ]
    alone = (*_alone("a", latest_a, latest_b), *_alone("b", latest_b, latest_a))
    return StudyComparison(
        machines=tuple(shared),
        conditions=tuple(conditions),
        records=tuple(pairs),
        not_compared=alone,
    )


def outcome_word(outcome: Outcome) -> str:
    """The outcome in words, with its reason where there is no number."""
    match outcome:
        case Measured():
            return "measured"
        case Stated():
            return "stated"
        case Derived():
            return "derived"
        case Predicted(value=value, low=low, high=high):
            return f"predicted ~{value:.4g} ({low:.4g}-{high:.4g})"
        case Skipped(reason=reason):
            return f"skipped: {reason.text}"
        case Failed(reason=reason):
            return f"failed: {reason.text}"
        case _:
            assert_never(outcome)


def _fingerprints(study: Study) -> dict[str, Fingerprint]:
    """Machines of a study by fingerprint id; the latest word on each one's condition counts."""
    found = (_fingerprint(record) for record in study.find(MACHINE_KIND))
    return {fingerprint.id: fingerprint for fingerprint in found if fingerprint is not None}


def _fingerprint(record: Record) -> Fingerprint | None:
    match record.outcome:
        case Derived(values=values) | Stated(values=values) | Measured(values=values):
            try:
                return msgspec.convert(values.get("fingerprint"), Fingerprint)
            except msgspec.ValidationError as error:
                raise StudyError(
                    f"Record {record.id[:12]} ({record.kind}) has no fingerprint: {error}.",
                    why="Studies of unlike machines cannot be told apart.",
                    hint="Run the topology stage again.",
                ) from error
    return None


def _unlike(a: Study, b: Study, in_a: list[Fingerprint], in_b: list[Fingerprint]) -> StudyError:
    """Name the identity keys that keep the studies apart."""
    why = "Figures of unlike machines cannot be compared."
    if not in_a or not in_b:
        empty = b if in_a else a
        return StudyError(
            f"{empty.path} has no record of kind {MACHINE_KIND}.",
            why=why,
            hint="Run its topology stage, then compare again.",
        )
    differences = _differences(in_a[0].identity, in_b[0].identity)
    keys = "; ".join(f"{one.name}: {said(one.a)} against {said(one.b)}" for one in differences)
    return StudyError(
        f"{a.path} and {b.path} are of different machines: {keys}.",
        why=why,
        hint="Compare studies of the same GPUs and links.",
    )


def said(value: Scalar) -> str:
    """A value in a sentence or a table; the words `not said` where a study is silent."""
    if value is None:
        return "not said"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _latest(study: Study) -> dict[_Key, Record]:
    """The last record of each subject, method and machine; machines are compared by themselves."""
    return {_key(record): record for record in study.records() if record.kind != MACHINE_KIND}


def _key(record: Record) -> _Key:
    subject = canonical_json(record.subject).decode()
    return record.kind, subject, record.method, record.machine


def _comparable(a: Record, b: Record) -> bool:
    return a.method_version == b.method_version


def _alone(
    name: str, mine: dict[_Key, Record], others: dict[_Key, Record]
) -> Iterator[NotCompared]:
    for key, record in mine.items():
        other = others.get(key)
        if other is not None and _comparable(record, other):
            continue
        reason = "only in this study"
        if other is not None:
            reason = f"method version {record.method_version} against {other.method_version}"
        yield NotCompared(
            study=name,
            record_id=record.id,
            kind=record.kind,
            subject=record.subject,
            reason=reason,
        )


def _compare_records(in_a: Study, a: Record, in_b: Study, b: Record) -> RecordComparison:
    said_a, said_b = _without_ids(in_a, _said_by(a)), _without_ids(in_b, _said_by(b))
    return RecordComparison(
        kind=a.kind,
        subject=a.subject,
        method=a.method,
        a=a.id,
        b=b.id,
        differences=tuple(_differences(said_a, said_b)),
    )


def _without_ids(study: Study, scalars: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Ids of the study's own records are no values: those records are compared themselves."""
    return {
        name: value
        for name, value in scalars.items()
        if not (isinstance(value, str) and _RECORD_ID.fullmatch(value) and study.has(value))
    }


def _said_by(record: Record) -> dict[str, Scalar]:
    """Every scalar of the outcome by its path, and the median of each column of samples."""
    scalars: dict[str, Scalar] = {}
    match record.outcome:
        case Measured(values=values) | Stated(values=values) | Derived(values=values):
            scalars |= _flat("", values)
        case Predicted(value=value, low=low, high=high, values=values):
            scalars |= {"value": value, "low": low, "high": high, **_flat("", values)}
        case Skipped() | Failed():
            scalars["outcome"] = outcome_word(record.outcome)
    return scalars | _medians(record)


def _flat(path: str, value: object) -> dict[str, Scalar]:
    if isinstance(value, Mapping):
        parts = {f"{path}.{name}" if path else str(name): part for name, part in value.items()}
    elif isinstance(value, (list, tuple)):
        parts = {f"{path}[{number}]": part for number, part in enumerate(value)}
    else:
        return {path: value if isinstance(value, (float, int, bool)) else _text(value)}
    return {name: scalar for at, part in parts.items() for name, scalar in _flat(at, part).items()}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _medians(record: Record) -> dict[str, Scalar]:
    if record.samples is None:
        return {}
    medians: dict[str, Scalar] = {}
    for name in record.samples.columns:
        cells = [cell for cell in record.samples.column(name) if isinstance(cell, (int, float))]
        if cells:
            medians[f"samples.{name} (median)"] = median(cells)
    return medians


def _differences(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> Iterator[Difference]:
    for name in dict.fromkeys((*a, *b)):
        left, right = a.get(name), b.get(name)
        if left != right:
            yield Difference(name=name, a=left, b=right, ratio=_ratio(left, right))


def _ratio(a: Scalar, b: Scalar) -> float | None:
    if not _is_number(a) or not _is_number(b) or a == 0:
        return None
    try:
        ratio = b / a
    except OverflowError:
        return None
    return ratio if math.isfinite(ratio) else None


def _is_number(value: Scalar) -> TypeGuard[float | int]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
