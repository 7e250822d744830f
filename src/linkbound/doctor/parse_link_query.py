"""`nvidia-smi --query-gpu=... --format=csv`: each GPU's PCIe link, now and at most (M3)."""

import csv
import re

from linkbound.doctor.types import LinkRow, Place

_HEADER = re.compile(r"^(?=.*\bpcie\.link\.(?:gen|width)\b).*,.*$")
_MOST_ROWS = 512
_BUSY_PERCENT = 50


def parse_link_query(text: str, source: str) -> tuple[LinkRow, ...]:
    """The rows below a header that names pcie.link.*; none where there is no such header."""
    if "pcie.link." not in text:
        return ()
    names: list[str] = []
    found: list[LinkRow] = []
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > 4000:
            continue
        if _HEADER.match(line):
            names = [_name(cell) for cell in _cells(line)]
        elif names and len(cells := _cells(line)) == len(names) and len(found) < _MOST_ROWS:
            row = _row(dict(zip(names, cells, strict=True)), len(found))
            found.append(_link(row, Place(source=source, line=number)))
        elif line.strip():
            names = []
    return tuple(found)


def _cells(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return []


def _name(cell: str) -> str:
    """`pcie.link.width.current` of `pcie.link.width.current [x]`."""
    return cell.partition("[")[0].strip().lower()


def _row(row: dict[str, str], position: int) -> dict[str, str]:
    return {"index": str(position), **row}


def _link(row: dict[str, str], place: Place) -> LinkRow:
    return LinkRow(
        place=place,
        gpu=f"GPU{row['index']}" if row["index"].isascii() and row["index"].isdigit() else "GPU",
        model=row.get("name") or row.get("gpu_name"),
        generation=_number(row, "pcie.link.gen.current", "pcie.link.gen.gpucurrent"),
        max_generation=_number(row, "pcie.link.gen.max"),
        width=_number(row, "pcie.link.width.current"),
        max_width=_number(row, "pcie.link.width.max"),
        busy=_busy(row),
    )


def _number(row: dict[str, str], *names: str) -> int | None:
    for name in names:
        found = re.match(r"^x?(\d{1,3})x?(?: %)?$", row.get(name, ""))
        if found and int(found[1]):
            return int(found[1])
    return None


def _busy(row: dict[str, str]) -> bool | None:
    used = re.match(r"^(\d{1,3})(?: ?%)?$", row.get("utilization.gpu", ""))
    return int(used[1]) >= _BUSY_PERCENT if used else None
