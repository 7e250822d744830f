"""A model and the machine it is asked about, as the head of an answer (S3)."""

import itertools

from linkbound.model.derive import kv_bytes_per_token
from linkbound.model.types import ModelShape
from linkbound.topology.types import Machine
from linkbound.units import GIB


def render_head(shape: ModelShape, title: str, machine: Machine) -> list[str]:
    """Model and machine, a line each, and what the model's file leaves open."""
    runs = itertools.groupby(machine.gpus, key=lambda gpu: gpu.memory_bytes)
    sizes = ", ".join(_run([gpu.label for gpu in run], size) for size, run in runs)
    return [
        f"model    {shape.name}: {shape.parameters:,} parameters, {gib(shape.weight_bytes)} GiB "
        f"of weights, {kv_bytes_per_token(shape):,.0f} B of cache a token",
        *(f"         {gap}" for gap in shape.gaps),
        f"machine  {title}: {sizes}",
    ]


def _run(labels: list[str], size_bytes: int | None) -> str:
    names = labels[0] if len(labels) == 1 else f"{labels[0]} .. {labels[-1]}"
    return f"{names} {_size(size_bytes)}"


def _size(size_bytes: int | None) -> str:
    return "of unknown memory" if size_bytes is None else f"{gib(size_bytes)} GiB"


def gib(size_bytes: float) -> str:
    """GiB with two decimals; the unit stands in the header."""
    return f"{size_bytes / GIB:,.2f}"
