"""A control: one rank waits on purpose before its calls, and the others' waiting must show it (P1).

What else the ranks differ by is waiting too: beside a small delay it decides what is found.
"""

import math
from collections.abc import Iterator, Sequence

from linkbound.evidence.stats import median
from linkbound.links.types import Operation
from linkbound.profile.decompose import Parts, RankStep, by_step, mean_parts
from linkbound.profile.types import Job, RankPoint, Timeline
from linkbound.units import format_time
from linkbound.values import Value

AIMED_SHARE = 0.1
"""Of the delay: within it the waiting is to be found."""
DELAYED = frozenset({Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER})
"""Calls that all ranks of a group enter at the same point: there the others wait out a delay."""
SPIN = "spin_kernel"
"""Of torch.cuda._sleep: it counts the GPU's cycles, so it takes longer where clocks fall."""


class Control(Value, frozen=True, kw_only=True):
    """Seconds of a step."""

    calls: int
    """Before which the slowed rank waits."""
    known_s: float
    """Its waits together: what its spins took where the trace shows them, else as asked for."""
    found_s: float
    """What the others' parts show as waiting."""
    difference_s: float
    """What the others compute, copy and leave idle beyond the slowed rank, its waits left out."""

    @property
    def error(self) -> float:
        """Of what was found, as a share of what was known."""
        return self.found_s / self.known_s - 1

    @property
    def decides(self) -> bool:
        """Whether the delay is large beside what the ranks differ by without it."""
        return abs(self.difference_s) <= AIMED_SHARE * self.known_s

    @property
    def deciding_s(self) -> float:
        """A delay of one call beside which that difference is half of what is aimed at, rounded
        up to 1, 2 or 5."""
        least_s = 2 * abs(self.difference_s) / (AIMED_SHARE * self.calls)
        ten_s = 10.0 ** math.floor(math.log10(least_s))
        return next(step * ten_s for step in (1, 2, 5, 10) if step * ten_s >= least_s)


def control_of(
    ranks: Sequence[RankPoint], steps: Sequence[RankStep], timelines: Sequence[Timeline], job: Job
) -> Control | None:
    """Of one point of one child; None without a slowed rank, or where calls have two sides."""
    if job.delay is None:
        return None
    slow = job.delay.rank
    calls = [call for one in ranks if one.rank == slow for call in one.calls]
    others = mean_parts([one for one in steps if one.rank != slow])
    slowed = mean_parts([one for one in steps if one.rank == slow])
    one_sided = any(call.operation not in DELAYED for call in calls)
    if others is None or slowed is None or not calls or one_sided:
        return None
    count = sum(call.count for call in calls)
    spun_s = list(_spins(timelines, slow))
    known_s = math.fsum(spun_s) / len(spun_s) if any(spun_s) else job.delay.seconds * count
    return Control(
        calls=count,
        known_s=known_s,
        found_s=others.waiting_s,
        difference_s=_own_s(others) - (_own_s(slowed) - known_s),
    )


def _spins(timelines: Sequence[Timeline], rank: int) -> Iterator[float]:
    """What the spins of each of its steps took."""
    for timeline in timelines:
        if timeline.rank == rank:
            for ran in by_step(timeline):
                yield math.fsum(one.end_s - one.start_s for one in ran if SPIN in one.name)


def _own_s(parts: Parts) -> float:
    return parts.compute_s + parts.host_copy_s + parts.gap_s


def middle(found: Sequence[Control]) -> Control | None:
    """The medians over repeats; None of none."""
    known_s = median([one.known_s for one in found])
    found_s = median([one.found_s for one in found])
    difference_s = median([one.difference_s for one in found])
    if known_s is None or found_s is None or difference_s is None:
        return None
    return Control(
        calls=found[0].calls, known_s=known_s, found_s=found_s, difference_s=difference_s
    )


def sentence(words: str, one: Control) -> str:
    """What was found of the delay, and whether that says anything."""
    than = "longer" if one.difference_s > 0 else "less"
    text = (
        f"{words}: the slowed rank holds the others up for {format_time(one.known_s)} a step; "
        f"{format_time(one.found_s)} are found as waiting ({one.error:+.1%}). Without it the "
        f"others' own work takes {format_time(abs(one.difference_s))} {than} than that rank's"
    )
    if one.decides:
        return f"{text}."
    return (
        f"{text}, more than {AIMED_SHARE:.0%} of the delay: too much to decide by. Slow it by "
        f"{format_time(one.deciding_s)} a call."
    )
