"""How to run a plan with vLLM: guards against multicast, the arm, and what is near it (D4)."""

from linkbound.links import Arm
from linkbound.links.arms import nccl_environment
from linkbound.predict.types import Plan
from linkbound.splits.types import Placement, Split
from linkbound.topology.types import Machine


def vllm_command(machine: Machine, plan: Plan) -> str:
    """One line for a shell: what the arm opens and closes, where it runs, how it is split."""
    arm = Arm.P2P if plan.arm is None else plan.arm
    labels = [machine.gpu(key).label for key in plan.placement.gpus]
    environment = {
        **nccl_environment(arm),
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        **partition(plan.split),
        # Labels count as nvidia-smi does; CUDA alone would put the fastest GPU first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(label.removeprefix("GPU") for label in labels),
    }
    split = plan.split
    flags = {
        f"--tensor-parallel-size {split.tp}": split.tp > 1,
        f"--pipeline-parallel-size {split.pp}": split.pp > 1,
        f"--data-parallel-size {split.replicas}": split.replicas > 1,
        "--enable-expert-parallel": split.ep > 1,
        "--disable-custom-all-reduce": arm is not Arm.P2P,
    }
    words = [f"{name}={value}" for name, value in environment.items()]
    asked = [one for one, wanted in flags.items() if wanted]
    return " ".join([*words, *binding_words(plan.placement), "vllm serve MODEL", *asked])


def partition(split: Split) -> dict[str, str]:
    """vLLM's own division of layers is left alone unless stages were stated."""
    if split.stage_layers is None:
        return {}
    return {"VLLM_PP_LAYER_PARTITION": ",".join(map(str, split.stage_layers))}


def binding_words(placement: Placement) -> list[str]:
    """Memory and processors near the GPUs; nothing where they are not known of every one."""
    nodes = {placement.numa_nodes.get(key) for key in placement.gpus}
    cores = [placement.cores.get(key) for key in placement.gpus]
    found = []
    if len(nodes) == 1 and None not in nodes:
        (node,) = nodes
        found.append(f"numactl --cpunodebind={node} --membind={node}")
    if None not in cores:
        # After numactl, whose nodes may have more processors than the GPUs are near to.
        found.append(f"taskset -c {','.join(dict.fromkeys(map(str, cores)))}")
    return found
