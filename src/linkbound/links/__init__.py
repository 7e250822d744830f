"""Public names of this layer: arms, curves, and readers of what measures links or logs them."""

from linkbound.links.arms import MEANING, is_open, nccl_environment
from linkbound.links.collective_curves import curves_of_run
from linkbound.links.collectives import bus_factor
from linkbound.links.curves import find, find_all, read
from linkbound.links.fit import fit
from linkbound.links.log_path import path_of
from linkbound.links.log_types import (
    Communicator,
    LogPath,
    NcclLog,
    OffBecause,
    PathSummary,
    Transport,
    TransportKind,
)
from linkbound.links.nvbandwidth_rates import curve_of_rate, latencies_of_run, rates_of_run
from linkbound.links.parse_nccl_log import parse_nccl_log
from linkbound.links.parse_nccl_tests import parse_nccl_tests
from linkbound.links.parse_nvbandwidth import parse_nvbandwidth
from linkbound.links.parse_p2p_test import parse_p2p_test
from linkbound.links.parse_peer_copies import parse_peer_copies
from linkbound.links.parse_symm_allreduce import curves_of_symm_allreduce, parse_symm_allreduce
from linkbound.links.sniff import LinkEvidence, read_links
from linkbound.links.types import (
    Arm,
    Curve,
    CurveFit,
    CurveKey,
    CurvePoint,
    Launch,
    Operation,
    PairLatency,
    PairRate,
    PeerAccess,
    Timed,
)

__all__ = [
    "MEANING",
    "Arm",
    "Communicator",
    "Curve",
    "CurveFit",
    "CurveKey",
    "CurvePoint",
    "Launch",
    "LinkEvidence",
    "LogPath",
    "NcclLog",
    "OffBecause",
    "Operation",
    "PairLatency",
    "PairRate",
    "PathSummary",
    "PeerAccess",
    "Timed",
    "Transport",
    "TransportKind",
    "bus_factor",
    "curve_of_rate",
    "curves_of_run",
    "curves_of_symm_allreduce",
    "find",
    "find_all",
    "fit",
    "is_open",
    "latencies_of_run",
    "nccl_environment",
    "parse_nccl_log",
    "parse_nccl_tests",
    "parse_nvbandwidth",
    "parse_p2p_test",
    "parse_peer_copies",
    "parse_symm_allreduce",
    "path_of",
    "rates_of_run",
    "read",
    "read_links",
]
