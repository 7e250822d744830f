"""vLLM (`vllm serve`): tensor, pipeline and expert parallel; own all-reduce over peer memory."""

import json

from linkbound.links.types import Arm
from linkbound.serve.engines.model_files import model_files
from linkbound.serve.engines.switches import DECIDED, arm_environment, refuse, switch_for
from linkbound.serve.engines.types import ArmSwitch, Cache, Engine, Flag, Proof, ServerPlan
from linkbound.serve.process import Launch
from linkbound.serve.rules import graph_sizes
from linkbound.serve.types import SchedulerRules

MAX_BATCHED_TOKENS = 8192
LEAST_SHARE = 0.05
"""Of a GPU's memory that has to be free at the start, where the size of the cache is stated: the
cache is no longer worked out from it, but a start still ends where less is free."""
# The fused all-reduce of FlashInfer is a pass of the compiler, not a communicator.
PASSES = {"pass_config": {"fuse_allreduce_rms": False}}
_NO_FUSION = ("--compilation-config", json.dumps(PASSES))
_NCCL_ONLY = ("--disable-custom-all-reduce", *_NO_FUSION)
_NO_MULTICAST = {
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
}
_OTHERS = (
    "torch symmetric memory",
    "FlashInfer's all-reduce, and the one fused with the norm",
    "NCCL symmetric memory",
)
_OWN = ("custom all-reduce (CUDA IPC)", *_OTHERS)
ARMS = {
    Arm.P2P: ArmSwitch(
        environment={"VLLM_SKIP_P2P_CHECK": "0", **_NO_MULTICAST},
        flags=_NO_FUSION,
        switches_off=tuple(f"{one}: it may use NVLink multicast" for one in _OTHERS),
        cannot=("which all-reduce a call takes is vLLM's choice by size",),
    ),
    Arm.NCCL: ArmSwitch(environment=_NO_MULTICAST, flags=_NCCL_ONLY, switches_off=_OWN),
    Arm.STAGED: ArmSwitch(
        environment=_NO_MULTICAST,
        flags=_NCCL_ONLY,
        switches_off=(*_OWN, "NCCL's peer-to-peer transport"),
    ),
    Arm.NET: ArmSwitch(
        environment=_NO_MULTICAST,
        flags=_NCCL_ONLY,
        switches_off=(*_OWN, "NCCL's peer-to-peer transport", "NCCL's shared memory"),
    ),
}


def launch(plan: ServerPlan) -> Launch:
    """The command and environment of one replica."""
    switch = switch_for("vLLM", ARMS, plan)
    model = model_files(plan)
    split = plan.split
    dummy = ("--load-format", "dummy", "--skip-tokenizer-init") if plan.dummy_weights else ()
    return Launch(
        argv=(
            *(plan.program or "vllm", "serve", model.folder, "--served-model-name", plan.model),
            *("--host", "127.0.0.1", "--port", str(plan.port)),
            *("--tensor-parallel-size", str(split.tp)),
            *("--pipeline-parallel-size", str(split.pp)),
            *(("--enable-expert-parallel",) if split.ep > 1 else ()),
            *("--max-model-len", str(plan.context_tokens)),
            *("--max-num-seqs", str(plan.sequences)),
            *("--max-num-batched-tokens", str(MAX_BATCHED_TOKENS)),
            *(("--no-enable-prefix-caching",) if plan.measured else ()),
            *_cache(plan),
            *dummy,
            *switch.flags,
            *plan.extra,
        ),
        environment=environment(plan, switch),
        drop=DECIDED,
        files=model.files,
    )


def _cache(plan: ServerPlan) -> tuple[str, ...]:
    """Of a stated size, where others fill the same GPUs meanwhile."""
    if plan.cache_bytes is None:
        return ()
    return (
        *("--kv-cache-memory-bytes", str(plan.cache_bytes)),
        *("--gpu-memory-utilization", str(LEAST_SHARE)),
    )


def environment(plan: ServerPlan, switch: ArmSwitch) -> dict[str, str]:
    """What vLLM is told by variables, as a server or without one. Raises UsageError."""
    refuse(plan, "vLLM", experts=True)
    told = {
        "VLLM_NO_USAGE_STATS": "1",
        # Where its workers meet. By default a port that is free now and taken a moment later, when
        # several engines start at once.
        "VLLM_PORT": str(plan.port + 1),
        # On by default, and then an engine without FlashInfer ends while it starts. What is asked
        # here has temperature 0: the sampler's own way does not matter.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        **arm_environment(plan, switch),
    }
    if plan.split.stage_layers is not None:
        told["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, plan.split.stage_layers))
    if plan.dummy_weights:
        told["HF_HUB_OFFLINE"] = "1"
    return told


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    verified=(
        "0.24.0 on H200: one GPU, tp2 in arms p2p, nccl and staged, pp2 in p2p and staged, "
        "replicas",
    ),
    launch=launch,
    health="/health",
    ready="/health answers 200; the port opens only after the model is loaded, 80 to 95 s for 8B",
    death="/health answers 503 when the engine core is dead; a hang leaves requests unanswered",
    metrics="/metrics",
    # Without a tokeniser (dummy weights) the text of every event is empty; ids never are. And
    # log-probabilities are refused (HTTP 400) unless tokens are named by their ids.
    extra={"ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True},
    cache=Cache.BYTES,
    fixed_length=True,
    dummy_weights="a bundled name, a config.json, or a folder with it alone: --load-format dummy "
    "--skip-tokenizer-init",
    arms=ARMS,
    splits="tp, pp (stages of stated layers), ep = tp; replicas as servers behind a balancer",
    flags=(
        Flag(
            name="--device-ids",
            versions="from 0.25",
            meaning="order of devices; CUDA_VISIBLE_DEVICES is used here: every version has it",
        ),
        Flag(
            name="VLLM_ALLREDUCE_USE_FLASHINFER",
            versions="in 0.24; default 0",
            meaning="FlashInfer's all-reduce; its fused pass is fuse_allreduce_rms: both are set",
        ),
        Flag(
            name="VLLM_SKIP_P2P_CHECK",
            versions="default 1",
            meaning="1 takes the driver's word for the first peer only; 0 tests copies by IPC",
        ),
    ),
    proofs=(
        Proof(
            seen="Using ['CUSTOM', ...] all-reduce backends ... for group 'tp:0'",
            proves="which ways are enabled, in order; not which one a call takes",
        ),
        Proof(
            seen="Registering N cuda graph addresses",
            proves="custom all-reduce is live inside CUDA graphs: peer memory is used",
        ),
        Proof(
            seen="Custom allreduce is disabled because ...",
            proves="only NCCL carries tensor-parallel data, and why",
        ),
        Proof(seen="vLLM is using nccl==V", proves="the NCCL version, and more than one GPU"),
        Proof(seen="vllm:num_preemptions_total", proves="the cache was full during the load"),
        Proof(seen="GPU KV cache size: N tokens", proves="how many tokens of cache there are"),
    ),
    rules=SchedulerRules(
        engine="vllm",
        max_batched_tokens=MAX_BATCHED_TOKENS,
        max_sequences=256,
        graph_sizes=graph_sizes(256),
        steps_ahead=2,
        direct_all_reduce_limit_bytes=8 * 1024 * 1024,
        preemption="the last sequence is put back and computed again",
        set_by=("--max-num-batched-tokens", "--max-num-seqs"),
        source="limits as this adapter sets them; graph sizes and asynchronous scheduling are "
        "vLLM's defaults, which its log confirms",
    ),
)
