"""Public names of this layer."""

from linkbound.topology.fingerprint import fingerprint
from linkbound.topology.merge import merge
from linkbound.topology.sniff import READERS, read_machine
from linkbound.topology.types import (
    Capability,
    Claim,
    Contradiction,
    Device,
    DeviceKind,
    Gpu,
    Machine,
    NicPath,
    NumaNode,
    NvLink,
    Pair,
    PairPath,
    PathKind,
    PcieLink,
    PeerStatus,
)

__all__ = [
    "READERS",
    "Capability",
    "Claim",
    "Contradiction",
    "Device",
    "DeviceKind",
    "Gpu",
    "Machine",
    "NicPath",
    "NumaNode",
    "NvLink",
    "Pair",
    "PairPath",
    "PathKind",
    "PcieLink",
    "PeerStatus",
    "fingerprint",
    "merge",
    "read_machine",
]
