"""The square tables that `nvidia-smi topo` prints: a heading of devices, then one row a device.

Tabs or spaces, coloured or not, whole or cut: what is there is kept and what lacks is named (M4).
"""

import re
from collections.abc import Callable

from linkbound.errors import InputError
from linkbound.values import Value

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_AFFINITY = re.compile(r"\b(?:CPU Affinity|NUMA Affinity|GPU NUMA ID)\b", re.IGNORECASE)
_GPU = re.compile(r"GPU\d{1,4}")
_ROW_NAME = re.compile(r"(?:GPU|NIC)\d{1,4}")
_DEVICE = re.compile(r"[A-Za-z][\w.\-]{0,63}")
MAX_DEVICES = 256
"""The widest host has some forty; a row of thousands is another kind of file."""


class Row(Value, frozen=True, kw_only=True):
    """One row: its device, the cells under the heading's devices, and the text after them."""

    device: str
    cells: tuple[str, ...]
    rest: str


class Matrix(Value, frozen=True, kw_only=True):
    """A table as printed, and notes on what was cut off."""

    devices: tuple[str, ...]
    columns: tuple[str, ...]
    """Headings to the right of the devices: `CPU Affinity`, ..."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def plain_lines(text: str) -> list[str]:
    """The lines of `text` without terminal colours."""
    return _ANSI.sub("", text).splitlines()


def is_gpu(device: str) -> bool:
    """Whether a heading names a GPU: `GPU0`."""
    return _GPU.fullmatch(device) is not None


def read_matrix(text: str, source: str, is_cell: Callable[[str], bool]) -> Matrix:
    """The first table whose cells all satisfy `is_cell`. Raises InputError if there is none."""
    lines = plain_lines(text)
    start = next((at for at, line in enumerate(lines) if _is_heading(line, is_cell)), None)
    heading = lines[start] if start is not None else ""
    body = lines[start + 1 :] if start is not None else lines
    named = tuple(_AFFINITY.split(heading)[0].split())
    notes: list[str] = []
    rows: list[Row] = []
    for line in body:
        if start is not None and rows and _is_heading(line, is_cell):
            notes.append("The text holds a second matrix; only the first one was read.")
            break
        row = _row(line, is_cell)
        # Prose around a posted matrix may look like a row ("Model X ..."): names decide.
        if row is not None and (row.device in named or _ROW_NAME.fullmatch(row.device)):
            rows.append(row)
        if len(rows) > MAX_DEVICES:
            break
    if not rows:
        raise _no_matrix(source)
    devices = named if named or len(rows) > MAX_DEVICES else _devices_of(rows, source)
    _check(devices, rows, source)
    notes += _what_lacks(devices, rows)
    columns = tuple(" ".join(name.split()) for name in _AFFINITY.findall(heading))
    return Matrix(devices=devices, columns=columns, rows=tuple(rows), notes=tuple(notes))


def _is_heading(line: str, is_cell: Callable[[str], bool]) -> bool:
    words = _AFFINITY.split(line)[0].split()
    return (
        bool(words)
        and is_gpu(words[0])
        and all(_DEVICE.fullmatch(word) and not is_cell(word) for word in words)
    )


def _row(line: str, is_cell: Callable[[str], bool]) -> Row | None:
    words = line.split()
    if len(words) < 2 or not _DEVICE.fullmatch(words[0]) or is_cell(words[0]):
        return None
    count = 0
    while count + 1 < len(words) and is_cell(words[count + 1]):
        count += 1
    if not count:
        return None
    rest = line
    for word in words[: count + 1]:
        rest = rest[rest.index(word) + len(word) :]
    return Row(device=words[0], cells=tuple(words[1 : count + 1]), rest=rest)


def _devices_of(rows: list[Row], source: str) -> tuple[str, ...]:
    """Without a heading, complete rows name the columns: the matrix is square."""
    names = tuple(row.device for row in rows)
    square = all(
        len(row.cells) == len(rows) and row.cells[at] == "X" for at, row in enumerate(rows)
    )
    if not square:
        raise InputError(
            f"{source}: {len(rows)} rows of a matrix without its heading.",
            why="Without the heading nobody knows which device a column is.",
            hint="Give the text from the line that starts with GPU0 on.",
        )
    return names


def _check(devices: tuple[str, ...], rows: list[Row], source: str) -> None:
    names = [row.device for row in rows]
    wrong = None
    if max(len(devices), len(rows)) > MAX_DEVICES:
        wrong = f"a matrix of more than {MAX_DEVICES} devices"
    elif len(set(devices)) != len(devices) or len(set(names)) != len(names):
        wrong = "a device twice"
    elif unknown := [name for name in names if name not in devices]:
        wrong = f"a row '{unknown[0]}' that the heading does not name"
    elif wide := [row for row in rows if len(row.cells) > len(devices)]:
        wrong = f"{len(wide[0].cells)} cells in row {wide[0].device} under {len(devices)} devices"
    elif crossed := [row.device for row in rows if not _diagonal_holds(devices, row)]:
        wrong = f"row {crossed[0]} with its X not under its own device"
    if wrong:
        raise InputError(
            f"{source}: {wrong}.",
            why="The matrix cannot be read without guessing.",
            hint="Give the text as nvidia-smi printed it.",
        )


def _diagonal_holds(devices: tuple[str, ...], row: Row) -> bool:
    own = devices.index(row.device)
    return all((cell == "X") == (at == own) for at, cell in enumerate(row.cells))


def _what_lacks(devices: tuple[str, ...], rows: list[Row]) -> list[str]:
    present = {row.device: len(row.cells) for row in rows}
    notes = []
    gpus = [device for device in devices if is_gpu(device) and device not in present]
    if gpus:
        notes.append(f"The matrix is incomplete: no row for {', '.join(gpus)}.")
    for name, count in present.items():
        if count < len(devices):
            notes.append(
                f"Row {name} is cut off after {count} of {len(devices)} devices: "
                f"nothing on {', '.join(devices[count:])}."
            )
    return notes


def _no_matrix(source: str) -> InputError:
    return InputError(
        f"{source}: no matrix of GPUs found.",
        why="Nothing was taken from this file.",
        hint="Give what `nvidia-smi topo -m` or `nvidia-smi topo -p2p r` prints.",
    )
