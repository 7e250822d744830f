"""Curves for operations nobody timed here, put together from what was: rooflines, marked so (D5).

A ring all-reduce over n ranks moves 2 (n-1)/n of the message over each link in both directions at
once (Patarasuk and Yuan, 2009), so that its rate is what a pair carries *each way* while both ways
are busy. Its latency is NCCL's own constant for a PCIe ring plus, when staged, what staging adds:
the issue interval of small copies, the one latency that tools time in both arms. Sockets (arm
`net`) are not priced so: no copy takes their path.
"""

from collections.abc import Iterable, Sequence
from itertools import permutations

from linkbound.evidence.types import Provenance
from linkbound.links.types import (
    Arm,
    Curve,
    CurveKey,
    CurvePoint,
    Launch,
    Operation,
    PairLatency,
    PairRate,
)

# NCCL 2.28.9 tuning.cc, ring with the LL protocol: base 6.6 us, and 1 us a step over PCIe.
RING_BASE_S = 6.6e-6
RING_STEP_S = 1.0e-6
# What those constants are worth off the machines they were made on.
LATENCY_LOW, LATENCY_HIGH = 0.7, 3.0
RATE_LOW, RATE_HIGH = 0.8, 1.5
# The latency that staging is read from, as the readers of tools name it.
ISSUE_INTERVAL = "issue interval"
SIZES_BYTES = tuple(1024 * 4**power for power in range(11))
_OPERATIONS = frozenset(
    {
        Operation.ALL_REDUCE,
        Operation.ALL_GATHER,
        Operation.REDUCE_SCATTER,
        Operation.ALL_TO_ALL,
        Operation.SEND_RECV,
    }
)


def wire_share(operation: Operation, ranks: int) -> float:
    """Bytes that each link carries, as a share of the message, in NCCL's ring algorithms."""
    match operation:
        case Operation.ALL_REDUCE:
            return 2 * (ranks - 1) / ranks
        case Operation.SEND_RECV:
            return 1.0
        case _:
            return (ranks - 1) / ranks


def assumed_curve(
    operation: Operation,
    group: tuple[str, ...],
    arm: Arm,
    rates: Iterable[PairRate],
    latencies: Iterable[PairLatency],
) -> Curve | None:
    """A roofline from measured pair rates of every pair of the group; None where one is missing.

    None too for arm `net`, which no copy shows.
    """
    if operation not in _OPERATIONS or arm is Arm.NET:
        return None
    rate = _slowest_rate(operation, group, arm, tuple(rates))
    if rate is None:
        return None
    added_s = _staging_latency(group, arm, tuple(latencies))
    steps = 2 * (len(group) - 1) if operation is Operation.ALL_REDUCE else len(group) - 1
    latency_s = RING_BASE_S + steps * RING_STEP_S + added_s
    wire = wire_share(operation, len(group))
    return Curve(
        key=CurveKey(
            operation=operation,
            implementation="nccl",
            group=group,
            arm=arm,
            launch=Launch.GRAPH,
            method="roofline",
        ),
        points=tuple(
            CurvePoint(
                size_bytes=size,
                time_s=latency_s + size * wire / rate,
                low_s=latency_s * LATENCY_LOW + size * wire / (rate * RATE_HIGH),
                high_s=latency_s * LATENCY_HIGH + size * wire / (rate * RATE_LOW),
            )
            for size in SIZES_BYTES
        ),
        provenance=Provenance.ROOFLINE,
        source=(
            f"roofline: {latency_s * 1e6:.1f} us (NCCL's constants"
            + (f" and {added_s * 1e6:.1f} us of staging" if added_s else "")
            + f") and {rate / 1e9:.2f} GB/s each way, the measured copy rate of the slowest pair"
        ),
    )


def _slowest_rate(
    operation: Operation, group: Sequence[str], arm: Arm, rates: tuple[PairRate, ...]
) -> float | None:
    found = []
    for src, dst in permutations(group, 2):
        both = _rate(rates, Operation.COPY_BOTH_WAYS, src, dst, arm)
        one = _rate(rates, Operation.COPY, src, dst, arm)
        if operation is not Operation.SEND_RECV and both is not None:
            found.append(both / 2)
        elif one is not None:
            found.append(one)
        else:
            return None
    return min(found, default=None)


def _rate(
    rates: tuple[PairRate, ...], operation: Operation, src: str, dst: str, arm: Arm
) -> float | None:
    wanted = Arm.STAGED if arm is Arm.STAGED else Arm.P2P
    return max(
        (
            one.bytes_per_s
            for one in rates
            if one.operation is operation
            and (one.src, one.dst) == (src, dst)
            and one.arm is wanted
            and one.concurrency == "alone"
        ),
        default=None,
    )


def _staging_latency(group: Sequence[str], arm: Arm, latencies: tuple[PairLatency, ...]) -> float:
    """What one staged small copy takes longer than a direct one, worst pair; 0 for direct arms.

    Where peer access is refused no direct copy was timed, and the staged one counts whole.
    """
    if arm is not Arm.STAGED:
        return 0.0
    issued = tuple(one for one in latencies if ISSUE_INTERVAL in one.method)
    added = [0.0]
    for src, dst in permutations(group, 2):
        staged, direct = (_shortest(issued, src, dst, one) for one in (Arm.STAGED, Arm.P2P))
        if staged is not None:
            added.append(staged - (direct or 0.0))
    return max(added)


def _shortest(latencies: tuple[PairLatency, ...], src: str, dst: str, arm: Arm) -> float | None:
    return min(
        (one.latency_s for one in latencies if (one.src, one.dst) == (src, dst) and one.arm is arm),
        default=None,
    )
