"""Whether two contenders' calls are alike, and on what ground: calls, or copies timed alone (D1).

Calls of an engine that its host drives scatter by tens of percents. Copies that were timed alone
do not: beside medians that are close they say how much of a call the path is. By themselves they
show nothing, since a path may cost more than its copies: streams that wait, work that no longer
overlaps.
"""

from enum import StrEnum

from linkbound.serve.compare_batches import BatchRow, Middle
from linkbound.serve.hand_over_rows import HandOverRow
from linkbound.units import format_time
from linkbound.values import Value

ALIKE = 0.05
"""Times that differ by less are called alike, as a gain below it keeps no plan."""
UNSURE = 0.25
"""Over all pairs of calls times may differ by so much and still be called alike."""
EXPLAINED = 0.10
"""Calls with close medians are called alike if copies alone explain less of a call, scatter or no
scatter."""


class Ground(StrEnum):
    """What shows that two contenders are alike."""

    CALLS = "calls"
    """Medians are close, and no pair of calls is far apart."""
    COPIES = "medians and copies"
    """Calls overlap, medians are close, and the copies alone explain little of a call."""


_WORDS = {
    Ground.CALLS: "This rests on the calls: their medians are close, and no pair of them is far "
    "apart.",
    Ground.COPIES: "This rests on the medians, which are close, and on the copies timed alone: "
    "single calls scatter and overlap.",
}


class Alike(Value, frozen=True, kw_only=True):
    """That two contenders are alike."""

    ground: Ground
    call_s: float
    """The call that the other one's is compared with, in the middle."""
    copies_s: float | None
    """By how much the copies alone of such a call differ; None where they were not timed."""

    @property
    def words(self) -> str:
        """The ground, and the most that the copies explain."""
        if self.copies_s is None:
            return _WORDS[self.ground]
        return (
            f"{_WORDS[self.ground]} The copies alone explain at most "
            f"{format_time(abs(self.copies_s))} of a call of {format_time(self.call_s)}, "
            f"{abs(self.copies_s) / self.call_s:.1%}."
        )


def alike(base: BatchRow, other: BatchRow, copies_s: float | None) -> Alike | None:
    """Whether `other` takes as long as `base`; None where nothing shows it.

    `copies_s` is by how much the copies of a call differ, timed alone; None where they were not.
    """
    one, two = base.whole_s, other.whole_s
    if one is None or two is None:
        return None
    low, high = ratios(two, one)
    overlap = low <= 1 <= high
    margin = UNSURE if overlap else ALIKE
    if abs(two.value / one.value - 1) >= ALIKE:
        return None
    if 1 - margin < low and high < 1 + margin:
        ground = Ground.CALLS
    elif overlap and copies_s is not None and abs(copies_s) / one.value < EXPLAINED:
        ground = Ground.COPIES
    else:
        return None
    return Alike(ground=ground, call_s=one.value, copies_s=copies_s)


def ratios(one: Middle, other: Middle) -> tuple[float, float]:
    """The least and the most over all pairs of calls."""
    return one.low / other.high, one.high / other.low


def differs(one: Middle, other: Middle, explained_s: float) -> bool:
    """Whether they are told apart, by more than `explained_s` seconds and what is called alike."""
    beyond_s = abs(one.value - other.value) - explained_s
    return told_apart(one, other) and beyond_s >= ALIKE * min(one.value, other.value)


def told_apart(one: Middle, other: Middle) -> bool:
    """Whether every call of one is longer than every call of the other."""
    return one.low > other.high or other.low > one.high


def copies_of_call_s(handed: HandOverRow) -> float:
    """Seconds of all copies of one call, timed alone: its prefill, then its further tokens."""
    last = handed.last
    return last.prefill.time_s + (handed.output_tokens - 1) * last.token.time_s
