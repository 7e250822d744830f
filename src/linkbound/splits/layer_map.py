"""What crosses where a model's layers lie on several GPUs and each is sent its inputs (S1, S2).

Transformers' `device_map`: a hook copies what a layer is given to the layer's GPU, one by one. So
beside the hidden state cross the positions' embeddings, for every layer that is not where they are
made, and the logits, which return to the first GPU.
"""

from collections.abc import Iterator

from linkbound.links.types import Operation
from linkbound.model.types import Attention, ModelShape
from linkbound.splits.ranks import stage_bounds
from linkbound.splits.types import Crossing, CrossingKind, Phase, Split

_POSITION_BYTES = 8
"""Of a token's place, a whole number of 64 bits."""
_COSINE_AND_SINE = 2


def layer_map_crossings(
    shape: ModelShape, split: Split, phase: Phase, tokens: int, sequences: int
) -> tuple[Crossing, ...]:
    """Copies of one step with `tokens` new tokens of `sequences` sequences.

    The last stage makes the positions' embeddings, as `device_map="auto"` places it. Raises
    ValueError where layers have no attention with positions of one width.
    """
    return tuple(_copies(shape, split, phase, tokens, sequences))


def _copies(
    shape: ModelShape, split: Split, phase: Phase, tokens: int, sequences: int
) -> Iterator[Crossing]:
    def copied(kind: CrossingKind, src: int, dst: int, size: float, count: int = 1) -> Crossing:
        return Crossing(
            kind=kind,
            operation=Operation.SEND_RECV,
            ranks=(src, dst),
            size_bytes=round(size),
            count=count,
            phase=phase,
        )

    last, element = split.pp - 1, shape.activation_bits / 8
    state = tokens * shape.hidden * element
    places = tokens * _POSITION_BYTES
    turned = tokens * _turned_dim(shape) * element
    if last == 0:
        return
    # It is given the hidden state for its type alone.
    yield copied(CrossingKind.POSITIONS, 0, last, state)
    yield copied(CrossingKind.POSITIONS, 0, last, places)
    for stage, (start, end) in enumerate(stage_bounds(split, len(shape.layers))):
        layers = end - start
        if stage > 0:
            yield copied(CrossingKind.PIPELINE, stage - 1, stage, state)
            yield copied(CrossingKind.POSITIONS, 0, stage, places, layers)
        if stage < last:
            count = _COSINE_AND_SINE * layers
            yield copied(CrossingKind.POSITIONS, last, stage, turned, count)
    logits = sequences * shape.vocabulary * element
    yield copied(CrossingKind.LOGITS, last, 0, logits)


def _turned_dim(shape: ModelShape) -> int:
    """The width of a head that is turned by its place."""
    found = {
        layer.mixer.key_dim if isinstance(layer.mixer, Attention) else None
        for layer in shape.layers
    }
    match list(found):
        case [int(width)]:
            return width
        case _:
            raise ValueError("layers without attention, or of several widths, are not counted")
