"""A bandwidth matrix without its tool's title: what people paste of a longer output (L1, M3).

Rows and columns are GPUs; which way a cell goes and how often it was taken is not known.
"""

import re

from linkbound.doctor.types import RateMatrix, Switch
from linkbound.links.types import Operation, PairRate

_HEADING = re.compile(
    r"^\s*(?:D\\D|GPU|Src\S*|Dst\S*|From\S*|To\S*|\S*[→>]\S*)?((?:\s+(?:GPU)?\d{1,3}){2,})\s*$"
)
_ROW = re.compile(r"^\s*(?:GPU)?(\d{1,3}):?((?:\s+\S+){2,})\s*$", re.I)
_START = re.compile(r"^\s*\S{0,20}\s+(?:GPU)?0\s+(?:GPU)?1\s", re.MULTILINE)
_NOTHING = frozenset(("\u2014", "\u2013", "-", "x", "X", "N/A", "n/a", "*", "/"))
_RATE = re.compile(r"^\d{1,6}(?:\.\d{1,6})?$")
_MOST = 64


def parse_rate_matrix(text: str, source: str) -> tuple[RateMatrix, ...]:
    """Complete square matrices of numbers with an empty or different diagonal."""
    if not _START.search(text):
        return ()
    found: list[RateMatrix] = []
    size = 0
    title = ""
    rows: list[list[float | None]] = []
    for line in text.splitlines():
        if heading := _counting(line):
            size, rows = heading, []
        elif size and (cells := _cells(line, len(rows), size)) is not None:
            rows.append(cells)
            if len(rows) == size:
                found.append(_matrix(rows, title, len(found), source))
                size, rows = 0, []
        else:
            size, rows = 0, []
            title = line.strip() or title
    return tuple(found)


def _counting(line: str) -> int:
    """How many GPUs a heading counts, from 0 up; 0 where the line is none."""
    found = _HEADING.match(line[:2000])
    if not found:
        return 0
    numbers = [int(word.removeprefix("GPU")) for word in found[1].split()]
    return len(numbers) if numbers == list(range(len(numbers))) and len(numbers) <= _MOST else 0


def _cells(line: str, row: int, size: int) -> list[float | None] | None:
    found = _ROW.match(line[:4000])
    words = found[2].split() if found else []
    if not found or int(found[1]) != row or len(words) != size:
        return None
    cells = [float(word) if _RATE.match(word) else None for word in words]
    known = all(
        cell is not None or (word in _NOTHING and at == row)
        for at, (cell, word) in enumerate(zip(cells, words, strict=True))
    )
    return cells if known and cells[row] is None else None


def _matrix(rows: list[list[float | None]], title: str, number: int, source: str) -> RateMatrix:
    lowered = title.lower()
    both = True if "bidirectional" in lowered else False if "unidirectional" in lowered else None
    return RateMatrix(
        source=source,
        name=title[:80] or f"matrix {number + 1}",
        switch=Switch.UNKNOWN,
        both_ways=both,
        rates=tuple(
            PairRate(
                src=f"GPU{src}",
                dst=f"GPU{dst}",
                operation=Operation.COPY_BOTH_WAYS if both else Operation.COPY,
                implementation="peer_copy",
                method="matrix without title",
                bytes_per_s=cell * 1e9,
            )
            for src, cells in enumerate(rows)
            for dst, cell in enumerate(cells)
            if cell
        ),
    )
