"""What peer-to-peer itself gains between GPUs: bandwidth, latency, both or neither (L2)."""

from collections.abc import Callable, Iterable
from itertools import permutations

from linkbound.evidence.types import Figure, Provenance
from linkbound.links.types import Arm, Curve, Operation, PairLatency, PairRate
from linkbound.units import format_rate, format_time
from linkbound.values import Value
from linkbound.verdict.types import Reason

# Two rates or latencies closer than this are the same: short tests differ by 5 to 10 % a run.
SAME = 0.1
LARGE_BYTES = 64 * 1024 * 1024
SMALL_BYTES = 64 * 1024
"""Above, the time of a copy is its bytes."""
ISSUE = "issue interval"
_DIRECT = (Arm.P2P, Arm.NCCL)


class Both(Value, frozen=True, kw_only=True):
    """One quantity of one pair, with peer access and without."""

    direct: float
    staged: float


class Small(Value, frozen=True, kw_only=True):
    """What a small copy takes, in seconds."""

    time_s: Both
    issue: bool
    """The time between copies issued one after another, not that of a copy."""


def link_gain(
    labels: tuple[str, ...],
    rates: Iterable[PairRate],
    latencies: Iterable[PairLatency],
    curves: Iterable[Curve],
    record_ids: tuple[str, ...] = (),
) -> Reason | None:
    """One sentence about copies with and without peer access; None where one arm is missing.

    Of several pairs the one that gains least speaks, for bandwidth and for latency each.
    """
    rates, latencies = tuple(rates), tuple(latencies)
    copies = tuple(one for one in curves if one.key.operation is Operation.COPY)
    pairs = tuple(permutations(labels, 2))
    bandwidths = [found for pair in pairs if (found := _bandwidth(pair, rates, copies)) is not None]
    times = [small for pair in pairs if (small := _small(pair, latencies, copies)) is not None]
    if not bandwidths or not times:
        return None
    return _reason(
        min(bandwidths, key=lambda one: one.direct / one.staged),
        min(times, key=lambda one: one.time_s.staged / one.time_s.direct),
        record_ids,
    )


def _bandwidth(
    pair: tuple[str, str], rates: tuple[PairRate, ...], copies: tuple[Curve, ...]
) -> Both | None:
    """The highest rate of large copies in each arm, in bytes/s."""

    def of(direct: bool) -> float | None:
        found = [
            one.bytes_per_s
            for one in rates
            if one.operation is Operation.COPY
            and (one.src, one.dst) == pair
            and _is(one.arm, direct)
        ]
        found += [
            curve.points[-1].size_bytes / curve.points[-1].time_s
            for curve in copies
            if curve.key.group == pair
            and _is(curve.key.arm, direct)
            and curve.points[-1].size_bytes >= LARGE_BYTES
        ]
        return max(found, default=None)

    return _both(of)


def _small(
    pair: tuple[str, str], latencies: tuple[PairLatency, ...], copies: tuple[Curve, ...]
) -> Small | None:
    """Time of the smallest copy that both arms have; without one, the interval between copies."""

    def issue(direct: bool) -> float | None:
        found = [
            one.latency_s
            for one in latencies
            if ISSUE in one.method and (one.src, one.dst) == pair and _is(one.arm, direct)
        ]
        return min(found, default=None)

    direct, staged = _smallest(pair, copies, True), _smallest(pair, copies, False)
    shared = direct.keys() & staged.keys()
    if not shared:
        interval = _both(issue)
        return None if interval is None else Small(time_s=interval, issue=True)
    size = min(shared)
    return Small(time_s=Both(direct=direct[size], staged=staged[size]), issue=False)


def _smallest(pair: tuple[str, str], copies: tuple[Curve, ...], direct: bool) -> dict[int, float]:
    """Least time of a copy by its size, up to SMALL_BYTES."""
    found: dict[int, float] = {}
    for curve in copies:
        if curve.key.group == pair and _is(curve.key.arm, direct):
            for point in curve.points:
                if point.size_bytes <= SMALL_BYTES:
                    known = found.get(point.size_bytes, point.time_s)
                    found[point.size_bytes] = min(known, point.time_s)
    return found


def _is(arm: Arm | None, direct: bool) -> bool:
    return arm in _DIRECT if direct else arm is Arm.STAGED


def _both(of: Callable[[bool], float | None]) -> Both | None:
    direct, staged = of(True), of(False)
    if direct is None or staged is None:
        return None
    return Both(direct=direct, staged=staged)


def _reason(bandwidths: Both, small: Small, record_ids: tuple[str, ...]) -> Reason:
    times = small.time_s
    faster = bandwidths.direct > bandwidths.staged * (1 + SAME)
    sooner = times.direct * (1 + SAME) < times.staged
    what = {
        (True, True): ("link-gains-both", "gains bandwidth and latency"),
        (True, False): ("link-gains-bandwidth", "gains bandwidth, not latency"),
        (False, True): ("link-gains-latency", "gains latency, not bandwidth"),
        (False, False): ("link-gains-nothing", "gains neither bandwidth nor latency"),
    }
    code, words = what[faster, sooner]
    return Reason(
        code=code,
        text=f"Peer-to-peer {words}: copies run at {format_rate(bandwidths.direct)} with it and "
        f"{format_rate(bandwidths.staged)} without, {_small_words(small)}.",
        figures=(
            *(
                _figure(one, "bytes/s", record_ids)
                for one in (bandwidths.direct, bandwidths.staged)
            ),
            *(_figure(one, "s", record_ids) for one in (times.direct, times.staged)),
        ),
        record_ids=record_ids,
    )


def _small_words(small: Small) -> str:
    times = small.time_s
    direct, staged = format_time(times.direct), format_time(times.staged)
    if not small.issue:
        return f"small copies take {direct} and {staged}"
    moves = "falls" if times.direct < times.staged else "goes"
    return f"the issue interval of small copies {moves} from {staged} to {direct}"


def _figure(value: float, unit: str, record_ids: tuple[str, ...]) -> Figure:
    return Figure(value=value, unit=unit, provenance=Provenance.MEASURED, record_ids=record_ids)
