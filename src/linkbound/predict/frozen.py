"""Predictions that are fixed before anything is measured: a file with a hash to post (E3).

`id` is the SHA-256 of the canonical JSON of `content`: an edit shows. That nobody rewrote both is
shown by who has seen the id before: a post, a commit, a study that holds it.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.content import read_json
from linkbound.evidence.types import Fingerprint, canonical_json
from linkbound.predict.calibration import Calibration
from linkbound.predict.load_points import LoadPrediction
from linkbound.predict.points import Observation, Prediction, point_of
from linkbound.predict.score_types import Timing
from linkbound.values import Value

SCHEMA, VERSION = "linkbound.frozen", 1
CLOCKS_APART = timedelta(days=1)
"""A measurement that says it began later than this from now has another clock, or no true time."""
_HINT = "Give the file that `linkbound predict --freeze FILE` wrote, as it was written."


class FrozenContent(Value, frozen=True, kw_only=True):
    """Everything that the hash covers."""

    frozen: str
    """When, ISO 8601 with offset."""
    linkbound: str
    """Version of the program."""
    machine: str
    fingerprint: Fingerprint
    engine: str
    """Whose scheduler rules, in words."""
    calibration: Calibration
    inputs: tuple[str, ...]
    """Ids of the records that the predictions rest on."""
    predictions: tuple[Prediction, ...] = ()
    loads: tuple[LoadPrediction, ...] = ()
    left_out: tuple[str, ...] = ()
    """What was asked and is not predicted, each with why."""


class Frozen(Value, frozen=True, kw_only=True):
    """A frozen set: its content, the hash of it, and the file as it was written.

    A later version may read the file and say more of the same content: the file stays what it was.
    """

    id: str
    content: FrozenContent
    text: str
    """One JSON document, equal bytes for equal content."""


def freeze(content: FrozenContent) -> Frozen:
    """The content with its hash."""
    plain = msgspec.to_builtins(content)
    found = _hash(plain)
    document = {"schema": SCHEMA, "version": VERSION, "id": found, "content": plain}
    text = msgspec.json.format(canonical_json(document), indent=1).decode() + "\n"
    return Frozen(id=found, content=content, text=text)


def parse_frozen(data: bytes, source: str) -> Frozen:
    """The frozen set that a file holds. Raises InputError where it is not what was written."""
    document = read_json(data, source)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(
            f"{source} is no file of frozen predictions.",
            why=f"It has no schema {SCHEMA}.",
            hint=_HINT,
        )
    found = _hash(document.get("content"))
    if document.get("id") != found:
        raise InputError(
            f"{source} is not what was frozen: its content has the hash {found[:12]}, "
            f"its id says {str(document.get('id'))[:12]!a}.",
            why="Predictions that changed after they were frozen prove nothing.",
            hint=_HINT,
        )
    try:
        content = msgspec.convert(document["content"], FrozenContent)
        if _when(content.frozen) is None:
            raise ValueError(f"frozen is {content.frozen[:40]!a}, no time with its offset")
    except ValueError as error:
        raise InputError(
            f"{source} cannot be read: {error}.",
            why="Another version of linkbound wrote it, or its hash is of something else.",
            hint=_HINT,
        ) from None
    return Frozen(id=found, content=content, text=data.decode())


def _hash(content: object) -> str:
    return hashlib.sha256(canonical_json(content)).hexdigest()


def timing(frozen: str, started: str | None, now: datetime) -> Timing:
    """Whether predictions frozen at one time were there before a measurement of another.

    A measurement that began in the second of the freezing counts as earlier; one that has not
    begun yet, by the clock of who scores it, says nothing.
    """
    fixed, measured = _when(frozen), None if started is None else _when(started)
    if fixed is None or measured is None or not_yet(started, now) is not None:
        return Timing.UNKNOWN
    return Timing.BEFORE if fixed < measured else Timing.LATER


def not_yet(started: str | None, now: datetime) -> str | None:
    """Why the time of a measurement is none that can be: it lies ahead. None where it does not."""
    measured = None if started is None else _when(started)
    if measured is None or measured - now <= CLOCKS_APART:
        return None
    return (
        f"it says that it began {measured.isoformat()}, more than a day after now: clocks differ, "
        "so when it was measured is unknown, and it does not count."
    )


def _when(text: str) -> datetime | None:
    """A time that says its offset; None for anything else."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is None else found


def matched(
    predictions: Sequence[Prediction], observed: Iterable[tuple[Observation, str | None]]
) -> tuple[list[tuple[Prediction, Observation]], list[Observation]]:
    """Pairs of the same point and shape, and what was measured without having been predicted.

    Beside each observation stands the key of its shape; without one, models meet by their name.
    """
    by_shape = {(point_of(one.spec), one.shape): one for one in predictions}
    by_name = {(point_of(one.spec), one.spec.model): one for one in predictions}
    pairs, rest = [], []
    for one, shape in observed:
        if shape is None:
            found = by_name.get((point_of(one.spec), one.spec.model))
        else:
            found = by_shape.get((point_of(one.spec), shape))
        if found is None:
            rest.append(one)
        else:
            pairs.append((found, one))
    return pairs, rest
