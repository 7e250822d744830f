"""The line in which NCCL says which protocol a collective takes, versions 2.8 to 2.30 (P3)."""

import re

from linkbound.links.log_types import NcclChoice, NcclProtocol
from linkbound.links.types import Operation

_CHOICE = re.compile(
    r"(?:(?P<call>\w{1,24}): )?(?P<size>\d{1,18}) Bytes -> Algo (?P<algorithm>\w{1,24}) "
    r"proto (?P<protocol>\w{1,12})(?:\s|$)"
)
_CALLS = {
    "AllReduce": Operation.ALL_REDUCE,
    "AllGather": Operation.ALL_GATHER,
    "ReduceScatter": Operation.REDUCE_SCATTER,
    "Broadcast": Operation.BROADCAST,
    "Reduce": Operation.REDUCE,
    "AlltoAll": Operation.ALL_TO_ALL,
}
# Versions up to 2.23 print numbers: NCCL_ALGO_* and NCCL_PROTO_* of nccl_common.h.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = tuple(NcclProtocol)


def choice_of(text: str) -> NcclChoice | None:
    """`AllReduce: 8192 Bytes -> Algo RING proto LL ...` and its older forms, as one call."""
    found = _CHOICE.match(text)
    if found is None or (found["call"] is not None and found["call"] not in _CALLS):
        return None
    algorithm, protocol = found["algorithm"], found["protocol"].upper()
    if algorithm.isdecimal() and int(algorithm) < len(_ALGORITHMS):
        algorithm = _ALGORITHMS[int(algorithm)]
    if protocol.isdecimal() and int(protocol) < len(_PROTOCOLS):
        protocol = _PROTOCOLS[int(protocol)]
    return NcclChoice(
        operation=None if found["call"] is None else _CALLS[found["call"]],
        size_bytes=int(found["size"]),
        algorithm=algorithm.upper(),
        protocol=NcclProtocol(protocol) if protocol in _PROTOCOLS else None,
        calls=1,
    )
