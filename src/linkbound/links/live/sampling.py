"""How many samples are enough: until the spread is small, never for long (L1, L2).

All samples are kept; the rule is a value that goes into the record.
"""

import math
import time
from collections.abc import Callable

from linkbound.evidence.stats import cov
from linkbound.values import Value


class Rule(Value, frozen=True, kw_only=True):
    """When to stop."""

    enough: int = 10
    """Samples after which the spread is asked for no longer: what a median with p10 needs."""
    least: int = 5
    """Samples that a small spread can rest on."""
    spread: float = 0.02
    """Coefficient of variation at which `least` samples are enough, once they took `quick_s`."""
    quick_s: float = 0.03
    """Below this, further samples cost nothing and are taken."""
    cap_s: float = 1.5
    """Longest time for one cell: pageable copies of 1 GiB take 0.2 s each."""


class Sampled(Value, frozen=True, kw_only=True):
    """What sampling gave."""

    samples_s: tuple[float, ...]
    steady: bool
    """Ended by count or spread, not by the cap."""


def sample(
    take: Callable[[], float | None],
    rule: Rule,
    clock: Callable[[], float] = time.perf_counter,
) -> Sampled:
    """Samples of `take` in seconds; a None, a NaN and what is not above zero are no samples."""
    samples: list[float] = []
    start_s = clock()
    tries = 0
    while tries < 2 * rule.enough:
        tries += 1
        taken = take()
        if taken is not None and math.isfinite(taken) and taken > 0:
            samples.append(taken)
        spent_s = clock() - start_s
        if is_enough(samples, spent_s, rule):
            return Sampled(samples_s=tuple(samples), steady=True)
        if spent_s > rule.cap_s and samples:
            break
    return Sampled(samples_s=tuple(samples), steady=False)


def is_enough(samples: list[float], spent_s: float, rule: Rule) -> bool:
    """Whether sampling may stop by count or by spread."""
    if len(samples) >= rule.enough:
        return True
    if len(samples) < rule.least or spent_s < rule.quick_s:
        return False
    spread = cov(samples)
    return spread is not None and spread <= rule.spread
