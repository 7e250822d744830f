"""Transformers without HTTP (`transformers-offline`): whole batches under a `device_map` (P2).

`transformers serve` needs real weights and takes no fixed length. The child, which is
`linkbound.serve.transformers_child`, draws weights where they lie and calls `generate`.
"""

import sys

import msgspec

from linkbound.errors import UsageError
from linkbound.links.types import Arm
from linkbound.serve.engines.arguments import extra_arguments
from linkbound.serve.engines.model_files import model_files
from linkbound.serve.engines.switches import DECIDED, devices, refuse, switch_for
from linkbound.serve.engines.types import ArmSwitch, Cache, Engine, Proof, ServerPlan
from linkbound.serve.layer_job import LayerJob
from linkbound.serve.process import Launch

_NAME = "Transformers"
_THREADS = "8"
ARMS = {
    Arm.P2P: ArmSwitch(
        cannot=(
            "torch takes peer access for every pair of GPUs that the driver grants it to, and says "
            "nothing of it: only byte counters show the path",
        )
    ),
    Arm.NCCL: ArmSwitch(impossible="A device_map split does not use NCCL."),
    Arm.STAGED: ArmSwitch(
        switches_off=(
            "peer copies of accelerate's hooks: in this child each goes through pinned memory of "
            "the host instead. Neither torch nor accelerate has a switch",
        ),
        cannot=(
            "it is this program's way to stage, with calls of its own for each tensor: a driver "
            "without peer access stages inside of one call",
        ),
    ),
    Arm.NET: ArmSwitch(impossible="One process holds all GPUs: nothing goes to a network."),
}


def launch(plan: ServerPlan) -> Launch:
    """The child of one model with all that it is to be built with."""
    refuse(plan, _NAME)
    if plan.split.tp > 1:
        raise UsageError(
            f"{_NAME} cannot run '{plan.split.name}' here.",
            why="A device_map places whole layers.",
            hint="Write --split pp2, or --engine vllm-offline for tensor parallelism.",
        )
    switch_for(_NAME, ARMS, plan)
    model = model_files(plan)
    file = f"{plan.folder}/engine.json"
    job = LayerJob(
        folder=model.folder,
        dummy_weights=plan.dummy_weights,
        stages=plan.split.pp,
        stage_layers=plan.split.stage_layers,
        staged=plan.arm is Arm.STAGED,
        arguments=extra_arguments(plan.extra, "from_pretrained", "'attn_implementation=\"eager\"'"),
    )
    return Launch(
        argv=(
            *(plan.program or sys.executable, "-m", "linkbound.serve.transformers_child"),
            *("--engine", file, "--port", str(plan.port)),
        ),
        environment={
            "OMP_NUM_THREADS": _THREADS,
            "HF_HUB_OFFLINE": "1",
            "NCCL_NVLS_ENABLE": "0",
            **devices(plan),
        },
        drop=DECIDED,
        files={**model.files, file: msgspec.json.format(msgspec.json.encode(job)).decode()},
    )


ENGINE = Engine(
    name="transformers-offline",
    title="Transformers without HTTP: whole batches, layers over GPUs by device_map",
    verified=("5.17.0 on 2x H200: one GPU, pp2 in p2p and staged",),
    launch=launch,
    health="/health",
    ready="its child answers 200 once the model is built and has run one call",
    death="the child ends, or an order is not answered in time",
    metrics=None,
    takes_batches=True,
    cache=Cache.PLACES,
    stages_in_turn=True,
    fixed_length=True,
    dummy_weights="a bundled name, a config.json, or a folder with it alone: drawn on the GPUs",
    arms=ARMS,
    splits="pp (device_map, stages of stated layers), the twin of a split; no replicas",
    proofs=(
        Proof(
            seen="no line of its log",
            proves="nothing about the path: byte counters show it",
        ),
    ),
    rules=None,
)
