"""How many bytes a collective puts on the wire: payload by algorithm, times NCCL's protocol (P3).

Payload is what nccl-tests counts (docs/collectives.md); all figures are of all ranks together.
"""

from collections.abc import Sequence

from linkbound.links.log_types import NcclChoice, NcclProtocol
from linkbound.links.types import Operation
from linkbound.values import Value

PROTOCOL_FACTOR = {
    NcclProtocol.LL: 2.0,
    NcclProtocol.LL128: 128 / 120,
    NcclProtocol.SIMPLE: 1.0,
}
"""Bytes on the wire for one of payload.

LL stores 4 bytes of data beside 4 of flag, LL128 120 beside 8, Simple data alone (NCCL,
src/device/prims_ll.h, prims_ll128.h).
"""
_KIB, _MIB = 1024, 1024**2
# NCCL tries protocols by a model of time, and the model depends on links and channels
# (src/graph/tuning.cc). These limits leave out only what no pair of GPUs was seen to choose: LL up
# to 182 KB, LL128 at 5.8 MB, Simple from 64 MiB on, on two H100 with 24 channels.
_LL_ALONE_BYTES = 64 * _KIB
_NO_LL_BYTES = 4 * _MIB
_SIMPLE_ALONE_BYTES = 64 * _MIB
# NCCL_P2P_LL_THRESHOLD, 16 KiB: of a message in older versions, of each channel's part since 2.19.
_SEND_LL_BYTES = 16 * _KIB
_SEND_CHANNELS = 32
# Of the others the log gives the part of one rank or the whole, which depends on the version.
_SIZE_IS_SAID = (Operation.ALL_REDUCE, Operation.BROADCAST, Operation.REDUCE)


class WireFactor(Value, frozen=True, kw_only=True):
    """Bytes on the wire over payload bytes: the least and the most, and why."""

    low: float
    high: float
    why: str


def payload_bytes(operation: Operation, ranks: int, size_bytes: float) -> float:
    """What all ranks together send in one call of `size_bytes`, by ring, tree or direct sends.

    All-reduce 2(n-1) sizes, whatever the algorithm; the others n-1: `size_bytes` is the larger
    buffer of a rank. A send goes one way: one size.
    """
    match operation:
        case Operation.SEND_RECV:
            return size_bytes
        case Operation.ALL_REDUCE:
            return 2 * (ranks - 1) * size_bytes
        case (
            Operation.ALL_GATHER
            | Operation.REDUCE_SCATTER
            | Operation.ALL_TO_ALL
            | Operation.BROADCAST
            | Operation.REDUCE
        ):
            return (ranks - 1) * size_bytes
        case _:
            raise ValueError(f"{operation} is no collective")


def nccl_factor(
    operation: Operation,
    size_bytes: int,
    *,
    direct: bool,
    choices: Sequence[NcclChoice] = (),
) -> WireFactor:
    """The protocol's factor for one call: by NCCL's own words where a log has them.

    `direct`: over NVLink inside a host, where LL128 may be taken. Where the protocol is not known
    the factor is an interval.
    """
    said = _said(operation, size_bytes, choices)
    if said is not None:
        return WireFactor(
            low=PROTOCOL_FACTOR[said],
            high=PROTOCOL_FACTOR[said],
            why=f"NCCL's log: {said} at {size_bytes:,} B",
        )
    return _assumed(operation, size_bytes, direct)


def _said(
    operation: Operation, size_bytes: int, choices: Sequence[NcclChoice]
) -> NcclProtocol | None:
    """The protocol of this size, or of the sizes on both sides of it where they agree."""
    if operation not in _SIZE_IS_SAID:
        return None
    known = sorted(
        (one.size_bytes, one.protocol)
        for one in choices
        if one.operation is operation and one.protocol is not None
    )
    below = [protocol for size, protocol in known if size <= size_bytes]
    above = [protocol for size, protocol in known if size >= size_bytes]
    if below and above and below[-1] is above[0]:
        return below[-1]
    return None


def _assumed(operation: Operation, size_bytes: int, direct: bool) -> WireFactor:
    if operation is Operation.SEND_RECV:
        if size_bytes <= _SEND_LL_BYTES:
            return _of(NcclProtocol.LL, NcclProtocol.LL)
        if size_bytes <= _SEND_LL_BYTES * _SEND_CHANNELS:
            return _of(NcclProtocol.SIMPLE, NcclProtocol.LL)
        return _of(NcclProtocol.SIMPLE, NcclProtocol.SIMPLE)
    if size_bytes <= _LL_ALONE_BYTES:
        return _of(NcclProtocol.LL, NcclProtocol.LL)
    if size_bytes < _NO_LL_BYTES:
        return _of(NcclProtocol.SIMPLE, NcclProtocol.LL)
    if direct and size_bytes < _SIMPLE_ALONE_BYTES:
        return _of(NcclProtocol.SIMPLE, NcclProtocol.LL128)
    return _of(NcclProtocol.SIMPLE, NcclProtocol.SIMPLE)


def _of(least: NcclProtocol, most: NcclProtocol) -> WireFactor:
    words = f"{most}" if least is most else f"{most} or less, down to {least}"
    return WireFactor(
        low=PROTOCOL_FACTOR[least],
        high=PROTOCOL_FACTOR[most],
        why=f"assumed by size: {words}",
    )
