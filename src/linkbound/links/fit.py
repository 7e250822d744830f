"""Latency, asymptotic bandwidth and half-bandwidth size of a curve, each from its own regime (L2).

No line is laid through the whole curve: protocols change along it, and one line fits none of them.
"""

import math
from itertools import combinations, pairwise
from statistics import median

from linkbound.links.types import Curve, CurveFit, CurvePoint

# A leading part is flat while its times stay within a quarter of the smallest: at that point the
# transfer itself is a fifth of the time.
FLAT_RISE = 1.25
# d log t / d log n: 0 where latency decides, 1 where bandwidth does.
FLAT_SLOPE = 0.25
STEEP_SLOPE = 0.75


def fit(curve: Curve) -> CurveFit:
    """Figures of t = alpha + n / B (Hockney, Parallel Computing 20(3), 1994), in SI units.

    alpha is the median of the flat part, B the slope of the largest decade, the half-bandwidth size
    (n_half = alpha x B in Hockney's form) is read off the measured curve. Each is None where the
    curve does not reach its regime.
    """
    flat = _flat_part(curve.points)
    slopes = _decade_slopes(curve.points) if _is_steep(curve.points) else []
    rate = median(slopes) if slopes else None
    return CurveFit(
        latency_s=median(point.time_s for point in flat) if flat else None,
        latency_spread_s=_time_spread(flat),
        bytes_per_s=rate,
        bytes_per_s_spread=max(slopes) - min(slopes) if len(slopes) > 1 else None,
        half_size_bytes=None if rate is None else _half_size(curve.points, rate / 2),
    )


def largest_decade_slope(curve: Curve) -> float | None:
    """Bytes a second of the slope over the largest decade of sizes; None for a single point."""
    slopes = _decade_slopes(curve.points)
    return median(slopes) if slopes else None


def _decade_slopes(points: tuple[CurvePoint, ...]) -> list[float]:
    """Slopes of all pairs of points in the last decade, or of the last two, where time grows."""
    start = points[-1].size_bytes / 10
    decade = [point for point in points if point.size_bytes >= start]
    if len(decade) < 2:
        decade = list(points[-2:])
    return [
        (right.size_bytes - left.size_bytes) / (right.time_s - left.time_s)
        for left, right in combinations(decade, 2)
        if right.time_s > left.time_s
    ]


def _slope(left: CurvePoint, right: CurvePoint) -> float:
    return math.log(right.time_s / left.time_s) / math.log(right.size_bytes / left.size_bytes)


def _is_steep(points: tuple[CurvePoint, ...]) -> bool:
    return len(points) > 1 and _slope(points[-2], points[-1]) >= STEEP_SLOPE


def _flat_part(points: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
    if len(points) < 2 or _slope(points[0], points[1]) > FLAT_SLOPE:
        return ()
    smallest = points[0].time_s
    count = 0
    for point in points:
        smallest = min(smallest, point.time_s)
        if point.time_s > FLAT_RISE * smallest:
            break
        count += 1
    return points[: max(count, 1)]


def _time_spread(points: tuple[CurvePoint, ...]) -> float | None:
    """Largest minus smallest time, repeats included; None for one time without repeats."""
    lows = [point.time_s if point.low_s is None else point.low_s for point in points]
    highs = [point.time_s if point.high_s is None else point.high_s for point in points]
    if not points or (len(points) == 1 and lows == highs):
        return None
    return max(highs) - min(lows)


def _half_size(points: tuple[CurvePoint, ...], half_rate: float) -> float | None:
    """Size at which the measured curve crosses `half_rate`; None where it starts above it."""
    for left, right in pairwise(points):
        rates = (left.size_bytes / left.time_s, right.size_bytes / right.time_s)
        if rates[0] < half_rate <= rates[1]:
            share = math.log(half_rate / rates[0]) / math.log(rates[1] / rates[0])
            return left.size_bytes * math.pow(right.size_bytes / left.size_bytes, share)
    return None
