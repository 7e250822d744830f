"""Curves: built from readings, found by what they are of, and read at a size (L1, L4).

Reading never extrapolates in silence: the answer says how it was read and how wide it is.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from statistics import median

from linkbound.evidence.types import Provenance
from linkbound.links.arms import is_open
from linkbound.links.fit import largest_decade_slope
from linkbound.links.types import Arm, Curve, CurvePoint, Launch, Operation, Timed

# Short tests differ by 5 to 10 % between runs (NVIDIA/cuda-samples#449): what a single time
# without repeats is good for.
UNREPEATED_SPREAD = 0.05
# A change of protocol or of channel count beyond the last point can double the slope: on the
# recorded H200 pair the graph curve ends at 160 GB/s and the same path reaches 329 GB/s.
SLOPE_GAIN_BEYOND = 2.0

COLLECTIVES = frozenset(Operation) - {
    Operation.COPY,
    Operation.COPY_BOTH_WAYS,
    Operation.HOST_TO_DEVICE,
    Operation.DEVICE_TO_HOST,
    Operation.HOST_DEVICE_BOTH_WAYS,
    Operation.LOCAL_COPY,
    Operation.LATENCY,
}
_STRENGTH = {provenance: rank for rank, provenance in enumerate(Provenance)}


def merge_repeats(points: Iterable[CurvePoint]) -> tuple[CurvePoint, ...]:
    """One point a size, ascending: the median time, with all repeats between low and high."""
    by_size: dict[int, list[CurvePoint]] = {}
    for point in points:
        by_size.setdefault(point.size_bytes, []).append(point)
    return tuple(_merged(by_size[size]) for size in sorted(by_size))


def _merged(points: list[CurvePoint]) -> CurvePoint:
    if len(points) == 1:
        return points[0]
    wrong = [point.wrong for point in points if point.wrong is not None]
    return CurvePoint(
        size_bytes=points[0].size_bytes,
        time_s=median(point.time_s for point in points),
        low_s=min(_low(point) for point in points),
        high_s=max(_high(point) for point in points),
        n=sum(point.n or 1 for point in points),
        wrong=sum(wrong) if wrong else None,
    )


def find_all(
    curves: Iterable[Curve],
    operation: Operation,
    group: Sequence[str],
    arm: Arm | None,
    launch: Launch,
    implementation: str | None = None,
) -> tuple[Curve, ...]:
    """Curves of `operation` alone on the machine that hold in `arm`: NCCL's first, then by name,
    then in the order given.

    Ranks of a collective match in any order; a copy matches in its direction only.
    """
    wanted = _members(operation, group)
    found = [
        curve
        for curve in curves
        if curve.key.operation is operation
        and curve.key.launch is launch
        and curve.key.concurrency == "alone"
        and implementation in (None, curve.key.implementation)
        and _members(operation, curve.key.group) == wanted
        and is_open(curve.key.implementation, curve.key.arm, arm)
    ]
    return tuple(sorted(found, key=lambda curve: _preference(curve, arm)))


def find(
    curves: Iterable[Curve],
    operation: Operation,
    group: Sequence[str],
    arm: Arm | None,
    launch: Launch,
    implementation: str | None = None,
) -> Curve | None:
    """The first of `find_all`, or None where nothing was measured."""
    found = find_all(curves, operation, group, arm, launch, implementation)
    return found[0] if found else None


def read(curve: Curve, size_bytes: float) -> Timed:
    """Seconds of one call of `size_bytes` (above zero), with interval and how it was read.

    On a point: its time. Between points: a straight line in log size and log time. Below: the time
    of the smallest. Above: the slope of the largest decade. Raises ValueError for a size of zero.
    """
    if size_bytes <= 0:
        raise ValueError(f"a call of {size_bytes} bytes has no time on a curve")
    points = curve.points
    if size_bytes < points[0].size_bytes:
        return _below(curve, size_bytes)
    if size_bytes > points[-1].size_bytes:
        return _above(curve, size_bytes)
    index = bisect_left(points, size_bytes, key=lambda point: point.size_bytes)
    if points[index].size_bytes == size_bytes:
        point = points[index]
        return _timed(curve, point.time_s, _low(point), _high(point), Provenance.MEASURED)
    return _between(curve, points[index - 1], points[index], size_bytes)


def _between(curve: Curve, left: CurvePoint, right: CurvePoint, size_bytes: float) -> Timed:
    """Log-log line; the interval holds every curve whose time and whose rate do not fall.

    Such a curve is no faster than the left time and the right rate, no slower than the right time
    and the left rate: narrow in both regimes, wide only where the curve bends.
    """
    share = math.log(size_bytes / left.size_bytes) / math.log(right.size_bytes / left.size_bytes)
    time_s = left.time_s ** (1 - share) * right.time_s**share
    floor = max(left.time_s, right.time_s * size_bytes / right.size_bytes)
    ceiling = min(right.time_s, left.time_s * size_bytes / left.size_bytes)
    low = min(floor, ceiling, time_s) * min(_low(p) / p.time_s for p in (left, right))
    high = max(floor, ceiling, time_s) * max(_high(p) / p.time_s for p in (left, right))
    return _timed(curve, time_s, low, high, Provenance.INTERPOLATED)


def _below(curve: Curve, size_bytes: float) -> Timed:
    """The smallest time; the low end follows the slope with which the curve begins."""
    first = curve.points[0]
    slope = 1.0
    if len(curve.points) > 1:
        second = curve.points[1]
        rise = math.log(second.time_s / first.time_s)
        slope = min(1.0, max(0.0, rise / math.log(second.size_bytes / first.size_bytes)))
    low = _low(first) * (size_bytes / first.size_bytes) ** slope
    return _timed(curve, first.time_s, low, _high(first), Provenance.EXTRAPOLATED)


def _above(curve: Curve, size_bytes: float) -> Timed:
    """The last time plus the rest at the slope of the largest decade."""
    last = curve.points[-1]
    mean_rate = last.size_bytes / last.time_s
    rate = max(mean_rate, largest_decade_slope(curve) or mean_rate)
    rest = size_bytes - last.size_bytes
    high = _high(last) * size_bytes / last.size_bytes
    low = _low(last) + rest / (rate * SLOPE_GAIN_BEYOND)
    return _timed(curve, last.time_s + rest / rate, low, high, Provenance.EXTRAPOLATED)


def _timed(curve: Curve, time_s: float, low_s: float, high_s: float, how: Provenance) -> Timed:
    """A curve that was not measured itself cannot give a measured time: the weaker word stays."""
    return Timed(
        time_s=time_s,
        low_s=min(low_s, time_s),
        high_s=max(high_s, time_s),
        provenance=max(how, curve.provenance, key=_STRENGTH.__getitem__),
    )


def _low(point: CurvePoint) -> float:
    return point.time_s * (1 - UNREPEATED_SPREAD) if point.low_s is None else point.low_s


def _high(point: CurvePoint) -> float:
    return point.time_s * (1 + UNREPEATED_SPREAD) if point.high_s is None else point.high_s


def _members(operation: Operation, group: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(group)) if operation in COLLECTIVES else tuple(group)


def _preference(curve: Curve, arm: Arm | None) -> tuple[bool, bool, bool, str, int]:
    """NCCL is what every runtime falls back to; a sweep of sizes before a single size."""
    key = curve.key
    return (
        key.implementation != "nccl",
        key.arm is not arm,
        len(curve.points) == 1,
        key.implementation,
        -len(curve.points),
    )
