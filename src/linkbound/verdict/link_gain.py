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
Rested = tuple[float, tuple[str, ...]]
"""A figure and the records that it rests on."""


class Both(Value, frozen=True, kw_only=True):
    """One quantity of one pair, with peer access and without."""

    direct: float
    staged: float
    record_ids: tuple[str, ...]
    """What the two rest on."""


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

    `record_ids` are those of rates and latencies; curves bring their own.

    Of several pairs the one that gains least speaks, for bandwidth and for latency each.
    """
    rates, latencies = tuple(rates), tuple(latencies)
    copies = tuple(one for one in curves if one.key.operation is Operation.COPY)
    pairs = tuple(permutations(labels, 2))
    found = [_bandwidth(pair, rates, copies, record_ids) for pair in pairs]
    bandwidths = [one for one in found if one is not None]
    small = [_small(pair, latencies, copies, record_ids) for pair in pairs]
    times = [one for one in small if one is not None]
    if not bandwidths or not times:
        return None
    return _reason(
        min(bandwidths, key=lambda one: one.direct / one.staged),
        min(times, key=lambda one: one.time_s.staged / one.time_s.direct),
    )


def _bandwidth(
    pair: tuple[str, str],
    rates: tuple[PairRate, ...],
    copies: tuple[Curve, ...],
    record_ids: tuple[str, ...],
) -> Both | None:
    """The highest rate of large copies in each arm, in bytes/s."""

    def of(direct: bool) -> Rested | None:
        found = [
            (one.bytes_per_s, record_ids)
            for one in rates
            if one.operation is Operation.COPY
            and (one.src, one.dst) == pair
            and _is(one.arm, direct)
        ]
        found += [
            (curve.points[-1].size_bytes / curve.points[-1].time_s, curve.record_ids)
            for curve in copies
            if curve.key.group == pair
            and _is(curve.key.arm, direct)
            and curve.points[-1].size_bytes >= LARGE_BYTES
        ]
        return max(found, key=_figure_of, default=None)

    return _both(of)


def _small(
    pair: tuple[str, str],
    latencies: tuple[PairLatency, ...],
    copies: tuple[Curve, ...],
    record_ids: tuple[str, ...],
) -> Small | None:
    """Time of the smallest copy that both arms have; without one, the interval between copies."""

    def issue(direct: bool) -> Rested | None:
        found = [
            (one.latency_s, record_ids)
            for one in latencies
            if ISSUE in one.method and (one.src, one.dst) == pair and _is(one.arm, direct)
        ]
        return min(found, key=_figure_of, default=None)

    direct, staged = _smallest(pair, copies, True), _smallest(pair, copies, False)
    shared = direct.keys() & staged.keys()
    if not shared:
        interval = _both(issue)
        return None if interval is None else Small(time_s=interval, issue=True)
    size = min(shared)
    shortest = {True: direct[size], False: staged[size]}
    both = _both(shortest.get)
    return None if both is None else Small(time_s=both, issue=False)


def _smallest(pair: tuple[str, str], copies: tuple[Curve, ...], direct: bool) -> dict[int, Rested]:
    """Least time of a copy by its size, up to SMALL_BYTES."""
    found: dict[int, Rested] = {}
    for curve in copies:
        if curve.key.group == pair and _is(curve.key.arm, direct):
            for point in curve.points:
                if point.size_bytes <= SMALL_BYTES:
                    mine = (point.time_s, curve.record_ids)
                    known = found.get(point.size_bytes, mine)
                    found[point.size_bytes] = min(known, mine, key=_figure_of)
    return found


def _is(arm: Arm | None, direct: bool) -> bool:
    return arm in _DIRECT if direct else arm is Arm.STAGED


def _figure_of(rested: Rested) -> float:
    return rested[0]


def _both(of: Callable[[bool], Rested | None]) -> Both | None:
    direct, staged = of(True), of(False)
    if direct is None or staged is None:
        return None
    ids = dict.fromkeys((*direct[1], *staged[1]))
    return Both(direct=direct[0], staged=staged[0], record_ids=tuple(ids))


def _reason(bandwidths: Both, small: Small) -> Reason:
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
        figures=(*_figures(bandwidths, "bytes/s"), *_figures(times, "s")),
        record_ids=tuple(dict.fromkeys((*bandwidths.record_ids, *times.record_ids))),
    )


def _small_words(small: Small) -> str:
    times = small.time_s
    direct, staged = format_time(times.direct), format_time(times.staged)
    if not small.issue:
        return f"small copies take {direct} and {staged}"
    moves = "falls" if times.direct < times.staged else "goes"
    return f"the issue interval of small copies {moves} from {staged} to {direct}"


def _figures(both: Both, unit: str) -> tuple[Figure, ...]:
    return tuple(
        Figure(value=one, unit=unit, provenance=Provenance.MEASURED, record_ids=both.record_ids)
        for one in (both.direct, both.staged)
    )
