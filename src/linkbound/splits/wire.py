"""What the crossings of steps put on the wire: bytes to set against the hardware's counters (P3).

Crossings x calls x the protocol's factor, as an interval where the protocol is not known. All
bytes are of all ranks together, and sent once.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from linkbound.links.log_types import NcclChoice
from linkbound.links.types import Arm, Operation
from linkbound.links.wire import WireFactor, nccl_factor, payload_bytes
from linkbound.splits.types import Crossing, CrossingKind, Phase, Split
from linkbound.values import Value

TOLERANCE = {Phase.PREFILL: 0.10, Phase.DECODE: 0.25}
"""By how much counters may miss the expected interval and still agree with it, by phase."""


class Wire(Value, frozen=True, kw_only=True):
    """Who moves messages, and how: what turns payload into bytes on the wire."""

    split: Split
    arm: Arm
    own_limit_bytes: int = 0
    """In arm `p2p` the engine itself reduces smaller messages than this, without a protocol."""
    choices: tuple[NcclChoice, ...] = ()
    """What NCCL's log says of its protocols; without it they are assumed by size."""
    copies: bool = False
    """Whole tensors are copied, without a library: nothing stands beside the payload."""

    @property
    def is_direct(self) -> bool:
        return self.arm in (Arm.P2P, Arm.NCCL)


class WirePart(Value, frozen=True, kw_only=True):
    """One kind of crossing in one phase: all its calls."""

    phase: Phase
    kind: CrossingKind
    operation: Operation
    smallest_bytes: int
    largest_bytes: int
    """Of one call, as nccl-tests counts it."""
    payload_bytes: float
    low_bytes: float
    high_bytes: float
    why: tuple[str, ...]
    """What moves it, and which protocol is known or assumed."""


class WireBytes(Value, frozen=True, kw_only=True):
    """What all ranks together are to send to one another."""

    payload_bytes: float
    low_bytes: float
    high_bytes: float
    tolerance: float
    """The phases' tolerances, each by its part of the bytes."""
    parts: tuple[WirePart, ...]


def step_parts(crossings: Iterable[Crossing], wire: Wire, steps: float) -> tuple[WirePart, ...]:
    """The wire bytes of `steps` steps with these crossings each."""
    return added(_part(one, wire, steps) for one in crossings)


def together(parts: Iterable[WirePart]) -> WireBytes:
    """All parts added up."""
    listed = tuple(parts)
    low, high = sum(part.low_bytes for part in listed), sum(part.high_bytes for part in listed)
    weighted = sum(TOLERANCE[part.phase] * part.high_bytes for part in listed)
    return WireBytes(
        payload_bytes=sum(part.payload_bytes for part in listed),
        low_bytes=low,
        high_bytes=high,
        tolerance=weighted / high if high else min(TOLERANCE.values()),
        parts=listed,
    )


def hull(alternatives: Sequence[tuple[WirePart, ...]]) -> tuple[WirePart, ...]:
    """The same crossings in steps of other sizes, of which nobody knows which were taken."""
    return _by_kind(
        (part for parts in alternatives for part in parts),
        lambda one, other: msgspec.structs.replace(
            one,
            low_bytes=min(one.low_bytes, other.low_bytes),
            high_bytes=max(one.high_bytes, other.high_bytes),
        ),
    )


def added(parts: Iterable[WirePart]) -> tuple[WirePart, ...]:
    """Other crossings of the same kind and phase, added up."""
    return _by_kind(
        parts,
        lambda one, other: msgspec.structs.replace(
            one,
            payload_bytes=one.payload_bytes + other.payload_bytes,
            low_bytes=one.low_bytes + other.low_bytes,
            high_bytes=one.high_bytes + other.high_bytes,
        ),
    )


def _by_kind(
    parts: Iterable[WirePart], join: Callable[[WirePart, WirePart], WirePart]
) -> tuple[WirePart, ...]:
    found: dict[tuple[Phase, CrossingKind, Operation], WirePart] = {}
    for part in parts:
        key = (part.phase, part.kind, part.operation)
        known = found.get(key)
        found[key] = part if known is None else _spanning(join(known, part), part)
    return tuple(found.values())


def _spanning(joined: WirePart, other: WirePart) -> WirePart:
    return msgspec.structs.replace(
        joined,
        smallest_bytes=min(joined.smallest_bytes, other.smallest_bytes),
        largest_bytes=max(joined.largest_bytes, other.largest_bytes),
        why=tuple(dict.fromkeys((*joined.why, *other.why))),
    )


def _part(crossing: Crossing, wire: Wire, steps: float) -> WirePart:
    ranks = len(crossing.ranks)
    calls = crossing.count * steps
    if crossing.kind is CrossingKind.PIPELINE and crossing.operation is Operation.SEND_RECV:
        # Every tensor rank of a stage sends its slice; the first one's send stands for all.
        calls *= wire.split.tp
    payload = payload_bytes(crossing.operation, ranks, crossing.size_bytes) * calls
    factor = _factor(crossing, wire)
    return WirePart(
        phase=crossing.phase,
        kind=crossing.kind,
        operation=crossing.operation,
        smallest_bytes=crossing.size_bytes,
        largest_bytes=crossing.size_bytes,
        payload_bytes=payload,
        low_bytes=payload * factor.low,
        high_bytes=payload * factor.high,
        why=(factor.why,),
    )


def _factor(crossing: Crossing, wire: Wire) -> WireFactor:
    if wire.copies:
        return WireFactor(low=1.0, high=1.0, why="copies of whole tensors: no protocol")
    if (
        wire.arm is Arm.P2P
        and crossing.operation is Operation.ALL_REDUCE
        and crossing.size_bytes < wire.own_limit_bytes
    ):
        # One-shot reads n-1 whole messages on each rank, two-shot 2(n-1)/n of one, as a ring does.
        ranks = len(crossing.ranks)
        return WireFactor(low=1.0, high=ranks / 2, why="the engine's own all-reduce: no protocol")
    return nccl_factor(
        crossing.operation, crossing.size_bytes, direct=wire.is_direct, choices=wire.choices
    )
