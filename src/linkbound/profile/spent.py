"""Where a rank's process spends its time, told to stderr (P1)."""

import sys
import time

LEAST_S = 0.1
"""Parts below this are not told."""


class Spent:
    """Times what happens one after another: `since_s` is time.monotonic() at the start."""

    def __init__(self, number: int, since_s: float) -> None:
        self._number = number
        self._last_s = self._last_part_s = since_s
        self._parts: list[str] = []

    def part(self, what: str) -> None:
        """A part of what is told next ends here."""
        now_s = time.monotonic()
        spent_s = now_s - self._last_part_s
        if spent_s >= LEAST_S:
            self._parts.append(f"{what} {spent_s:.1f}")
        self._last_part_s = now_s

    def on(self, what: str) -> None:
        """It ends here: one line."""
        now_s = time.monotonic()
        parts = f" ({', '.join(self._parts)})" if self._parts else ""
        sys.stderr.write(f"rank {self._number}: {now_s - self._last_s:.1f} s {what}{parts}\n")
        self._last_s = self._last_part_s = now_s
        self._parts.clear()
