"""Bytes that the counters saw against bytes that the crossings predict, on the arm's path (P3)."""

from linkbound.evidence.types import Finding, Level, Reason, Severity
from linkbound.links.traffic import PCIE_OVERHEAD, Traffic, total
from linkbound.links.types import Arm
from linkbound.splits.wire import WireBytes
from linkbound.values import Value

# Counters that nothing but housekeeping moved agree with nothing.
LEAST_EXPECTED_BYTES = 16 * 1024 * 1024


_SURPLUS = Reason(
    code="host-surplus",
    text="More than expected, which the host's path explains: waiting receivers poll flags in the "
    "host's memory, and the engine's own traffic goes there too. Less would be a finding.",
)


class TrafficCheck(Value, frozen=True, kw_only=True):
    """One window of one contender."""

    over: str | None
    """Where the arm sends: `NVLink` or `host`; None where nothing is to cross."""
    nvlink_bytes: float | None
    """Sent by all its GPUs, idle traffic taken off; None where a counter gives no answer."""
    host_bytes: float | None
    """Sent over PCIe by all its GPUs, without requests for what they received."""
    expected: WireBytes | None
    unknown: Reason | None = None
    """Why nothing is expected, or why what was seen cannot be compared.

    Over the host more than expected contradicts nothing: code `host-surplus`.
    """
    low_bytes: float | None = None
    high_bytes: float | None = None
    """What the counter of the arm's path is to show: over PCIe with the headers of its packets."""
    deviation: float | None = None
    """Seen above this range (positive share) or below it (negative); 0 inside."""
    agrees: bool | None = None
    """Whether that is within the tolerance of `expected`; None where it cannot be said."""


def check_traffic(
    traffic: Traffic, arm: Arm | None, expected: WireBytes | Reason | None
) -> TrafficCheck:
    """Compare a window with what was to cross; `expected` None: nothing was, or a Reason."""
    nvlink = total(traffic, "nvlink_sent_bytes")
    host = total(traffic, "host_sent_bytes")
    if arm is None or expected is None or isinstance(expected, Reason):
        return TrafficCheck(
            over=None,
            nvlink_bytes=nvlink,
            host_bytes=host,
            expected=None,
            unknown=expected if isinstance(expected, Reason) else None,
        )
    direct = arm in (Arm.P2P, Arm.NCCL)
    least, most = (1.0, 1.0) if direct else PCIE_OVERHEAD
    low, high = expected.low_bytes * least, expected.high_bytes * most
    seen = nvlink if direct else host
    unknown = _incomparable(traffic, seen, expected, direct)
    deviation = None if unknown is not None or seen is None else _deviation(seen, low, high)
    agrees = None if deviation is None else abs(deviation) <= expected.tolerance
    if not direct and agrees is False and deviation is not None and deviation > 0:
        agrees, unknown = None, _SURPLUS
    return TrafficCheck(
        over="NVLink" if direct else "host",
        nvlink_bytes=nvlink,
        host_bytes=host,
        expected=expected,
        unknown=unknown,
        low_bytes=low,
        high_bytes=high,
        deviation=deviation,
        agrees=agrees,
    )


def _deviation(seen: float, low: float, high: float) -> float:
    if seen > high:
        return seen / high - 1
    return min(0.0, seen / low - 1)


def _incomparable(
    traffic: Traffic, seen: float | None, expected: WireBytes, direct: bool
) -> Reason | None:
    if seen is None:
        silent = "; ".join(f"{name}: {why}" for name, why in traffic.silent.items())
        return Reason(code="no-counters", text=f"No counter of this path answers. {silent}".strip())
    if expected.low_bytes < LEAST_EXPECTED_BYTES:
        text = f"Only {expected.low_bytes / 1e6:,.1f} MB were to cross: housekeeping is as much."
        return Reason(code="too-little", text=text)
    if traffic.blind_gaps and not direct:
        text = (
            f"PCIe's counters may have wrapped unseen {traffic.blind_gaps} times: what they show "
            "is the least that passed."
        )
        return Reason(code="counters-wrapped", text=text)
    return None


def traffic_findings(name: str, check: TrafficCheck) -> tuple[Finding, ...]:
    """A finding where the counters of the arm's path miss what was to cross.

    Over NVLink either way; over the host where less passed: more has other causes.
    """
    if check.agrees is not False or check.expected is None or check.deviation is None:
        return ()
    seen = check.nvlink_bytes if check.over == "NVLink" else check.host_bytes
    way = "more" if check.deviation > 0 else "less"
    return (
        Finding(
            code="bytes-differ",
            level=Level.SEEN,
            severity=Severity.WARNING,
            seen=f"{name}: {check.over} carried {(seen or 0) / 1e9:,.3f} GB, "
            f"{abs(check.deviation):.0%} {way} than the {(check.low_bytes or 0) / 1e9:,.3f} to "
            f"{(check.high_bytes or 0) / 1e9:,.3f} GB that its tokens make cross.",
            why="Something else moves data over this path, part of the data takes another, or "
            "the crossings of this split are not those of this engine.",
            remedy="Run again with nothing else on these GPUs; see the parts of what was "
            "expected: linkbound show serve.traffic.",
        ),
    )
