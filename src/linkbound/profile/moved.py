"""Bytes of a step: what its calls put on the wire, and what the hardware counted (P1, P3)."""

import math
from collections.abc import Iterable, Sequence

from linkbound.evidence.types import Finding, Level, Severity
from linkbound.links.collectives import bus_factor
from linkbound.links.traffic import total
from linkbound.links.types import Arm, Operation
from linkbound.profile.types import Call, RankPoint
from linkbound.values import Value

_NAMES = {Operation.SEND_RECV: "sendrecv", Operation.ALL_TO_ALL: "alltoall"}
CONTRADICTING_SHARE = 0.5
"""Of the bytes that the calls send: what else would the counters show of an arm?"""


class Moved(Value, frozen=True, kw_only=True):
    """Bytes of one step over all GPUs, each counted where it is sent; None where unknown."""

    sent_bytes: float
    """What the calls of the step put on the wire. NCCL's LL protocol sends twice that."""
    nvlink_bytes: float | None
    host_bytes: float | None
    """Over PCIe, requests taken off; headers are in it: 8 to 19 %."""


def sent_bytes(ranks: Sequence[RankPoint]) -> float:
    """What all ranks' calls of a step send: size by the bus factor, one-shot by every peer."""
    return math.fsum(_sent(call, one.rank) * call.count for one in ranks for call in one.calls)


def _sent(call: Call, rank: int) -> float:
    if call.operation is Operation.SEND_RECV:
        return float(call.size_bytes if call.ranks[0] == rank else 0)
    if call.implementation == "one_shot":
        # Every peer reads the whole message.
        return float(call.size_bytes * (len(call.ranks) - 1))
    return call.size_bytes * call_factor(call)


def call_factor(call: Call) -> float:
    """Bus bytes of one rank over the size of the call, as nccl-tests has it."""
    return bus_factor(_NAMES.get(call.operation, call.operation.value), len(call.ranks))


def moved(ranks: Sequence[RankPoint]) -> Moved | None:
    """Of one child; None where its ranks send nothing."""
    sent = sent_bytes(ranks)
    if not sent:
        return None
    counted = next((one for one in ranks if one.traffic is not None), None)
    nvlink = host = None
    if counted is not None and counted.traffic is not None:
        nvlink = total(counted.traffic, "nvlink_sent_bytes")
        host = total(counted.traffic, "host_sent_bytes")
    steps = 1 if counted is None else counted.traffic_steps
    return Moved(
        sent_bytes=sent,
        nvlink_bytes=None if nvlink is None else nvlink / steps,
        host_bytes=None if host is None else host / steps,
    )


def contradiction(name: str, arm: Arm | None, points: Iterable[Moved | None]) -> Finding | None:
    """A finding where NVLink's counters show another path than the arm's, over all points."""
    counted = [one for one in points if one is not None and one.nvlink_bytes is not None]
    sent = math.fsum(one.sent_bytes for one in counted)
    if arm is None or not sent:
        return None
    nvlink = math.fsum(one.nvlink_bytes or 0.0 for one in counted)
    direct = arm in (Arm.P2P, Arm.NCCL)
    if direct == (nvlink > CONTRADICTING_SHARE * sent):
        return None
    return Finding(
        code="counters-contradict-arm",
        level=Level.SEEN,
        severity=Severity.ERROR,
        seen=f"{name} in arm {arm.value} sends {sent:,.0f} B in a step of each point; NVLink's "
        f"counters grew by {nvlink:,.0f} B.",
        why="This arm is to send over the direct link."
        if direct
        else "This arm is to send nothing over the direct link: data goes through the host.",
        remedy="Read NCCL's log of the record; linkbound topo shows which pairs have NVLink.",
    )
