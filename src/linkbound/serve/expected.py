"""The bytes that the tokens of a load make the GPUs of a split send to one another (P3).

Tokens x crossings of a token x the protocol's factor; steps of unknown size make an interval.
"""

from collections.abc import Iterable, Iterator

import msgspec

from linkbound.model.types import ModelShape
from linkbound.serve.moved import DecodeTokens, Moved
from linkbound.splits.crossings import crossings
from linkbound.splits.layer_map import layer_map_crossings
from linkbound.splits.types import Crossing, CrossingKind, Phase
from linkbound.splits.wire import Wire, WireBytes, WirePart, added, hull, step_parts, together

_PADDED_AT_MOST = 2
"""Of a batch whose graph sizes are not known: the next size is less than twice as large."""


def expected_bytes(
    shape: ModelShape, wire: Wire, moved: Moved, graph_sizes: tuple[int, ...] = ()
) -> WireBytes:
    """What all ranks send for these tokens.

    `graph_sizes`: decode batches with a CUDA graph, to which a step is padded; empty: not known.
    """
    return together(added(_parts(shape, wire, moved, graph_sizes)))


def expected_copies(shape: ModelShape, wire: Wire, moved: Moved) -> WireBytes:
    """What the copies between the stages of a `device_map` send: a batch is one step.

    Raises ValueError where a layer's copies are not counted.
    """
    prefills = moved.prompt_tokens / moved.most_in_step
    steps = [(Phase.PREFILL, moved.most_in_step, round(moved.prompts / prefills), prefills)]
    steps += [(Phase.DECODE, one.most, one.most, one.tokens / one.most) for one in moved.decode]
    return together(
        added(
            part
            for phase, tokens, sequences, count in steps
            for part in step_parts(
                layer_map_crossings(shape, wire.split, phase, tokens, sequences), wire, count
            )
        )
    )


def _parts(
    shape: ModelShape, wire: Wire, moved: Moved, graph_sizes: tuple[int, ...]
) -> Iterator[WirePart]:
    together_at_most = max(1, moved.most_in_step // max(1, moved.fewest_in_step))
    yield from _states(shape, wire, Phase.PREFILL, moved.prompt_tokens, _prompt_sizes(moved))
    yield from _logits(shape, wire, Phase.PREFILL, moved.prompts, (1, together_at_most))
    for tokens in moved.decode:
        yield from _decoded(shape, wire, moved, tokens, graph_sizes)
        batches = (tokens.fewest, tokens.most)
        yield from _logits(shape, wire, Phase.DECODE, tokens.tokens, batches)


def _decoded(
    shape: ModelShape,
    wire: Wire,
    moved: Moved,
    tokens: DecodeTokens,
    graph_sizes: tuple[int, ...],
) -> tuple[WirePart, ...]:
    """Steps of decodes alone, and those in which prompts make the messages large."""
    mixed = tokens.tokens * _mixed_share(moved, tokens)
    sizes = [
        (padded, batch)
        for batch in _between(*_of_a_stage(wire, tokens))
        for padded in _padded(batch, graph_sizes)
    ]
    alone = _states(shape, wire, Phase.DECODE, tokens.tokens - mixed, sizes)
    # How many were mixed is the most that can have been: none is as possible.
    beside = hull(
        [
            _states(shape, wire, Phase.DECODE, mixed, sizes),
            _states(shape, wire, Phase.DECODE, mixed, _prompt_sizes(moved)),
        ]
    )
    return added((*alone, *beside))


def _mixed_share(moved: Moved, tokens: DecodeTokens) -> float:
    """The most of a batch's tokens that can have been decoded in steps with prompts."""
    steps = max(moved.prompts, moved.prompt_tokens / moved.fewest_in_step)
    return min(1.0, steps * tokens.most / moved.decode_tokens)


def _of_a_stage(wire: Wire, tokens: DecodeTokens) -> tuple[int, int]:
    """Batches of a step: a pipeline of stages works on as many parts of the batch at once."""
    stages = wire.split.pp
    return max(1, tokens.fewest // stages), tokens.most


def _padded(batch: int, graph_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens that a step of `batch` sequences sends: as many, or up to the next graph's size."""
    if not graph_sizes:
        return batch, max(batch, _PADDED_AT_MOST * batch - 1)
    return (min((size for size in graph_sizes if size >= batch), default=batch),)


def _prompt_sizes(moved: Moved) -> list[tuple[int, int]]:
    return [(size, size) for size in _between(moved.fewest_in_step, moved.most_in_step)]


def _states(
    shape: ModelShape, wire: Wire, phase: Phase, tokens: float, sizes: Iterable[tuple[int, int]]
) -> tuple[WirePart, ...]:
    """What crosses for each token, in steps of these sizes: (tokens sent, tokens that count)."""
    return hull([_of_size(shape, wire, phase, tokens, *size) for size in sizes])


def _of_size(
    shape: ModelShape, wire: Wire, phase: Phase, tokens: float, sent: int, counted: int
) -> tuple[WirePart, ...]:
    found = step_parts(
        crossings(shape, wire.split, phase, sent, sent), wire, steps=tokens / counted
    )
    # Padding crosses too, but it is no payload.
    share = counted / sent
    return tuple(
        msgspec.structs.replace(part, payload_bytes=part.payload_bytes * share) for part in found
    )


def _logits(
    shape: ModelShape, wire: Wire, phase: Phase, sampled: float, rows: tuple[int, int]
) -> tuple[WirePart, ...]:
    """The gathering of the logits of `sampled` positions, some rows at a time."""
    return hull(
        [
            step_parts(_gathered(shape, wire, phase, count), wire, steps=sampled / count)
            for count in _between(*rows)
        ]
    )


def _gathered(shape: ModelShape, wire: Wire, phase: Phase, rows: int) -> list[Crossing]:
    found = crossings(shape, wire.split, phase, rows, rows, logits=True)
    return [one for one in found if one.kind is CrossingKind.LOGITS]


def _between(fewest: int, most: int) -> tuple[int, ...]:
    """Both ends and what doubling meets in between."""
    sizes = [fewest]
    while sizes[-1] * 2 < most:
        sizes.append(sizes[-1] * 2)
    return tuple(dict.fromkeys((*sizes, most)))
