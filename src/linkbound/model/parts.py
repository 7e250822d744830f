"""A weight before its bits are known: where it sits in the model, how it divides, what it is for.

Blocks (attention, feed-forward, recurrent) list their parts; `store` gives each its bits (S3).
"""

from collections.abc import Iterable

from linkbound.model.quantization import Quantization
from linkbound.model.types import Role, Shard, Weights
from linkbound.values import Value


class Part(Value, frozen=True, kw_only=True):
    """Parameters of one module; an empty module is one that no scheme quantises."""

    name: str
    parameters: int
    shard: Shard
    role: Role
    module: str = ""


def norm(width: int, name: str = "norms") -> Part:
    """A norm, or any vector that every rank holds whole."""
    return Part(name=name, parameters=width, shard=Shard.REPLICATED, role=Role.NORM)


def store(parts: Iterable[Part], quantization: Quantization, prefix: str) -> tuple[Weights, ...]:
    """The parts with their bits, those alike in all but size added up."""
    sums: dict[tuple[str, Shard, Role, float, bool], int] = {}
    for part in parts:
        module = f"{prefix}{part.module}" if part.module else ""
        stored = quantization.of(module)
        key = (part.name, part.shard, part.role, stored.bits, stored.float8)
        if part.parameters:
            sums[key] = sums.get(key, 0) + part.parameters
    return tuple(
        Weights(name=name, parameters=total, bits=bits, float8=float8, shard=shard, role=role)
        for (name, shard, role, bits, float8), total in sums.items()
    )
