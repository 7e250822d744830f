"""What samples say: pure functions, computed again whenever they are shown (E2).

None stands for a statistic that so few samples do not have.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from linkbound.values import Value

CONFIDENCE = 0.95
"""How often an interval holds the true quantile; reports say so beside it."""


class QuantileInterval(Value, frozen=True, kw_only=True):
    """Two samples that hold the true quantile between them, and how surely."""

    low: float
    high: float
    coverage: float
    """At least the confidence asked for: ranks are whole numbers."""


def quantile(samples: Sequence[float], q: float) -> float | None:
    """The `q` quantile, 0 <= q <= 1, linear between ranks (numpy's default); None of no samples."""
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile is from 0 to 1, not {q}")
    if not samples:
        return None
    ordered = sorted(samples)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    share = place - below
    # From the nearer end, so that the result never leaves the two samples by rounding.
    if share < 0.5:
        return low + (high - low) * share
    return high - (high - low) * (1 - share)


def median(samples: Sequence[float]) -> float | None:
    """The middle of the samples; None of no samples."""
    return quantile(samples, 0.5)


def p10(samples: Sequence[float]) -> float | None:
    """The tenth percentile; None of no samples."""
    return quantile(samples, 0.1)


def p90(samples: Sequence[float]) -> float | None:
    """The ninetieth percentile; None of no samples."""
    return quantile(samples, 0.9)


def cov(samples: Sequence[float]) -> float | None:
    """Coefficient of variation: standard deviation (n - 1) over mean; None where it has none."""
    if len(samples) < 2:
        return None
    mean = math.fsum(samples) / len(samples)
    if mean == 0:
        return None
    squares = math.fsum((sample - mean) ** 2 for sample in samples)
    return math.sqrt(squares / (len(samples) - 1)) / abs(mean)


def quantile_interval(
    samples: Sequence[float], q: float, confidence: float = CONFIDENCE
) -> QuantileInterval | None:
    """Order statistics that hold the true `q` quantile, 0 < q < 1; None where too few samples.

    The number of samples below the true quantile is binomial(n, q) whatever the distribution
    (David and Nagaraja, Order Statistics, section 7.1); each tail gets half of the error.
    """
    if not 0 < q < 1 or not 0 < confidence < 1:
        raise ValueError(f"quantile {q} and confidence {confidence} must be between 0 and 1")
    found = _interval_ranks(len(samples), q, confidence)
    if found is None:
        return None
    low, high, coverage = found
    ordered = sorted(samples)
    return QuantileInterval(low=ordered[low - 1], high=ordered[high - 1], coverage=coverage)


@lru_cache(maxsize=256)
def _interval_ranks(n: int, q: float, confidence: float) -> tuple[int, int, float] | None:
    """Ranks from 1 of the two samples, and how surely they hold the quantile between them."""
    tail = (1 - confidence) / 2
    below = _binomial_cumulative(n, q)
    # low is the last with P(B < low) <= tail, high the first with P(B >= high).
    low = sum(1 for probability in below if probability <= tail)
    high = 1 + sum(1 for probability in below if probability < 1 - tail)
    if low < 1 or high > n:
        return None
    return low, high, below[high - 1] - below[low - 1]


def _binomial_cumulative(n: int, q: float) -> list[float]:
    """P(B <= k) for k = 0 .. n - 1, in logarithms: 0.5**n is zero for a float at n = 1,075."""
    total = 0.0
    cumulative = []
    for k in range(n):
        ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        total += math.exp(ways + k * math.log(q) + (n - k) * math.log1p(-q))
        cumulative.append(min(total, 1.0))
    return cumulative
