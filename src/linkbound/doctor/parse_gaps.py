"""Where a posted output was cut, as far as its own layout shows it (M3).

A table that ends early is no proof that the rest is fine: missing is not zero.
"""

import re
from collections.abc import Iterator

from linkbound.doctor.types import Message, Place

_COLUMN = re.compile(
    r"^(?:GPU\d+|NIC\d+|mlx\w+|hfi\w+|bnxt\w+|irdma\w+|rdma\w+|ib\w+|efa\w*|\w+_\d+)$"
)
_ROW = re.compile(r"^GPU\d{1,4}$")
_CELL = re.compile(r"^(?:X|NV\d+|C2C|PIX|PXB|PHB|NODE|SYS|OK|CNS|GNS|TNS|DR|NS|U)$")
_TREE_TOP = re.compile(r"^-\+-\[[0-9a-f:-]+\]-", re.I)
_TREE_END = re.compile(r"^ \\-\[[0-9a-f:-]+\]-", re.I)
_TREE_ROOT = re.compile(r"^ \+-\[[0-9a-f:-]+\]-", re.I)
_COUNTING = re.compile(r"^\s+0(?:\s+\d{1,3})+\s*$")
_CELLS = re.compile(r"^\s*(\d{1,3})((?:\s+(?:[\d.]+|N/A))+)\s*$")
_COLUMN_TITLES = ("CPU", "NUMA", "GPU")


def parse_gaps(text: str, source: str) -> tuple[Message, ...]:
    """The places at which tables and trees stop before their own layout ends."""
    lines = text.splitlines()
    return (
        *(_missing_rows(lines, source) if "GPU0" in text else ()),
        *(_open_trees(lines, source) if "-+-[" in text else ()),
        *(_short_matrices(lines, source) if "memcpy" in text else ()),
    )


def _gap(source: str, line: int, text: str) -> Message:
    return Message(place=Place(source=source, line=line), kind="gap", text=text)


def _missing_rows(lines: list[str], source: str) -> Iterator[Message]:
    """NICs that head a column of `topo -m` and have no row; GPUs are told by the reader."""
    for number, line in enumerate(lines, 1):
        names = header(line)
        nics = [name for name in names if not name.startswith("GPU")]
        if not nics or "GPU0" not in names:
            continue
        below = {words[0] for words in map(str.split, lines[number:]) if len(words) > len(nics)}
        missing = [nic for nic in nics if nic not in below]
        if missing:
            listed = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
            yield _gap(source, len(lines), f"no row for {listed}")
        return


def header(line: str) -> list[str]:
    """The device names of a heading; empty where the line is a row of the table."""
    if "GPU0" not in line:
        return []
    names = []
    for word in line.split():
        if not _COLUMN.match(word):
            break
        names.append(word)
    rest = line.split()[len(names) : len(names) + 1]
    heading = not rest or rest[0] in _COLUMN_TITLES
    return names if heading and len(names) > 1 else []


def parse_surplus(text: str, source: str) -> tuple[Message, ...]:
    """Rows of `topo -m` or `topo -p2p` for GPUs that head no column."""
    names: list[str] = []
    found: list[Message] = []
    if "GPU0" not in text:
        return ()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if heading := header(line):
            names = [name for name in heading if name.startswith("GPU")]
        elif len(names) > 1 and words and _ROW.match(words[0]) and len(words) > 2:
            cells = [word for word in words[1:] if _CELL.match(word)]
            if words[0] not in names and len(cells) > 1:
                text = f"a row for {words[0]}, but columns for {names[0]} to {names[-1]} only"
                found.append(
                    Message(place=Place(source=source, line=number), kind="size", text=text)
                )
    return tuple(found)


def _open_trees(lines: list[str], source: str) -> Iterator[Message]:
    """`lspci -t` closes its last root with a backslash."""
    tops = [number for number, line in enumerate(lines, 1) if _TREE_TOP.match(line)]
    more = [number for number, line in enumerate(lines, 1) if _TREE_ROOT.match(line)]
    if tops and not any(map(_TREE_END.match, lines)):
        last = max((*tops, *more))
        yield _gap(source, len(lines), f"the tree's last root (line {last}) is not closed")


def _short_matrices(lines: list[str], source: str) -> Iterator[Message]:
    """nvbandwidth counts its columns; a square matrix with fewer rows was cut."""
    columns, rows, title, name = 0, 0, "", ""
    for number, line in enumerate([*lines, ""], 1):
        cells = _CELLS.match(line) if columns else None
        if cells and len(cells[2].split()) == columns:
            rows += 1
            continue
        square = "CPU" not in title and (name.startswith("device_to_device") or rows > 1)
        if columns and 0 < rows < columns and square:
            yield _gap(source, number, f"{rows} of {columns} rows below '{title[:60]}'")
        columns, rows = 0, 0
        if _COUNTING.match(line) and title.startswith("memcpy"):
            columns = len(line.split())
        elif line.strip():
            title = line.strip()
            name = title.removeprefix("Running ") if title.startswith("Running ") else name
