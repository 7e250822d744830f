"""What every adapter does alike: which variables an arm decides, which devices are seen (P2)."""

from collections.abc import Mapping

from linkbound.errors import UsageError
from linkbound.links.arms import nccl_environment
from linkbound.links.types import Arm
from linkbound.serve.engines.types import ArmSwitch, ServerPlan

# Inherited, each of these would decide what the arm is there to decide.
DECIDED = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_NET_DISABLE_INTRA",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "VLLM_SKIP_P2P_CHECK",
    "VLLM_ALLREDUCE_USE_FLASHINFER",
    "VLLM_USE_NCCL_SYMM_MEM",
    "VLLM_CUSTOM_ALLREDUCE_ALGO",
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2",
    "GGML_CUDA_P2P",
    "GGML_CUDA_ALLREDUCE",
)
# NCCL names the transport of every channel; its choice does not change by being asked.
NCCL_SPEAKS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,P2P,SHM,NET,NVLS",
}


def arm_environment(plan: ServerPlan, switch: ArmSwitch) -> dict[str, str]:
    """NCCL's part of the arm, the engine's part, the devices, and a log of NCCL in the folder."""
    nccl = {} if plan.arm is None else nccl_environment(plan.arm)
    if plan.allow_multicast:
        nccl.pop("NCCL_NVLS_ENABLE", None)
    found = {**nccl, **switch.environment, **devices(plan)}
    if plan.arm is None or not plan.measured:
        return found
    return {**found, **NCCL_SPEAKS, "NCCL_DEBUG_FILE": f"{plan.folder}/nccl.%h.%p.log"}


def devices(plan: ServerPlan) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES as ordinals (some engines read it with int()) in NVML's order.

    CUDA's own order is the fastest GPU first: byte counters would be read on other GPUs.
    """
    if not plan.devices:
        return {}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, plan.devices)),
    }


def switch_for(engine: str, arms: Mapping[Arm, ArmSwitch], plan: ServerPlan) -> ArmSwitch:
    """The switches of the plan's arm. Raises UsageError where the engine has no such arm."""
    if plan.arm is None:
        return ArmSwitch()
    switch = arms.get(plan.arm)
    if switch is None or switch.impossible is not None:
        raise UsageError(
            f"{engine} has no arm '{plan.arm}'.",
            why=(switch.impossible if switch else None) or "It cannot be put on that path.",
            hint="See `linkbound serve --list`.",
        )
    return switch


def refuse(plan: ServerPlan, engine: str, *, ratios: bool = False, experts: bool = False) -> None:
    """Refuse parts of a split that this adapter would silently drop. Raises UsageError."""
    split = plan.split
    dropped = []
    if split.tensor_ratio is not None and not ratios:
        dropped.append("tensor ratios")
    if split.ep > 1 and not experts:
        dropped.append("expert parallelism")
    if dropped:
        raise UsageError(
            f"{engine} cannot run '{split.name}': no {' and no '.join(dropped)}.",
            why="The split would be another one than asked for.",
            hint="See `linkbound serve --list` for the splits of each engine.",
        )
