"""Transformers (`transformers serve`): one process, layers over GPUs by device_map."""

from linkbound.errors import UsageError
from linkbound.links.types import Arm
from linkbound.serve.engines.switches import DECIDED, devices, refuse, switch_for
from linkbound.serve.engines.types import ArmSwitch, Engine, Flag, Proof, ServerPlan
from linkbound.serve.process import Launch

_NO_SWITCH = (
    "Tensors move by `.to()`, which the driver copies by peer access where it is granted: "
    "there is no switch, so there is no such arm."
)
ARMS = {
    Arm.P2P: ArmSwitch(cannot=("the driver decides whether a copy between stages is direct",)),
    Arm.NCCL: ArmSwitch(impossible="A device_map split does not use NCCL."),
    Arm.STAGED: ArmSwitch(impossible=_NO_SWITCH),
    Arm.NET: ArmSwitch(impossible=_NO_SWITCH),
}


def launch(plan: ServerPlan) -> Launch:
    """The command and environment of one process; its GPUs are those it sees."""
    refuse(plan, "Transformers")
    if plan.split.tp > 1 or plan.split.stage_layers is not None:
        raise UsageError(
            f"`transformers serve` cannot run '{plan.split.name}'.",
            why="It has no flag for tensor parallelism, and device_map chooses the layers.",
            hint="Write --split pp2.",
        )
    if plan.dummy_weights:
        raise UsageError(
            "`transformers serve` needs real weights.",
            why="It has no dummy format.",
            hint="Save a model with random weights once and give its folder.",
        )
    switch_for("Transformers", ARMS, plan)
    return Launch(
        argv=(
            *(plan.program or "transformers", "serve", plan.model),
            *("--host", "127.0.0.1", "--port", str(plan.port)),
            *("--device", "auto", "--continuous-batching"),
            *plan.extra,
        ),
        environment={"HF_HUB_OFFLINE": "1", "NCCL_NVLS_ENABLE": "0", **devices(plan)},
        drop=DECIDED,
    )


ENGINE = Engine(
    name="transformers",
    title="Transformers (transformers serve)",
    verified=(),
    launch=launch,
    health="/health",
    ready="/health answers 200 before the model is loaded: the warm-up waits for the model",
    death="the process ends",
    metrics=None,
    chat=True,
    extra={},
    # It refuses requests with fields it does not know, ignore_eos among them.
    fixed_length=False,
    dummy_weights="none: save a model with random weights and a tokenizer once",
    arms=ARMS,
    splits="pp (device_map chooses the layers); replicas as servers behind a balancer",
    flags=(
        Flag(
            name="--continuous-batching",
            versions="from 4.57",
            meaning="without it requests are answered one after the other",
        ),
    ),
    proofs=(
        Proof(
            seen="no line of its log",
            proves="nothing about the path: byte counters or a profile must show it",
        ),
    ),
    # Continuous batching sets its limits from free memory; no run has shown them yet.
    rules=None,
)
