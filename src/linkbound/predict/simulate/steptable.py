"""Seconds of a step by what is in it, from a few steps that are really priced.

Between two priced contexts the time of a step is taken as a straight line: reading the cache is
one, and every other term does not depend on the context.
"""

import math
from collections.abc import Callable

Chunks = tuple[tuple[int, int], ...]
"""(tokens, cached tokens before them) of each prompt that a step takes a part of."""

StagePrices = Callable[[Chunks, int, float], tuple[float, ...]]
"""Seconds on every pipeline stage for (chunks, decoding sequences, their cached tokens)."""

# The first cell is this many tokens of context; each further one is twice as wide.
CELL_TOKENS = 4096
_SHIFT = CELL_TOKENS.bit_length() - 1

Line = tuple[float, float, float, float]
"""Start of a cell, seconds there, seconds a token more, end of the cell."""


class StepTable:
    """Times of steps, priced when they are first asked for."""

    def __init__(self, prices: StagePrices) -> None:
        self._prices = prices
        self._lines: dict[tuple[Chunks, int, int], tuple[Line, ...]] = {}

    def stages(self, chunks: Chunks, decodes: int, context: float) -> list[float]:
        """Seconds of a step on every stage."""
        lines = self._find(chunks, decodes, context)
        return [at_s + slope * (context - low) for low, at_s, slope, _ in lines]

    def seconds(self, chunks: Chunks, decodes: int, context: float) -> float:
        """Seconds of a step on the only stage."""
        low, at_s, slope, _ = self._find(chunks, decodes, context)[0]
        return at_s + slope * (context - low)

    def line(self, decodes: int, context: float) -> Line:
        """The line on which the time of decode steps lies around `context`."""
        return self._find((), decodes, context)[0]

    def _find(self, chunks: Chunks, decodes: int, context: float) -> tuple[Line, ...]:
        key = (chunks, decodes, (int(context) >> _SHIFT).bit_length())
        found = self._lines.get(key)
        if found is None:
            found = self._lines[key] = self._price(*key)
        return found

    def _price(self, chunks: Chunks, decodes: int, cell: int) -> tuple[Line, ...]:
        low = CELL_TOKENS << cell >> 1 if cell else 0
        high = CELL_TOKENS << cell
        starts = self._prices(chunks, decodes, float(low))
        ends = self._prices(chunks, decodes, float(high)) if decodes else starts
        return tuple(
            (float(low), start, (end - start) / (high - low), float(high))
            for start, end in zip(starts, ends, strict=True)
        )


def run_seconds(first_s: float, growth_s: float, steps: int) -> float:
    """Seconds of `steps` steps, the first of `first_s`, each `growth_s` longer than the last."""
    return steps * (first_s + growth_s * (steps - 1) / 2)


def steps_before(first_s: float, growth_s: float, seconds: float) -> int:
    """How many such steps start less than `seconds` after the first does."""
    if seconds <= 0:
        return 0
    if growth_s * seconds < 1e-9 * first_s * first_s:
        return math.ceil(seconds / first_s)
    # n steps take growth / 2 n^2 + (first - growth / 2) n; its root is where `seconds` are over.
    half = first_s - growth_s / 2
    return math.ceil((math.sqrt(half * half + 2 * growth_s * seconds) - half) / growth_s)
