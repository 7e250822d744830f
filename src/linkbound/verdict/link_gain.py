"""What peer-to-peer itself gains between GPUs: bandwidth, latency, both or neither (L2)."""

from collections.abc import Callable, Iterable
from itertools import permutations

from linkbound.evidence.types import Figure, Provenance
from linkbound.links.types import Arm, Curve, Operation, PairLatency, PairRate
from linkbound.units import format_rate, format_time
from linkbound.verdict.types import Reason

# Two rates or latencies closer than this are the same: short tests differ by 5 to 10 % a run.
SAME = 0.1
LARGE_BYTES = 64 * 1024 * 1024
ISSUE = "issue interval"
_DIRECT = (Arm.P2P, Arm.NCCL)


def link_gain(
    labels: tuple[str, ...],
    rates: Iterable[PairRate],
    latencies: Iterable[PairLatency],
    curves: Iterable[Curve],
    record_ids: tuple[str, ...] = (),
) -> Reason | None:
    """One sentence about copies with and without peer access; None where one arm is missing."""
    rates, curves = tuple(rates), tuple(curves)
    latencies = tuple(one for one in latencies if ISSUE in one.method)

    def rate(src: str, dst: str, direct: bool) -> float | None:
        found = [
            one.bytes_per_s
            for one in rates
            if one.operation is Operation.COPY
            and (one.src, one.dst) == (src, dst)
            and _is(one.arm, direct)
        ]
        found += [
            curve.points[-1].size_bytes / curve.points[-1].time_s
            for curve in curves
            if curve.key.operation is Operation.COPY
            and curve.key.group == (src, dst)
            and _is(curve.key.arm, direct)
            and curve.points[-1].size_bytes >= LARGE_BYTES
        ]
        return max(found, default=None)

    def latency(src: str, dst: str, direct: bool) -> float | None:
        found = [
            one.latency_s
            for one in latencies
            if (one.src, one.dst) == (src, dst) and _is(one.arm, direct)
        ]
        found += [
            curve.points[0].time_s
            for curve in curves
            if curve.key.operation is Operation.COPY
            and curve.key.group == (src, dst)
            and _is(curve.key.arm, direct)
        ]
        return min(found, default=None)

    bandwidths = _both(labels, rate, min)
    times = _both(labels, latency, max)
    if bandwidths is None or times is None:
        return None
    return _reason(bandwidths, times, record_ids)


def _is(arm: Arm | None, direct: bool) -> bool:
    return arm in _DIRECT if direct else arm is Arm.STAGED


def _both(
    labels: tuple[str, ...],
    of: Callable[[str, str, bool], float | None],
    worst: Callable[[list[float]], float],
) -> tuple[float, float] | None:
    """(direct, staged) of the worst pair that has both."""
    direct, staged = [], []
    for src, dst in permutations(labels, 2):
        one, other = of(src, dst, True), of(src, dst, False)
        if one is not None and other is not None:
            direct.append(one)
            staged.append(other)
    return (worst(direct), worst(staged)) if direct else None


def _reason(
    bandwidths: tuple[float, float], times: tuple[float, float], record_ids: tuple[str, ...]
) -> Reason:
    faster = bandwidths[0] > bandwidths[1] * (1 + SAME)
    sooner = times[0] * (1 + SAME) < times[1]
    what = {
        (True, True): ("link-gains-both", "gains bandwidth and latency"),
        (True, False): ("link-gains-bandwidth", "gains bandwidth, not latency"),
        (False, True): ("link-gains-latency", "gains latency, not bandwidth"),
        (False, False): ("link-gains-nothing", "gains neither bandwidth nor latency"),
    }
    code, words = what[faster, sooner]
    return Reason(
        code=code,
        text=f"Peer-to-peer {words}: copies run at {format_rate(bandwidths[0])} with it and "
        f"{format_rate(bandwidths[1])} without, small ones take {format_time(times[0])} and "
        f"{format_time(times[1])}.",
        figures=(
            *(_figure(one, "bytes/s", record_ids) for one in bandwidths),
            *(_figure(one, "s", record_ids) for one in times),
        ),
        record_ids=record_ids,
    )


def _figure(value: float, unit: str, record_ids: tuple[str, ...]) -> Figure:
    return Figure(value=value, unit=unit, provenance=Provenance.MEASURED, record_ids=record_ids)
