"""A server that somebody else started: only its address is known, so nothing can be switched."""

from linkbound.links.types import Arm
from linkbound.serve.engines.types import ArmSwitch, Engine

_NOT_OURS = "It was started by somebody else: start it in the arm and name it with --label."

ENGINE = Engine(
    name="external",
    title="a running OpenAI-compatible server, by its address",
    verified=("xllamacpp 2026.10.11549",),
    starts=False,
    health="/v1/models",
    ready="it is taken to be ready; the warm-up shows it",
    death="requests are refused or cut",
    metrics=None,
    extra={"ignore_eos": True},
    fixed_length=True,
    dummy_weights="not ours to say",
    arms={arm: ArmSwitch(impossible=_NOT_OURS) for arm in Arm},
    splits="whatever was started",
    rules=None,
)
