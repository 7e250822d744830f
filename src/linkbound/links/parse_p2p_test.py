"""What p2pBandwidthLatencyTest printed: rates and latencies for each arm, and who may access whom.

Its titles say Enabled, but a pair that cannot access its peer is copied through the host all the
same (L1, L2): the arm of a figure is decided for each pair.
"""

import re

from linkbound.errors import InputError
from linkbound.links.cells import quote, to_integer, to_positive
from linkbound.links.types import Arm, Operation, P2pTestRun, PairLatency, PairRate, PeerAccess

_DEVICE = re.compile(r"^Device: (\d{1,4}), (.+?), pciBusID: \w+")
_ACCESS = re.compile(r"^Device=(\d{1,4}) (CAN|CANNOT) Access Peer Device=(\d{1,4})\s*$")
_TITLE = re.compile(
    r"^(?:(?P<ways>Unidirectional|Bidirectional) )?P2P=(?P<switch>Enabled|Disabled) "
    r"(?P<what>Bandwidth|Latency) (?:\(P2P (?P<mode>Writes|Reads)\) )?Matrix \((?:GB/s|us)\)"
)
_HEADING = re.compile(r"^\s*(D\\D|GPU|CPU)((?:\s+\d{1,4})+)\s*$")
_TOOL = "p2pBandwidthLatencyTest"


class _Matrix:
    """A matrix below its title; `corner` is D\\D, GPU or CPU."""

    def __init__(self, title: re.Match[str], corner: str, columns: int) -> None:
        self.title = title
        self.corner = corner
        self.columns = columns
        self.rows: list[list[float]] = []
        self.faults: list[str] = []

    @property
    def name(self) -> str:
        corner = "" if self.corner == "D\\D" else f" ({self.corner})"
        return f"{self.title.group(0)}{corner}"

    def read(self, cells: list[str]) -> None:
        values = [value for cell in cells[1:] if (value := to_positive(cell)) is not None]
        if len(self.rows) == self.columns:
            self.faults.append(f"more rows than devices: '{quote(' '.join(cells))}' was left out")
        elif to_integer(cells[0]) != len(self.rows) or len(values) != self.columns:
            self.faults.append(f"row not readable: '{quote(' '.join(cells))}'")
        else:
            self.rows.append(values)

    @property
    def complete(self) -> bool:
        return len(self.rows) == self.columns


class _Text:
    def __init__(self) -> None:
        self.devices: list[str] = []
        self.access: list[PeerAccess] = []
        self.matrices: list[_Matrix] = []
        self.title: re.Match[str] | None = None
        self.matrix: _Matrix | None = None
        self.orphans = 0

    def read(self, line: str) -> None:
        cells = line.split()
        if found := _TITLE.match(line):
            self.title, self.matrix = found, None
        elif (found := _HEADING.match(line)) and self.title is not None:
            self.matrix = _Matrix(self.title, found.group(1), len(cells) - 1)
            self.matrices.append(self.matrix)
        elif found := _DEVICE.match(line):
            self.devices.append(found.group(2))
        elif found := _ACCESS.match(line):
            self.access.append(_access(found))
        elif not cells or to_integer(cells[0]) is None:
            self.matrix = None
        elif self.matrix is not None:
            self.matrix.read(cells)
        elif self.title is None and not self.devices:
            self.orphans += 1


def parse_p2p_test(text: str, source: str) -> P2pTestRun:
    """Complete matrices of `text`; a cut one becomes a note. Raises InputError where none is."""
    state = _Text()
    for line in text.splitlines():
        state.read(line)
    if not (state.matrices or state.access):
        raise InputError(
            f"{source}: no matrix of {_TOOL} was found.",
            why="Each matrix stands below a title that says unit, direction and P2P state.",
            hint=f"Give the whole output of {_TOOL}.",
        )
    complete = [matrix for matrix in state.matrices if matrix.complete]
    arms = _Arms(state.access)
    return P2pTestRun(
        source=source,
        devices=tuple(state.devices),
        access=tuple(state.access),
        rates=tuple(rate for matrix in complete for rate in _rates(matrix, arms)),
        latencies=tuple(time for matrix in complete for time in _latencies(matrix, arms)),
        notes=_notes(state),
    )


def _notes(state: _Text) -> tuple[str, ...]:
    notes = []
    if state.orphans:
        notes.append(f"{state.orphans} rows above the first title: which matrix is not known")
    for matrix in state.matrices:
        notes.extend(f"{matrix.name}: {fault}" for fault in matrix.faults)
        if not matrix.complete:
            notes.append(
                f"{matrix.name}: {len(matrix.rows)} of {matrix.columns} rows, left out as cut"
            )
        elif state.devices and matrix.columns != len(state.devices):
            notes.append(
                f"{matrix.name}: {matrix.columns} columns, but {len(state.devices)} devices listed"
            )
    if not state.access:
        notes.append("the file does not say which pairs can access each other: arms unknown")
    return tuple(notes)


def _access(found: re.Match[str]) -> PeerAccess:
    src, can, dst = found.groups()
    return PeerAccess(src=f"GPU{src}", dst=f"GPU{dst}", granted=can == "CAN")


class _Arms:
    """The arm of a pair: what the title says, where the runtime grants it."""

    def __init__(self, access: list[PeerAccess]) -> None:
        self.granted = {(entry.src, entry.dst): entry.granted for entry in access}

    def of(self, src: str, dst: str, switch: str) -> Arm | None:
        if src == dst:
            return None
        if switch == "Disabled":
            return Arm.STAGED
        granted = self.granted.get((src, dst))
        if granted is None:
            return None
        return Arm.P2P if granted else Arm.STAGED


def _ends(matrix: _Matrix, row: int, column: int) -> tuple[str, str]:
    """Writes (the default) go from row to column, reads fetch from the column."""
    src, dst = (column, row) if matrix.title["mode"] == "Reads" else (row, column)
    return f"GPU{src}", f"GPU{dst}"


def _rates(matrix: _Matrix, arms: _Arms) -> list[PairRate]:
    if matrix.title["what"] != "Bandwidth":
        return []
    both = matrix.title["ways"] == "Bidirectional"
    rates = []
    for row, cells in enumerate(matrix.rows):
        for column, value in enumerate(cells):
            if both and row == column:
                continue  # two local copies at once: no link, and no rate of one copy
            src, dst = _ends(matrix, row, column)
            rates.append(_rate(matrix, src, dst, value, arms.of(src, dst, matrix.title["switch"])))
    return rates


def _rate(matrix: _Matrix, src: str, dst: str, value: float, arm: Arm | None) -> PairRate:
    local = src == dst
    operation = Operation.COPY
    if local:
        operation = Operation.LOCAL_COPY
    elif matrix.title["ways"] == "Bidirectional":
        operation = Operation.COPY_BOTH_WAYS
    return PairRate(
        src=src,
        dst=dst,
        operation=operation,
        implementation=_implementation(arm, local=local),
        method=f"{_TOOL} {matrix.name}",
        # On the diagonal the tool counts a byte twice, once read and once written.
        bytes_per_s=value * 1e9 / (2 if local else 1),
        arm=arm,
    )


def _implementation(arm: Arm | None, *, local: bool) -> str:
    """A copy between peers of unknown access may be direct or staged by the driver."""
    if arm is Arm.STAGED:
        return "driver"
    return "copy_engine" if local or arm is Arm.P2P else "peer_copy"


def _latencies(matrix: _Matrix, arms: _Arms) -> list[PairLatency]:
    if matrix.title["what"] != "Latency" or matrix.corner not in ("GPU", "CPU"):
        return []
    meaning = "issue interval of 16-byte copies" if matrix.corner == "GPU" else "host time to issue"
    found = []
    for row, cells in enumerate(matrix.rows):
        for column, value in enumerate(cells):
            src, dst = _ends(matrix, row, column)
            found.append(
                PairLatency(
                    src=src,
                    dst=dst,
                    method=f"{_TOOL} {matrix.name}: {meaning}",
                    latency_s=value * 1e-6,
                    arm=arms.of(src, dst, matrix.title["switch"]),
                )
            )
    return found
