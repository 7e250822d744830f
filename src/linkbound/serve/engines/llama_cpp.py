"""llama.cpp: `llama-server`, and the same server inside a Python child (xllamacpp) for tests."""

import sys

from linkbound.errors import UsageError
from linkbound.links.types import Arm
from linkbound.serve.engines.switches import DECIDED, devices, switch_for
from linkbound.serve.engines.types import ArmSwitch, Cache, Engine, Flag, Proof, ServerPlan
from linkbound.serve.process import Launch
from linkbound.serve.types import SchedulerRules

BATCH_TOKENS = 2048
MICRO_BATCH_TOKENS = 512
# Presence decides, not the value: GGML_CUDA_P2P=0 would turn peer copies on.
ARMS = {
    Arm.P2P: ArmSwitch(
        environment={"GGML_CUDA_P2P": "1"},
        cannot=("its log never says whether a copy was direct: only byte counters show it",),
    ),
    Arm.NCCL: ArmSwitch(
        environment={"GGML_CUDA_P2P": "1", "GGML_CUDA_ALLREDUCE": "nccl"},
        switches_off=("the internal all-reduce of tensor splits",),
        cannot=("an image without NCCL falls back to the internal all-reduce, and says so",),
    ),
    Arm.STAGED: ArmSwitch(
        switches_off=("peer copies (GGML_CUDA_P2P unset)", "NCCL's peer-to-peer transport"),
        cannot=(
            "the driver may still copy directly where a process enabled peer access: a hard off "
            "needs a build with GGML_CUDA_NO_PEER_COPY",
        ),
    ),
    Arm.NET: ArmSwitch(
        impossible="One process holds all GPUs: without shared memory there is no way between them."
    ),
}
_RULES = SchedulerRules(
    engine="llama.cpp",
    max_batched_tokens=BATCH_TOKENS,
    max_sequences=32,
    graph_sizes=(),
    # Peer copies and the tensor split's own all-reduce have no such limit: none goes past NCCL.
    direct_all_reduce_limit_bytes=0,
    preemption="none: a request waits for a free slot, and the cache is divided in advance",
    set_by=("-b", "-ub", "-np"),
    source="limits as this adapter sets them; a micro-batch holds 512 tokens",
)
_PROOFS = (
    Proof(
        seen="NCCL not compiled in; falling back to internal AllReduce",
        proves="tensor splits go through pinned host memory",
    ),
    Proof(
        seen="initialized AllReduce pipeline: 2 GPUs, ... staging",
        proves="the internal all-reduce is set up: pinned host memory, never peer-to-peer",
    ),
    Proof(seen="pipeline parallelism enabled", proves="layer stages overlap their copies"),
    Proof(seen="layer i assigned to device CUDA0", proves="where each layer is (with -v)"),
    Proof(seen="llamacpp:requests_deferred", proves="requests waited for a slot"),
)
_EXTRA = {"ignore_eos": True, "cache_prompt": False}


def launch(plan: ServerPlan) -> Launch:
    """The command and environment of one `llama-server`."""
    switch = switch_for("llama.cpp", ARMS, plan)
    return Launch(
        argv=(
            *(plan.program or "llama-server", "-m", plan.model),
            *("--host", "127.0.0.1", "--port", str(plan.port)),
            *("-c", str(plan.context_tokens * plan.sequences), "-np", str(plan.sequences)),
            *("-b", str(BATCH_TOKENS), "-ub", str(MICRO_BATCH_TOKENS)),
            *(("--metrics", "--slots", "-v") if plan.measured else ()),
            *_split_flags(plan),
            *plan.extra,
        ),
        environment=_environment(plan, switch),
        drop=DECIDED,
    )


def launch_in_python(plan: ServerPlan) -> Launch:
    """The same server as a module of a Python child: no binary needed, one thread, one device."""
    if plan.split.gpus > 1 or plan.extra:
        raise UsageError(
            f"xllamacpp runs here on one processor, without flags, not as '{plan.split.name}'.",
            why="Its wheel has no GPU and no remote backend.",
            hint="Use --engine llama.cpp with a llama-server program for splits.",
        )
    switch = switch_for("xllamacpp", ARMS, plan)
    return Launch(
        argv=(
            *(plan.program or sys.executable, "-m", "linkbound.serve.llama_child"),
            *("--model", plan.model, "--port", str(plan.port)),
            *("--context", str(plan.context_tokens * plan.sequences)),
            *("--sequences", str(plan.sequences)),
        ),
        environment=_environment(plan, switch),
        drop=DECIDED,
    )


def _environment(plan: ServerPlan, switch: ArmSwitch) -> dict[str, str]:
    """Without NCCL's `P2P_LEVEL`: one process, direct pointers. Staged turns both ways off."""
    nccl = {"NCCL_NVLS_ENABLE": "0"}
    if plan.arm is Arm.STAGED:
        nccl["NCCL_P2P_DISABLE"] = "1"
    return {**nccl, **switch.environment, **devices(plan)}


def _split_flags(plan: ServerPlan) -> tuple[str, ...]:
    split = plan.split
    if split.ep > 1 or (split.tp > 1 and split.pp > 1):
        raise UsageError(
            f"llama.cpp cannot run '{split.name}'.",
            why="It splits by layers (pp) or by tensors (tp), one of both.",
            hint="Write --split pp2 or --split tp2.",
        )
    if split.tp > 1:
        shares = split.tensor_ratio or (1.0,) * split.tp
        ratio = ",".join(f"{one:g}" for one in shares)
        return ("-ngl", "999", "-fa", "on", "-sm", "tensor", "-ts", ratio)
    if split.pp > 1:
        stages = split.stage_layers or (1,) * split.pp
        return ("-ngl", "999", "-sm", "layer", "-ts", ",".join(map(str, stages)))
    return ("-ngl", "999", "-sm", "none") if plan.devices else ()


ENGINE = Engine(
    name="llama.cpp",
    title="llama.cpp (llama-server)",
    verified=(),
    launch=launch,
    health="/health",
    ready='/health answers {"status":"ok"}; 503 while the model is loading',
    death="the process ends; a hang leaves requests without a chunk",
    metrics="/metrics",
    cache=Cache.PLACES,
    extra=_EXTRA,
    fixed_length=True,
    dummy_weights="none: give a GGUF file with random weights",
    arms=ARMS,
    splits="pp (layers, stages of stated layers), tp (tensor, with ratios); no both, no ep",
    flags=(
        Flag(name="-sm row", versions="to 2026-07", meaning="CUDA row split, gone since"),
        Flag(name="-sm tensor", versions="from 2026-04", meaning="needs flash attention"),
        Flag(
            name="GGML_CUDA_P2P",
            versions="from 2026-04-15",
            meaning="peer access is opt-in; before, it was always on and staged had no switch",
        ),
    ),
    proofs=_PROOFS,
    rules=_RULES,
)
IN_PYTHON = Engine(
    name="xllamacpp",
    title="llama.cpp inside Python (xllamacpp), one processor, for tests",
    verified=("2026.10.11549",),
    launch=launch_in_python,
    health="/health",
    ready='/health answers {"status":"ok"}',
    death="the process ends; a hang leaves requests without a chunk",
    metrics="/metrics",
    cache=Cache.PLACES,
    extra=_EXTRA,
    fixed_length=True,
    dummy_weights="none: give a GGUF file with random weights",
    arms={
        **ARMS,
        Arm.NCCL: ArmSwitch(impossible="Its wheel is built without NCCL."),
    },
    splits="one device; replicas as servers behind a balancer",
    proofs=_PROOFS,
    rules=_RULES,
)
