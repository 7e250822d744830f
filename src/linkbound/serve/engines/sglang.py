"""SGLang (`python -m sglang.launch_server`): tensor and pipeline parallel, own all-reduce."""

from linkbound.links.types import Arm
from linkbound.serve.engines.switches import DECIDED, arm_environment, refuse, switch_for
from linkbound.serve.engines.types import ArmSwitch, Engine, Flag, Proof, ServerPlan
from linkbound.serve.process import Launch
from linkbound.serve.types import SchedulerRules

CHUNK_TOKENS = 8192
_NCCL_ONLY = ("--disable-custom-all-reduce", "--enforce-disable-flashinfer-allreduce-fusion")
_OWN = ("custom all-reduce, both versions", "FlashInfer's fused all-reduce")
# Its second version uses multicast from four GPUs on; the first never does.
_NO_MULTICAST = {"SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"}
ARMS = {
    Arm.P2P: ArmSwitch(
        environment=_NO_MULTICAST,
        flags=("--enable-p2p-check",),
        switches_off=("the second custom all-reduce: it would use NVLink multicast",),
        cannot=("NCCL runs without CUMEM: SGLang sets NCCL_CUMEM_ENABLE=0",),
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
    refuse(plan, "SGLang", experts=True)
    switch = switch_for("SGLang", ARMS, plan)
    split = plan.split
    environment = {
        # The default health check generates a token: load of its own beside ours.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        **arm_environment(plan, switch),
    }
    if split.stage_layers is not None:
        environment["SGLANG_PP_LAYER_PARTITION"] = ",".join(map(str, split.stage_layers))
    dummy = ("--load-format", "dummy", "--skip-tokenizer-init") if plan.dummy_weights else ()
    return Launch(
        argv=(
            *(plan.program or "python3", "-m", "sglang.launch_server"),
            *("--model-path", plan.model, "--host", "127.0.0.1", "--port", str(plan.port)),
            *("--tp-size", str(split.tp), "--pp-size", str(split.pp)),
            *(("--ep-size", str(split.ep)) if split.ep > 1 else ()),
            *("--context-length", str(plan.context_tokens)),
            *("--max-running-requests", str(plan.sequences)),
            *("--chunked-prefill-size", str(CHUNK_TOKENS)),
            *(("--disable-radix-cache", "--enable-metrics") if plan.measured else ()),
            *dummy,
            *switch.flags,
            *plan.extra,
        ),
        environment=environment,
        drop=DECIDED,
    )


ENGINE = Engine(
    name="sglang",
    title="SGLang",
    verified=(),
    launch=launch,
    health="/health",
    ready="/health answers 200; the log says 'The server is fired up and ready to roll!'",
    death="the process ends, or /health stops answering",
    metrics="/metrics",
    extra={"ignore_eos": True},
    fixed_length=True,
    dummy_weights="a folder with config.json alone: --load-format dummy --skip-tokenizer-init",
    arms=ARMS,
    splits="tp, pp (stages of stated layers), ep; replicas as servers behind a balancer",
    flags=(
        Flag(
            name="SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2",
            versions="from 2026-05, default on",
            meaning="0 keeps the first custom all-reduce, which never uses multicast",
        ),
    ),
    proofs=(
        Proof(
            seen="All Reduce config: symmetric_memory = ..., multicast = ...",
            proves="the second custom all-reduce is live, and whether with multicast",
        ),
        Proof(
            seen="CustomAllreduce is disabled because ...",
            proves="only NCCL carries tensor-parallel data, and why",
        ),
        Proof(
            seen="Registering N cuda graph addresses",
            proves="custom all-reduce is live inside CUDA graphs",
        ),
        Proof(seen="sglang:num_queue_reqs", proves="requests waited for a place in the batch"),
    ),
    rules=SchedulerRules(
        engine="sglang",
        max_batched_tokens=CHUNK_TOKENS,
        max_sequences=256,
        graph_sizes=(),
        # Its overlapped scheduler and unmixed chunks are defaults: --disable-overlap-schedule and
        # --enable-mixed-chunk would change them.
        steps_ahead=2,
        mixes=False,
        direct_all_reduce_limit_bytes=8 * 1024 * 1024,
        preemption="sequences are retracted and queued again",
        set_by=("--chunked-prefill-size", "--max-running-requests"),
        source="limits as this adapter sets them; the 8 MiB are the first custom all-reduce's",
    ),
)
