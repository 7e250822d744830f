"""How far a sweep is and how long it will take: first by assumed rates, then by the real pace."""

from collections.abc import Sequence

from linkbound.links.live.cell import Cell, CellKind
from linkbound.links.live.speeds import window_calls
from linkbound.links.live.tasks import PEER_METHODS, Method

START_S = 1.5
"""A child's imports, contexts and kernels."""
_CELL_S = 0.02
_SAMPLES = 11
_DIRECT_BYTES_PER_S = 50e9
_STAGED_BYTES_PER_S = 15e9
_PAGEABLE_BYTES_PER_S = 5e9
_CAP_S = 2.5
_WINDOWS = {CellKind.RATE, CellKind.BOTH_WAYS}


def expected_s(cell: Cell) -> float:
    """Seconds that a cell takes at the rates of a slow link: what to say before it is measured."""
    rate = _STAGED_BYTES_PER_S
    if cell.method in PEER_METHODS:
        rate = _DIRECT_BYTES_PER_S
    elif cell.method is Method.PAGEABLE:
        rate = _PAGEABLE_BYTES_PER_S
    if cell.kind is CellKind.VERIFY:
        return _CELL_S + sum(cell.sizes) / rate
    calls = window_calls(cell) if cell.kind in _WINDOWS and cell.size_bytes else 1
    times = window_calls(cell) if cell.kind is CellKind.PROOF else _SAMPLES * calls
    return min(_CAP_S, _CELL_S + times * cell.size_bytes / rate)


class Progress:
    """Counts cells and scales what is left by how the expectation fared so far."""

    def __init__(self, cells: Sequence[Cell], children: int) -> None:
        self.total = len(cells)
        self.done = 0
        self._left_s = sum(map(expected_s, cells)) + children * START_S
        self._expected_s = 0.0
        self._current_s = 0.0

    @property
    def expected_s(self) -> float:
        """Seconds that the whole was expected to take."""
        return self._left_s + self._expected_s

    def begin(self, cell: Cell) -> None:
        """The next cell begins; the last one is over."""
        self._expected_s += self._current_s
        self._left_s -= self._current_s
        self._current_s = expected_s(cell)
        self.done += 1

    def left_s(self, elapsed_s: float) -> float:
        """Seconds still to go, after `elapsed_s`."""
        pace = elapsed_s / self._expected_s if self._expected_s > 0 else 1.0
        return max(0.0, self._left_s * min(pace, 10.0))
