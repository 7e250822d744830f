"""The arms: which paths each leaves open, and the environment of NCCL that makes it so (L4, P1).

An engine adds its own variables and flags to these; the mapping lives with the engine.
"""

from linkbound.links.types import Arm

MEANING = {
    Arm.P2P: "All is open: NCCL peer-to-peer at any distance and the engine's own all-reduce.",
    Arm.NCCL: "NCCL peer-to-peer is open at any distance; the engine's own all-reduce is off.",
    Arm.STAGED: "Every use of peer-to-peer is off: data crosses through memory of the host.",
    Arm.NET: "Shared memory is off too: data crosses through sockets inside the host.",
}
"""One sentence an arm, for reports."""

_OPEN = {"NCCL_P2P_LEVEL": "SYS"}
_STAGED = {"NCCL_P2P_DISABLE": "1"}
_VARIABLES = {
    Arm.P2P: _OPEN,
    Arm.NCCL: _OPEN,
    Arm.STAGED: _STAGED,
    Arm.NET: {**_STAGED, "NCCL_SHM_DISABLE": "1"},
}

# Implementations that belong to the engine, not to NCCL: closed in arm `nccl`.
ENGINE_OWN = frozenset({"one_shot", "two_shot", "symm_mem", "engine"})


def nccl_environment(arm: Arm, *, allow_multicast: bool = False) -> dict[str, str]:
    """Variables that put NCCL into `arm`; NVLink multicast stays off unless it is allowed."""
    guard = {} if allow_multicast else {"NCCL_NVLS_ENABLE": "0"}
    return {**_VARIABLES[arm], **guard}


def is_open(implementation: str, measured: Arm | None, arm: Arm | None) -> bool:
    """Whether what was measured in arm `measured` also runs, on the same path, in `arm`.

    `p2p` and `nccl` open the same paths and differ only in what the engine runs on them. A curve
    without an arm answers only a question without one.
    """
    if arm is Arm.NCCL and implementation in ENGINE_OWN:
        return False
    if measured in (Arm.P2P, Arm.NCCL):
        return arm in (Arm.P2P, Arm.NCCL)
    return measured is arm
