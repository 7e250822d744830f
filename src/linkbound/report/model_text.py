"""A model and the machine it is asked about, as the head of an answer (S3)."""

from linkbound.model.derive import kv_bytes_per_token
from linkbound.model.types import ModelShape
from linkbound.topology.types import Machine
from linkbound.units import GIB


def render_head(shape: ModelShape, machine: Machine) -> list[str]:
    """Model and machine, a line each, and what the model's file leaves open."""
    sizes = ", ".join(f"{gpu.label} {_size(gpu.memory_bytes)}" for gpu in machine.gpus)
    return [
        f"model    {shape.name}: {shape.parameters:,} parameters, {gib(shape.weight_bytes)} GiB "
        f"of weights, {kv_bytes_per_token(shape):,.0f} B of cache a token",
        *(f"         {gap}" for gap in shape.gaps),
        f"machine  {machine.sources[0] if len(machine.sources) == 1 else _sources(machine)}",
        f"         {sizes}",
    ]


def _sources(machine: Machine) -> str:
    return f"{len(machine.sources)} files: {', '.join(machine.sources)}"


def _size(size_bytes: int | None) -> str:
    return "of unknown memory" if size_bytes is None else f"{gib(size_bytes)} GiB"


def gib(size_bytes: float) -> str:
    """GiB with two decimals; the unit stands in the header."""
    return f"{size_bytes / GIB:,.2f}"
