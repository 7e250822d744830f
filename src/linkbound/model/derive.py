"""What follows from a ModelShape: active parameters, cache, attention work, experts (S1, S3, S4).

Pure functions; formulas are in docs/models.md.
"""

from collections import Counter
from functools import lru_cache

from linkbound.model.types import (
    Attention,
    LatentAttention,
    Layer,
    Mixer,
    ModelShape,
    MoeFfn,
    Recurrent,
    Role,
)

BLOCK_TOKENS = 16
"""Tokens in a block of the cache (vLLM's default). A full window still holds one block more."""


def shape_key(shape: ModelShape) -> str:
    """What a shape is known by, whatever it is called: layers, width, parameters, bytes."""
    return (
        f"{len(shape.layers)} layers of {shape.hidden}, {shape.parameters} parameters, "
        f"{shape.weight_bytes:.0f} bytes"
    )


@lru_cache(maxsize=16)
def active_parameters(shape: ModelShape) -> int:
    """Parameters that one token is multiplied with: the embedding's lookup and vision are not.

    Of routed experts top_k count. A tied embedding counts once, as the head it serves as.
    """
    layers = sum(_active_in_layer(layer) for layer in shape.layers)
    rest = sum(weights.parameters for weights in shape.extra if weights.role is not Role.OTHER)
    head = shape.embedding if shape.head is None else shape.head
    return layers + rest + head.parameters


def _active_in_layer(layer: Layer) -> int:
    total = 0
    for weights in layer.weights:
        if weights.role is Role.ROUTED_EXPERTS and isinstance(layer.ffn, MoeFfn):
            total += weights.parameters * layer.ffn.top_k // layer.ffn.experts
        else:
            total += weights.parameters
    return total


@lru_cache(maxsize=16)
def kv_bytes_per_token(shape: ModelShape) -> float:
    """Bytes of cache that one more token of one sequence takes, before any window is full."""
    return sum(token_bytes(layer.mixer) for layer in shape.layers if layer.mixer is not None)


def token_bytes(mixer: Mixer) -> float:
    """Bytes that one token adds to the cache of one layer; 0 where the state is constant."""
    match mixer:
        case Attention():
            width = mixer.key_dim + (0 if mixer.shared_kv else mixer.value_dim)
            return mixer.kv_heads * width * mixer.cache_bits / 8
        case LatentAttention():
            width = mixer.latent_dim + mixer.rope_dim + mixer.indexer_dim
            return width * mixer.cache_bits / 8
        case Recurrent():
            return 0


def cache_bytes(what: ModelShape | Layer, tokens: int) -> float:
    """Bytes of cache or state that one sequence of `tokens` holds, in a model or a layer."""
    if isinstance(what, Layer):
        return 0 if what.mixer is None else _mixer_bytes(what.mixer, tokens)
    return sum(count * _mixer_bytes(mixer, tokens) for mixer, count in _mixers(what))


@lru_cache(maxsize=16)
def _mixers(shape: ModelShape) -> tuple[tuple[Mixer, int], ...]:
    """Distinct mixers and how often each occurs: models repeat a few kinds of layer."""
    return tuple(Counter(layer.mixer for layer in shape.layers if layer.mixer is not None).items())


def _mixer_bytes(mixer: Mixer, tokens: int) -> float:
    if isinstance(mixer, Recurrent):
        return mixer.state_bytes
    return kept_tokens(mixer, tokens) * token_bytes(mixer)


def kept_tokens(mixer: Mixer, tokens: int) -> int:
    """Tokens of a sequence of `tokens` that a layer keeps: a window and one block at most."""
    window = mixer.window if isinstance(mixer, Attention) else None
    return tokens if window is None else min(tokens, window + BLOCK_TOKENS)


def layer_flops(mixer: Mixer | None, tokens: int, context: int) -> float:
    """FLOPs of a layer's mixer for `tokens` new tokens of a sequence with `context` cached ones.

    Products with weights are not included: those are 2 x parameters a token.
    """
    match mixer:
        case None:
            return 0
        case Recurrent() as recurrent:
            return recurrent.flops_per_token * tokens
        case LatentAttention() as latent:
            pairs = _pairs(tokens, context, None)
            return pairs * latent.query_heads * _latent_flops_per_pair(latent, tokens)
        case Attention() as attention:
            pairs = _pairs(tokens, context, attention.window)
            return 2 * attention.query_heads * (attention.key_dim + attention.value_dim) * pairs


def _latent_flops_per_pair(latent: LatentAttention, tokens: int) -> int:
    """FLOPs a head for one query against one cached token."""
    if tokens == 1:
        # Absorbed: the query is taken into the latent space instead of expanding the cache.
        return 2 * (latent.latent_dim + latent.rope_dim) + 2 * latent.latent_dim
    return 2 * (latent.nope_dim + latent.rope_dim) + 2 * latent.value_dim


def _pairs(tokens: int, context: int, window: int | None) -> int:
    """Pairs of a new token and a token it sees, itself among them."""
    if window is None or context + tokens <= window:
        return tokens * context + tokens * (tokens + 1) // 2
    growing = max(0, min(tokens, window - context))
    return growing * context + growing * (growing + 1) // 2 + (tokens - growing) * window


def experts_touched(experts: int, top_k: int, tokens: int) -> float:
    """Distinct experts that `tokens` tokens reach when each picks top_k at random."""
    return experts * (1 - (1 - top_k / experts) ** tokens)
