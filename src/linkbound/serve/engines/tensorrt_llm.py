"""TensorRT-LLM (`trtllm-serve`): tensor, pipeline and expert parallel; strategies by a file."""

from linkbound.links.types import Arm
from linkbound.serve.engines.switches import DECIDED, arm_environment, refuse, switch_for
from linkbound.serve.engines.types import ArmSwitch, Engine, Flag, Proof, ServerPlan
from linkbound.serve.process import Launch
from linkbound.serve.types import SchedulerRules

MAX_TOKENS = 8192
_OWN = ("one-shot and two-shot all-reduce", "user buffers", "MNNVL and symmetric memory")
_STRATEGY = {Arm.P2P: "AUTO", Arm.NCCL: "NCCL", Arm.STAGED: "NCCL", Arm.NET: "NCCL"}
ARMS = {
    Arm.P2P: ArmSwitch(
        cannot=(
            "without NVLink between all GPUs it takes NCCL, whatever the strategy",
            "AUTO may take MNNVL where multicast is there: its log must be read",
        ),
    ),
    Arm.NCCL: ArmSwitch(switches_off=_OWN),
    Arm.STAGED: ArmSwitch(switches_off=(*_OWN, "NCCL's peer-to-peer transport")),
    Arm.NET: ArmSwitch(
        switches_off=(*_OWN, "NCCL's peer-to-peer transport", "NCCL's shared memory")
    ),
}


def launch(plan: ServerPlan) -> Launch:
    """The command, environment and configuration file of one replica."""
    refuse(plan, "TensorRT-LLM", experts=True)
    switch = switch_for("TensorRT-LLM", ARMS, plan)
    split = plan.split
    file = f"{plan.folder}/trtllm.yaml"
    return Launch(
        argv=(
            *(plan.program or "trtllm-serve", plan.model),
            *("--host", "127.0.0.1", "--port", str(plan.port)),
            *("--tp_size", str(split.tp), "--pp_size", str(split.pp)),
            *(("--ep_size", str(split.ep)) if split.ep > 1 else ()),
            *("--max_seq_len", str(plan.context_tokens)),
            *("--max_batch_size", str(plan.sequences), "--max_num_tokens", str(MAX_TOKENS)),
            *("--config", file),
            *plan.extra,
        ),
        environment=arm_environment(plan, switch),
        drop=DECIDED,
        files={file: _configuration(plan)},
    )


def _configuration(plan: ServerPlan) -> str:
    strategy = "AUTO" if plan.arm is None else _STRATEGY[plan.arm]
    lines = [
        f"allreduce_strategy: {strategy}",
        *(["kv_cache_config:", "  enable_block_reuse: false"] if plan.measured else []),
        *(["load_format: dummy"] if plan.dummy_weights else []),
    ]
    return "\n".join(lines) + "\n"


ENGINE = Engine(
    name="tensorrt-llm",
    title="TensorRT-LLM (trtllm-serve)",
    verified=(),
    launch=launch,
    health="/health",
    ready="/health answers 200",
    death="the process ends, or /health stops answering",
    metrics="/metrics",
    extra={"ignore_eos": True},
    fixed_length=True,
    dummy_weights="load_format: dummy in the configuration file (by its documentation)",
    arms=ARMS,
    splits="tp, pp, ep; replicas as servers behind a balancer",
    flags=(
        Flag(
            name="--config",
            versions="before: --extra_llm_api_options",
            meaning="the file with the all-reduce strategy",
        ),
    ),
    proofs=(
        Proof(
            seen="P2P not supported between local devices a and b",
            proves="its own all-reduce is off: NCCL carries the data",
        ),
    ),
    rules=SchedulerRules(
        engine="tensorrt-llm",
        max_batched_tokens=MAX_TOKENS,
        max_sequences=256,
        graph_sizes=(),
        direct_all_reduce_limit_bytes=8 * 1024 * 1024,
        set_by=("--max_num_tokens", "--max_batch_size"),
        source="limits as this adapter sets them; the size where AUTO changes to NCCL was not read",
    ),
)
