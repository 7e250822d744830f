"""Hand-made shapes of public models, so that these tests need no model reader."""

from linkbound.model.types import (
    Attention,
    DenseFfn,
    LatentAttention,
    Layer,
    ModelShape,
    MoeFfn,
    Role,
    Shard,
    Weights,
)


def weights(name, parameters, shard, role, bits=16):
    return Weights(name=name, parameters=parameters, bits=bits, shard=shard, role=role)


def attention_weights(hidden, heads, kv_heads, dim, bits=16):
    return (
        weights("q", hidden * heads * dim, Shard.SPLIT, Role.ATTENTION, bits),
        weights("kv", 2 * hidden * kv_heads * dim, Shard.KV_HEADS, Role.ATTENTION, bits),
        weights("o", heads * dim * hidden, Shard.SPLIT, Role.ATTENTION, bits),
        weights("norms", 2 * hidden, Shard.REPLICATED, Role.NORM),
    )


def llama(
    name,
    *,
    hidden,
    layers,
    heads,
    kv_heads,
    vocabulary,
    intermediate,
    dim=128,
    bits=16,
    window=None,
    tied=False,
    qk_norm=False,
    max_context=None,
):
    """A dense decoder with gated feed-forward blocks."""
    layer = Layer(
        mixer=Attention(
            query_heads=heads, kv_heads=kv_heads, key_dim=dim, value_dim=dim, window=window
        ),
        ffn=DenseFfn(intermediate=intermediate, gated=True),
        weights=(
            *attention_weights(hidden, heads, kv_heads, dim, bits),
            *((weights("qk_norm", 2 * dim, Shard.REPLICATED, Role.NORM),) if qk_norm else ()),
            weights("ffn", 3 * hidden * intermediate, Shard.SPLIT, Role.FFN, bits),
        ),
    )
    return model(name, hidden, vocabulary, (layer,) * layers, tied=tied, max_context=max_context)


def model(name, hidden, vocabulary, layers, *, tied=False, max_context=None):
    table = hidden * vocabulary
    return ModelShape(
        name=name,
        architecture="test",
        hidden=hidden,
        vocabulary=vocabulary,
        layers=layers,
        embedding=weights("embedding", table, Shard.VOCABULARY, Role.EMBEDDING),
        head=None if tied else weights("head", table, Shard.VOCABULARY, Role.HEAD),
        extra=(weights("norm", hidden, Shard.REPLICATED, Role.NORM),),
        max_context=max_context,
        source="hand-made",
    )


LLAMA_8B = llama(
    "Llama-3.1-8B",
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    vocabulary=128256,
    intermediate=14336,
)
LLAMA_70B = llama(
    "Llama-3.1-70B",
    hidden=8192,
    layers=80,
    heads=64,
    kv_heads=8,
    vocabulary=128256,
    intermediate=28672,
)
QWEN3_32B = llama(
    "Qwen3-32B",
    hidden=5120,
    layers=64,
    heads=64,
    kv_heads=8,
    vocabulary=151936,
    intermediate=25600,
    qk_norm=True,
)
QWEN3_06B = llama(
    "Qwen3-0.6B",
    hidden=1024,
    layers=28,
    heads=16,
    kv_heads=8,
    vocabulary=151936,
    intermediate=3072,
    qk_norm=True,
    tied=True,
)


def mixture(name, *, hidden, layers, heads, kv_heads, vocabulary, experts, top_k, intermediate):
    """A mixture in every layer, without shared experts."""
    layer = Layer(
        mixer=Attention(query_heads=heads, kv_heads=kv_heads, key_dim=128, value_dim=128),
        ffn=MoeFfn(experts=experts, top_k=top_k, intermediate=intermediate, gated=True),
        weights=(
            *attention_weights(hidden, heads, kv_heads, 128),
            weights("router", hidden * experts, Shard.REPLICATED, Role.ROUTER),
            weights(
                "experts", experts * 3 * hidden * intermediate, Shard.EXPERTS, Role.ROUTED_EXPERTS
            ),
        ),
    )
    return model(name, hidden, vocabulary, (layer,) * layers)


MIXTRAL = mixture(
    "Mixtral-8x7B",
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    vocabulary=32000,
    experts=8,
    top_k=2,
    intermediate=14336,
)

_LATENT = LatentAttention(query_heads=128, latent_dim=512, rope_dim=64, nope_dim=128, value_dim=128)
LATENT = model(
    "latent attention",
    7168,
    129280,
    (
        Layer(
            mixer=_LATENT,
            ffn=DenseFfn(intermediate=18432, gated=True),
            weights=(
                weights("q_a", 7168 * 1536, Shard.REPLICATED, Role.ATTENTION),
                weights("q_b", 1536 * 128 * 192, Shard.SPLIT, Role.ATTENTION),
                weights("kv_a", 7168 * 576, Shard.REPLICATED, Role.ATTENTION),
                weights("kv_b", 512 * 128 * 256, Shard.SPLIT, Role.ATTENTION),
                weights("o", 128 * 128 * 7168, Shard.SPLIT, Role.ATTENTION),
                weights("ffn", 3 * 7168 * 18432, Shard.SPLIT, Role.FFN),
            ),
        ),
    )
    * 8,
)
