"""Seconds by kind of term with low and high; kinds err apart, steps of a kind together (E3)."""

import math
from operator import add

from linkbound.predict.types import Estimate, TermKind

KINDS = tuple(TermKind)
Parts = dict[TermKind, tuple[float, float, float]]


class Cost:
    """A sum that is added to: one row of value, low and high for each kind, in their order.

    Rows and not a mapping: thousands of plans a second are added up here.
    """

    __slots__ = ("high", "low", "value")

    def __init__(
        self,
        value: list[float] | None = None,
        low: list[float] | None = None,
        high: list[float] | None = None,
    ) -> None:
        self.value = value or [0.0] * len(KINDS)
        self.low = low or [0.0] * len(KINDS)
        self.high = high or [0.0] * len(KINDS)

    def add(self, kind: TermKind, value: float, low: float, high: float) -> None:
        self.put(KINDS.index(kind), value, low, high)

    def put(self, index: int, value: float, low: float, high: float) -> None:
        """`add` by the kind's place in KINDS."""
        self.value[index] += value
        self.low[index] += low
        self.high[index] += high

    def add_cost(self, other: "Cost", times: float = 1.0) -> None:
        """Add `times` as much as the other costs."""
        self.value = _sum(self.value, other.value, times)
        self.low = _sum(self.low, other.low, times)
        self.high = _sum(self.high, other.high, times)

    @property
    def seconds(self) -> float:
        return sum(self.value)

    @property
    def parts(self) -> Parts:
        """Value, low and high of every kind that is there."""
        rows = zip(KINDS, self.value, self.low, self.high, strict=True)
        return {kind: (value, low, high) for kind, value, low, high in rows if value or high}

    def estimate(self, model_error: float) -> Estimate:
        """The sum; half-widths of the kinds and the model's own error add in squares."""
        value = self.seconds
        own = (model_error * value) ** 2
        below = own + sum((v - low) ** 2 for v, low in zip(self.value, self.low, strict=True))
        above = own + sum((high - v) ** 2 for v, high in zip(self.value, self.high, strict=True))
        return Estimate(
            value=value,
            low=max(0.0, value - math.sqrt(below)),
            high=value + math.sqrt(above),
        )


def _sum(mine: list[float], more: list[float], times: float) -> list[float]:
    if times == 1:
        return list(map(add, mine, more))
    return [one + times * other for one, other in zip(mine, more, strict=True)]
