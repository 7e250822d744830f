"""The finding codes with their words, from vocabulary.toml, and how a finding is made (M3)."""

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

import msgspec
from msgspec import structs

from linkbound.doctor.types import Place
from linkbound.evidence.types import Finding, Level, Severity
from linkbound.values import Value

_LISTED = 8


class Code(Value, frozen=True, kw_only=True):
    """What a code means, whatever the input."""

    severity: Severity
    why: str
    remedy: str
    check: str | None = None
    """What would show it; None for codes that are never suspected."""


@cache
def vocabulary() -> Mapping[str, Code]:
    """Every code, in the order of the file."""
    text = (files("linkbound.doctor") / "vocabulary.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Code])


def seen(code: str, text: str, *, severity: Severity | None = None) -> Finding:
    """A finding that the input proves; `text` holds the value and the place."""
    return _finding(code, Level.SEEN, text, severity or vocabulary()[code].severity)


def healthy(code: str, text: str, *, why: str | None = None, remedy: str | None = None) -> Finding:
    """What looks odd and is fine; `why` and `remedy` where the code's words would say too much."""
    found = _finding(code, Level.HEALTHY, text, Severity.INFO)
    return structs.replace(found, why=why or found.why, remedy=remedy or found.remedy)


def suspected(code: str, text: str) -> Finding:
    """What fits and is not shown; the remedy names the check that would show it."""
    entry = vocabulary()[code]
    if entry.check is None:
        raise ValueError(f"{code} is never suspected: vocabulary.toml has no check for it")
    milder = Severity.WARNING if entry.severity is Severity.ERROR else entry.severity
    return _finding(code, Level.SUSPECTED, text, milder)


def _finding(code: str, level: Level, text: str, severity: Severity) -> Finding:
    entry = vocabulary()[code]
    check = entry.check if level is Level.SUSPECTED else None
    return Finding(
        code=code,
        level=level,
        severity=severity,
        seen=text,
        why=entry.why,
        remedy=f"To be sure: {check} If it is so: {entry.remedy}" if check else entry.remedy,
    )


def listed(items: Iterable[object], most: int = _LISTED) -> str:
    """`a, b, c and 5 more`: each item once, in order."""
    words = list(dict.fromkeys(map(str, items)))
    rest = len(words) - most
    return ", ".join(words) if rest <= 0 else f"{', '.join(words[:most])} and {rest} more"


def by_source(places: Iterable[Place]) -> str:
    """`dmesg.txt:3, 7, 9`: the lines of each file."""
    lines: dict[str, list[str]] = {}
    for place in places:
        lines.setdefault(place.source, []).extend([] if place.line is None else [str(place.line)])
    return "; ".join(
        source if not numbers else f"{source}:{listed(numbers)}"
        for source, numbers in lines.items()
    )
