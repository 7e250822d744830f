"""What the ranks of a job hold in a host's memory where they run on processors (P1).

A sum of weights and cache, so the least that is needed: activations, torch itself and the scratch
of making a tensor come on top.
"""

from msgspec.structs import replace

from linkbound.model.types import Attention, LatentAttention, Layer, ModelShape, Weights
from linkbound.profile.holding import Holding, hold, kv_heads
from linkbound.profile.types import Job, Point
from linkbound.splits.types import Phase
from linkbound.splits.weights import rank_weight_bytes

BITS = 32
"""Of all on a processor but 8-bit floats, which stay as the model's file has them."""


def host_bytes(job: Job) -> float:
    """Bytes that all ranks of the job hold at once: their weights, and the largest cache."""
    shape = _in_float32(job.shape)
    numbers = range(job.split.gpus) if job.alone is None else (job.alone,)
    held = [hold(shape, job.split, number) for number in numbers]
    weights = sum(rank_weight_bytes(shape, job.split, one.rank) for one in held)
    return weights + max(
        sum(_cache_bytes(one, point, _length(job, point)) for one in held) for point in job.points
    )


def _in_float32(shape: ModelShape) -> ModelShape:
    """The weights that the runtime makes, in the types in which it keeps them on a processor."""
    return replace(
        shape,
        layers=tuple(
            replace(layer, weights=tuple(map(_kept, layer.weights))) for layer in shape.layers
        ),
        embedding=_kept(shape.embedding),
        head=None if shape.head is None else _kept(shape.head),
        extra=(),
    )


def _kept(weights: Weights) -> Weights:
    return weights if weights.float8 else replace(weights, bits=BITS)


def _length(job: Job, point: Point) -> int:
    """Tokens of a sequence that the cache has room for: timed decode steps add one each."""
    return point.context + (point.tokens if point.phase is Phase.PREFILL else job.steps)


def _cache_bytes(held: Holding, point: Point, length: int) -> float:
    layers = held.shape.layers[held.first_layer : held.last_layer]
    elements = sum(_elements(held, layer) for layer in layers)
    return elements * point.batch * length * BITS / 8


def _elements(held: Holding, layer: Layer) -> int:
    """Cached elements of one token in one layer on this rank."""
    match layer.mixer:
        case Attention() as mixer:
            low, high = kv_heads(mixer, held.split, held.rank)
            return (high - low) * (mixer.key_dim + mixer.value_dim)
        case LatentAttention() as mixer:
            return mixer.latent_dim + mixer.rope_dim
    return 0
