"""Cells of foreign tables: a number, or None for what is no number. Nothing here raises."""

import math
import re

_UNSIGNED = re.compile(r"\d{1,18}(?:\.\d{1,12})?(?:[eE][+-]?\d{1,3})?\Z")
_INTEGER = re.compile(r"-?\d{1,18}\Z")


def to_number(text: str) -> float | None:
    """A finite number of zero or more; None for N/A, nan, signs and anything else."""
    if not _UNSIGNED.match(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def to_positive(text: str) -> float | None:
    """A finite number above zero; None for anything else."""
    value = to_number(text)
    return value if value else None


def to_integer(text: str) -> int | None:
    """A whole number of at most 18 digits; None for anything else."""
    return int(text) if _INTEGER.match(text) else None


def quote(line: str, limit: int = 60) -> str:
    """A foreign line as it may stand in a message: trimmed, printable, short."""
    clean = "".join(character if character.isprintable() else "?" for character in line.strip())
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."
