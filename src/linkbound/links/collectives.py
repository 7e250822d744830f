"""The collectives of nccl-tests: which operation each is, and its bus bandwidth factor (L4)."""

from linkbound.links.types import Operation

OPERATIONS = {
    "all_reduce": Operation.ALL_REDUCE,
    "all_gather": Operation.ALL_GATHER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "alltoall": Operation.ALL_TO_ALL,
    "broadcast": Operation.BROADCAST,
    "reduce": Operation.REDUCE,
    "sendrecv": Operation.SEND_RECV,
}
"""Collectives that a curve can be made of; the size column is the payload of one rank."""

COLLECTIVES = (*OPERATIONS, "alltoallv", "gather", "scatter", "hypercube")

_SHARED = {"all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter"}


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw of `collective` over `ranks` GPUs. Raises ValueError for an unknown name.

    Formulas: doc/PERFORMANCE.md of NVIDIA/nccl-tests and the `GetBw` function of each test:
    2(n-1)/n where data is reduced and given back, (n-1)/n where each rank keeps its own share,
    1 where a rank sends all it has (one rank sends nothing in any of them but by itself).
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"'{collective}' is not a test of nccl-tests")
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in _SHARED:
        return (ranks - 1) / ranks
    return 1.0
