"""What a split makes the GPUs send to each other in one forward step (S1, S2).

Calls that happen at the same time elsewhere (other replicas, other tensor ranks of a boundary)
are listed once, by their first ranks; the stages of a pipeline follow one another, so add up.
"""

from collections.abc import Iterator

from linkbound.links.types import Operation
from linkbound.model.types import Layer, ModelShape, MoeFfn, Shard
from linkbound.splits.engine import VLLM, EngineAssumptions
from linkbound.splits.experts import expert_crossings
from linkbound.splits.ranks import stage_bounds, tensor_group
from linkbound.splits.types import Crossing, CrossingKind, Dispatch, Phase, Split
from linkbound.splits.weights import padded_vocabulary


def crossings(
    shape: ModelShape,
    split: Split,
    phase: Phase,
    tokens: int,
    sequences: int,
    *,
    engine: EngineAssumptions = VLLM,
    logits: bool = False,
) -> tuple[Crossing, ...]:
    """Crossings of one step with `tokens` new tokens of `sequences` sequences in each replica.

    `logits` adds the gathering of the sampled positions' logits over the last stage.
    """
    return tuple(_step(shape, split, phase, tokens, sequences, engine, logits))


def _step(
    shape: ModelShape,
    split: Split,
    phase: Phase,
    tokens: int,
    sequences: int,
    engine: EngineAssumptions,
    logits: bool,
) -> Iterator[Crossing]:
    state_bytes = round(tokens * shape.hidden * shape.activation_bits / 8)
    for stage, (start, end) in enumerate(stage_bounds(split, len(shape.layers))):
        layers = shape.layers[start:end]
        if stage > 0:
            yield from _boundary(split, phase, stage, state_bytes, engine)
        elif split.tp > 1 and shape.embedding.shard is Shard.VOCABULARY:
            group = tensor_group(split, 0)
            yield _all_reduce(CrossingKind.EMBEDDING, group, state_bytes, 1, phase)
        yield from _layers(split, phase, stage, layers, state_bytes)
        if split.ep > 1 and split.dispatch is not Dispatch.ALL_REDUCE:
            yield from expert_crossings(shape, split, phase, stage, layers, tokens, engine)
    if logits and split.tp > 1:
        yield _logits(shape, split, phase, sequences)


def _layers(
    split: Split, phase: Phase, stage: int, layers: tuple[Layer, ...], state_bytes: int
) -> Iterator[Crossing]:
    """The tensor-parallel all-reduces of a stage: 2 a layer (arXiv:1909.08053), or what it says."""
    count = sum(_reductions(layer, split) for layer in layers)
    if split.tp > 1 and count:
        group = tensor_group(split, stage)
        yield _all_reduce(CrossingKind.TENSOR, group, state_bytes, count, phase)


def _reductions(layer: Layer, split: Split) -> int:
    """All-reduces of a layer that stay when an exchange of experts replaces the last of them."""
    exchanged = split.ep > 1 and split.dispatch is not Dispatch.ALL_REDUCE
    if exchanged and isinstance(layer.ffn, MoeFfn):
        # A layer with one all-reduce for attention and experts together keeps it for attention.
        return layer.reductions - 1 if layer.mixer is None else max(1, layer.reductions - 1)
    return layer.reductions


def _boundary(
    split: Split, phase: Phase, stage: int, state_bytes: int, engine: EngineAssumptions
) -> Iterator[Crossing]:
    """To the next stage: every tensor rank sends its slice, which the receivers gather again."""
    sender, receiver = tensor_group(split, stage - 1)[0], tensor_group(split, stage)[0]
    yield Crossing(
        kind=CrossingKind.PIPELINE,
        operation=Operation.SEND_RECV,
        ranks=(sender, receiver),
        size_bytes=-(-state_bytes // split.tp),
        count=engine.stage_tensors,
        phase=phase,
    )
    if split.tp > 1:
        yield Crossing(
            kind=CrossingKind.PIPELINE,
            operation=Operation.ALL_GATHER,
            ranks=tensor_group(split, stage),
            size_bytes=state_bytes,
            count=engine.stage_tensors,
            phase=phase,
        )


def _logits(shape: ModelShape, split: Split, phase: Phase, sequences: int) -> Crossing:
    row_bytes = padded_vocabulary(shape.vocabulary) * shape.activation_bits / 8
    return Crossing(
        kind=CrossingKind.LOGITS,
        operation=Operation.ALL_GATHER,
        ranks=tensor_group(split, split.pp - 1),
        size_bytes=round(sequences * row_bytes),
        count=1,
        phase=phase,
    )


def _all_reduce(
    kind: CrossingKind, group: tuple[int, ...], size_bytes: int, count: int, phase: Phase
) -> Crossing:
    return Crossing(
        kind=kind,
        operation=Operation.ALL_REDUCE,
        ranks=group,
        size_bytes=size_bytes,
        count=count,
        phase=phase,
    )
