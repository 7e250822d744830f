"""Statistics agree with numpy and with exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkbound.evidence.stats import cov, median, p10, p90, quantile, quantile_interval

times = st.floats(min_value=-1e12, max_value=1e12, allow_subnormal=False)
samples = st.lists(times, min_size=1, max_size=60)


@settings(deadline=None)
@given(samples, st.floats(min_value=0, max_value=1))
def test_quantile_is_numpys(values: list[float], q: float) -> None:
    found = quantile(values, q)
    assert found is not None
    assert found == pytest.approx(float(np.quantile(values, q)), rel=1e-12, abs=1e-3)
    assert min(values) <= found <= max(values)


@settings(deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=10**6), min_size=1, max_size=60))
def test_named_quantiles_are_numpys(values: list[int]) -> None:
    found = (median(values), p10(values), p90(values))
    assert found == pytest.approx(tuple(np.percentile(values, (50, 10, 90))), rel=1e-12)


@settings(deadline=None)
@given(st.lists(st.floats(min_value=1e-9, max_value=1e3), min_size=2, max_size=60))
def test_cov_is_numpys(values: list[float]) -> None:
    expected = float(np.std(values, ddof=1) / np.mean(values))
    assert cov(values) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_exact_values() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    assert p10(range(11)) == 1
    assert p90(range(11)) == 9
    assert quantile([7], 0.3) == 7
    assert cov([1, 3]) == pytest.approx(math.sqrt(2) / 2)
    assert cov([2, 2, 2]) == 0


def test_what_few_samples_do_not_have() -> None:
    assert median([]) is None
    assert cov([1]) is None
    assert cov([-1, 1]) is None
    assert quantile_interval([], 0.5) is None
    assert quantile_interval([1, 2, 3, 4, 5], 0.5) is None


def exact_coverage(n: int, q: Fraction, low: int, high: int) -> Fraction:
    """P(low <= B < high) for B binomial(n, q), in whole numbers."""
    return sum((math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(low, high)), Fraction(0))


@settings(deadline=None, max_examples=25)
@given(st.integers(min_value=1, max_value=60), st.integers(min_value=1, max_value=19))
def test_interval_is_the_narrowest_with_half_the_error_on_each_side(
    n: int, twentieths: int
) -> None:
    q = Fraction(twentieths, 20)
    found = quantile_interval(range(1, n + 1), float(q))
    tail = Fraction(25, 1000)
    lows = [rank for rank in range(1, n + 1) if exact_coverage(n, q, 0, rank) <= tail]
    highs = [rank for rank in range(1, n + 1) if exact_coverage(n, q, rank, n + 1) <= tail]
    if not lows or not highs:
        assert found is None
        return
    assert found is not None
    low, high = max(lows), min(highs)
    assert (found.low, found.high) == (low, high)
    assert found.coverage == pytest.approx(float(exact_coverage(n, q, low, high)), abs=1e-9)
    assert found.coverage >= 0.95


def test_known_interval_of_a_median() -> None:
    # Six samples are the fewest: P(all on one side) = 2 / 2**6, 96.9 % between the extremes.
    found = quantile_interval([5, 3, 4, 1, 6, 2], 0.5)
    assert found is not None
    assert (found.low, found.high) == (1, 6)
    assert found.coverage == pytest.approx(1 - 2 / 2**6)


def test_many_samples_do_not_underflow() -> None:
    found = quantile_interval(range(20_000), 0.5)
    assert found is not None
    # Normal approximation: n/2 -+ 1.96 sqrt(n)/2, ranks 9861 and 10139.
    assert abs(found.low - 9861) <= 2
    assert abs(found.high - 10139) <= 2


@pytest.mark.parametrize(("q", "confidence"), [(0, 0.95), (1, 0.95), (0.5, 1), (0.5, 0)])
def test_arguments_out_of_range(q: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile_interval([1, 2], q, confidence)
    with pytest.raises(ValueError, match="from 0 to 1"):
        quantile([1], 1.5)
