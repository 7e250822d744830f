"""vLLM without HTTP (`vllm-offline`): whole batches through `LLM.generate` in a child (P2).

The method of recorded/h200-pair/vllm-0.24.0: same limits, graph sizes and seeds of steps, so that
runs meet those rows. The child is `linkbound.serve.vllm_child`; its own server only passes orders.
"""

import json
import sys

import msgspec

from linkbound.links.types import Arm
from linkbound.serve.engines import vllm
from linkbound.serve.engines.arguments import extra_arguments
from linkbound.serve.engines.model_files import model_files
from linkbound.serve.engines.switches import DECIDED, switch_for
from linkbound.serve.engines.types import ArmSwitch, Cache, Engine, ServerPlan
from linkbound.serve.process import Launch
from linkbound.serve.rules import VLLM

MEMORY_SHARE = 0.92
_THREADS = "8"
# What are flags of a server's command line are arguments here.
_NCCL_ONLY = ("disable_custom_all_reduce=true",)
ARMS = {
    **{
        arm: msgspec.structs.replace(switch, flags=() if arm is Arm.P2P else _NCCL_ONLY)
        for arm, switch in vllm.ARMS.items()
    },
    Arm.NET: ArmSwitch(impossible="A row of a runs file cannot tell it from staged."),
}


def launch(plan: ServerPlan) -> Launch:
    """The child of one engine with all that it is to be built with."""
    switch = switch_for("vLLM", ARMS, plan)
    model = model_files(plan)
    job = f"{plan.folder}/engine.json"
    return Launch(
        argv=(
            *(plan.program or sys.executable, "-m", "linkbound.serve.vllm_child"),
            *("--engine", job, "--port", str(plan.port)),
        ),
        environment={
            "OMP_NUM_THREADS": _THREADS,
            **vllm.environment(plan, switch),
        },
        drop=DECIDED,
        files={**model.files, job: json.dumps(arguments(plan, switch, model.folder), indent=2)},
    )


def arguments(plan: ServerPlan, switch: ArmSwitch, folder: str) -> dict[str, object]:
    """What vLLM's `LLM` is built with. Raises UsageError for an `--extra` that is no argument."""
    split = plan.split
    made: dict[str, object] = {
        "model": folder,
        "tensor_parallel_size": split.tp,
        "pipeline_parallel_size": split.pp,
        "gpu_memory_utilization": MEMORY_SHARE,
        "max_model_len": plan.context_tokens,
        "max_num_seqs": plan.sequences,
        "max_num_batched_tokens": VLLM.max_batched_tokens,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "compilation_config": {"cudagraph_capture_sizes": list(VLLM.graph_sizes), **vllm.PASSES},
    }
    if split.ep > 1:
        made["enable_expert_parallel"] = True
    if plan.dummy_weights:
        made |= {"load_format": "dummy", "skip_tokenizer_init": True}
    if plan.cache_bytes is not None:
        # It no longer counts then what is free, while others fill the same GPU beside it.
        made |= {
            "kv_cache_memory_bytes": plan.cache_bytes,
            "gpu_memory_utilization": vllm.LEAST_SHARE,
        }
    more = extra_arguments((*switch.flags, *plan.extra), "vLLM's LLM", "enforce_eager=true")
    return {**made, **more}


ENGINE = Engine(
    name="vllm-offline",
    title="vLLM without HTTP: whole batches",
    verified=(
        "0.24.0 on 2x H200: one GPU, tp2 in arms p2p, nccl and staged, pp2 in p2p and staged, "
        "twins",
    ),
    launch=launch,
    health="/health",
    ready="its child answers 200 once the engine is built and has run one call",
    death="the child ends, or an order is not answered in time",
    metrics=None,
    takes_batches=True,
    cache=Cache.BYTES,
    times_reduce=True,
    fixed_length=True,
    dummy_weights=vllm.ENGINE.dummy_weights,
    arms=ARMS,
    splits="tp, pp (stages of stated layers), ep = tp, the twin of a split; no replicas",
    flags=vllm.ENGINE.flags,
    proofs=vllm.ENGINE.proofs,
    rules=VLLM,
)
