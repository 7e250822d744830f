"""How tokens reach the GPUs that hold their experts, for each way of exchange (S1, S2).

Experts inside the tensor-parallel group need nothing of their own: the layer's all-reduce serves.
"""

from collections import Counter
from collections.abc import Iterator

from linkbound.links.types import Operation
from linkbound.model.types import Layer, ModelShape, MoeFfn
from linkbound.splits.engine import EngineAssumptions
from linkbound.splits.ranks import expert_group, tensor_group
from linkbound.splits.types import Crossing, CrossingKind, Dispatch, Phase, Split

SCALE_BYTES, SCALED_ELEMENTS = 4, 128
"""An 8-bit dispatch carries one 4-byte scale for every 128 elements."""


def expected_ranks(group: int, top_k: int) -> float:
    """Distinct ranks of `group` that one token's `top_k` experts are on: g (1 - (1 - 1/g)^e).

    Uniform routing; the most is min(g, e). The token's own rank may be among them.
    """
    return group * (1 - (1 - 1 / group) ** top_k)


def expert_crossings(
    shape: ModelShape,
    split: Split,
    phase: Phase,
    stage: int,
    layers: tuple[Layer, ...],
    tokens: int,
    engine: EngineAssumptions,
) -> Iterator[Crossing]:
    """The exchanges of one stage with `tokens` tokens in each replica, one pair a mixture layer."""
    group = expert_group(split, stage)
    replicas = len(group) // split.tp
    mixtures = Counter(layer.ffn.top_k for layer in layers if isinstance(layer.ffn, MoeFfn))
    for top_k, count in mixtures.items():
        if split.dispatch is Dispatch.ALL_TO_ALL:
            sizes = _all_to_all_bytes(shape, tokens / split.tp, len(group), top_k, engine)
            operations = (Operation.ALL_TO_ALL, Operation.ALL_TO_ALL)
        else:
            state_bytes = tokens * replicas * shape.hidden * shape.activation_bits / 8
            sizes = (state_bytes, state_bytes)
            operations = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
        for operation, size_bytes in zip(operations, sizes, strict=True):
            yield _exchange(operation, group, size_bytes, count, phase)
    count = mixtures.total()
    if split.tp > 1 and count:
        # Each rank comes back with its part of the replica's tokens; the next layer needs all.
        state_bytes = tokens * shape.hidden * shape.activation_bits / 8
        yield _exchange(Operation.ALL_GATHER, tensor_group(split, stage), state_bytes, count, phase)


def _all_to_all_bytes(
    shape: ModelShape, tokens: float, group: int, top_k: int, engine: EngineAssumptions
) -> tuple[float, float]:
    """Dispatch and combine of one rank's `tokens`: a copy to each distinct rank of its experts.

    The part that stays on the rank is counted, as nccl-tests counts it: on the wire (g-1)/g.
    """
    copies = tokens * expected_ranks(group, top_k)
    bits = shape.activation_bits if engine.dispatch_bits is None else engine.dispatch_bits
    scales = shape.hidden / SCALED_ELEMENTS * SCALE_BYTES if bits == 8 else 0
    dispatch = copies * (shape.hidden * bits / 8 + scales)
    return dispatch, copies * shape.hidden * shape.activation_bits / 8


def _exchange(
    operation: Operation, group: tuple[int, ...], size_bytes: float, count: int, phase: Phase
) -> Crossing:
    return Crossing(
        kind=CrossingKind.EXPERT,
        operation=operation,
        ranks=group,
        size_bytes=round(size_bytes),
        count=count,
        phase=phase,
    )
