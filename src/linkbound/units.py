"""Bytes, seconds and rates: plain SI numbers inside; parsing and formatting of what people write.

Sizes in arguments follow nccl-tests: K, M, G, T are powers of 1024; KB, MB, GB, TB are decimal;
KiB, MiB, GiB, TiB are binary. Rates are printed in GB/s = 1e9 bytes a second.
"""

import math
import re

from linkbound.errors import UsageError

GIB = 1024**3
LONGEST_NUMBER = 18
"""Characters of a number in an argument: more than any memory or message needs."""
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?\s*$", re.IGNORECASE)
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min|h)?\s*$")
_RATE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT])(i)?B/s\s*$", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def parse_size_bytes(text: str) -> int:
    """Bytes in `text` ("8", "64K", "16MiB", "1GB"). Raises UsageError for anything else."""
    found = _SIZE.match(text)
    if not found:
        raise UsageError(
            f"'{text}' is not a size.",
            why="Sizes are a number and a unit.",
            hint="Write 8, 64K, 16MiB (powers of 1024) or 1GB (powers of 1000).",
        )
    number, prefix, suffix = found.groups()
    if len(number) > LONGEST_NUMBER:
        raise UsageError(
            f"'{text[:20]}...' is not a size.",
            why="No memory and no message is that large.",
            hint="Write 8, 64K, 16MiB (powers of 1024) or 1GB (powers of 1000).",
        )
    base = 1000 if (suffix or "").upper() == "B" and prefix else 1024
    return round(float(number) * float(base ** _POWER[prefix.upper()]))


def parse_duration_s(text: str) -> float:
    """Seconds in `text` ("20us", "5 ms", "2"). Raises UsageError for anything else."""
    found = _DURATION.match(text)
    if not found:
        raise UsageError(
            f"'{text}' is not a time.",
            why="Times are a number and a unit.",
            hint="Write 20us, 5ms or 2s.",
        )
    if len(found.group(1)) > LONGEST_NUMBER:
        raise UsageError(
            f"'{text[:20]}...' is not a time.",
            why="Nothing here takes that long.",
            hint="Write 20us, 5ms or 2s.",
        )
    return float(found.group(1)) * _SECONDS[found.group(2) or "s"]


def parse_rate_bytes_per_s(text: str) -> float:
    """Bytes a second in `text` ("200GB/s", "1.5 GiB/s"). Raises UsageError for anything else."""
    found = _RATE.match(text)
    number = "" if found is None else found.group(1)
    if found is None or len(number) > LONGEST_NUMBER or float(number) == 0:
        raise UsageError(
            f"'{text[:40]}' is not a rate.",
            why="Rates are a number above 0 and a unit.",
            hint="Write 200GB/s (powers of 1000) or 1.5GiB/s (powers of 1024).",
        )
    base = 1024 if found.group(3) else 1000
    return float(number) * float(base ** _POWER[found.group(2).upper()])


def format_significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, thousands separated, no exponent."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    exponent = math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits - 1 - exponent)}f}"


def format_time(seconds: float) -> str:
    """us below 1 ms, ms below 1 s, else s."""
    if abs(seconds) < 1e-3:
        return f"{format_significant(seconds * 1e6)} us"
    if abs(seconds) < 1:
        return f"{format_significant(seconds * 1e3)} ms"
    return f"{format_significant(seconds)} s"


def format_rate(bytes_per_s: float) -> str:
    """GB/s (1e9), two decimals below 100; below 0.1 two digits, since no rate may read as none."""
    rate = bytes_per_s / 1e9
    if 0 < abs(rate) < 0.1:
        return f"{rate:.{1 - math.floor(math.log10(abs(rate)))}f} GB/s"
    return f"{rate:,.2f} GB/s" if abs(rate) < 100 else f"{rate:,.0f} GB/s"


def format_capacity(size_bytes: float) -> str:
    """GiB with two decimals: capacities only, never rates."""
    return f"{size_bytes / GIB:,.2f} GiB"


def format_size(size_bytes: int) -> str:
    """Binary size with the largest whole unit: 8 KiB, 1 MiB, 1,500 B."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power:,} {unit}"
    return f"{size_bytes:,} B"
