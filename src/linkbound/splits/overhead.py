"""What a serving program takes on a GPU beside weights and cache: named priors (S3, E3).

None of it is in a model's files; each part says what it rests on and how far it may be off.
"""

from linkbound.model.types import Attention, DenseFfn, LatentAttention, Layer, ModelShape, MoeFfn
from linkbound.splits.engine import LARGE_STEP_TOKENS, EngineAssumptions
from linkbound.splits.ranks import Rank, stage_layers, tensor_share
from linkbound.splits.types import MemoryPart, Split
from linkbound.units import GIB

ACTIVATIONS = "activations"
GRAPHS = "CUDA graphs"
RUNTIME = "non-torch"

# Highest published peak activation of vLLM on an H100 with 8,192 tokens a step, in GiB.
DENSE_PEAK_GIB, MIXTURE_PEAK_GIB = 5.6, 7.4
# vLLM on H200, 8B model: 0.17 to 0.32 GiB in four recorded starts; published up to 1.03.
GRAPHS_GIB, GRAPHS_HIGH_GIB = 0.25, 1.03
# Published for vLLM: CUDA context and libraries alone, and with communicators of a group.
RUNTIME_ALONE_GIB, RUNTIME_GROUP_GIB = 0.13, 0.55
HIDDEN_COPIES = 4
"""Tensors of T x H alive at once: input, residual, output of a block, and its sum."""
LOGIT_BYTES = 16
"""For each sampled position and word: float32 logits, probabilities, and a sort of both."""
EITHER_WAY = 2.0
"""A prior without an interval of its own may be off by this factor."""


def overhead_parts(
    shape: ModelShape, split: Split, rank: Rank, capacity_bytes: int, engine: EngineAssumptions
) -> tuple[MemoryPart, ...]:
    """Activations, CUDA graphs and runtime of `rank` on a GPU of `capacity_bytes`."""
    return (
        _activations(shape, split, rank, engine.tokens_in_step(capacity_bytes), engine),
        _graphs(engine),
        _runtime(split, engine),
    )


def _activations(
    shape: ModelShape, split: Split, rank: Rank, tokens: int, engine: EngineAssumptions
) -> MemoryPart:
    layers = stage_layers(shape, split, rank.stage)
    share = tensor_share(split, rank.tensor)
    widest = max((_layer_width(layer, share, shape.hidden) for layer in set(layers)), default=0.0)
    elements = HIDDEN_COPIES * shape.hidden + widest
    size = tokens * elements * shape.activation_bits / 8
    if rank.stage == split.pp - 1:
        size += engine.step_sequences * shape.vocabulary * LOGIT_BYTES
    mixture = any(isinstance(layer.ffn, MoeFfn) for layer in layers)
    published = (MIXTURE_PEAK_GIB if mixture else DENSE_PEAK_GIB) * GIB
    return MemoryPart(
        name=ACTIVATIONS,
        size_bytes=size,
        low_bytes=size / EITHER_WAY,
        high_bytes=max(size * EITHER_WAY, published * tokens / LARGE_STEP_TOKENS),
        basis=f"prior ({engine.name}, {tokens:,} tokens and {engine.step_sequences} sequences a "
        "step; up to twice or the published peak of an H100)",
    )


def _layer_width(layer: Layer, share: float, hidden: int) -> float:
    """Elements a token beside the hidden state at the widest point of a layer."""
    match layer.ffn:
        case DenseFfn(intermediate=width, gated=gated):
            ffn = (3 if gated else 2) * width * share
        case MoeFfn(intermediate=width, gated=gated, top_k=top_k):
            ffn = top_k * ((3 if gated else 2) * width * share + hidden)
        case None:
            ffn = 0.0
    match layer.mixer:
        case Attention() as mixer:
            cached = mixer.kv_heads * (mixer.key_dim + mixer.value_dim)
            heads = (mixer.query_heads * (mixer.key_dim + mixer.value_dim) + cached) * share
        case LatentAttention() as mixer:
            width = mixer.latent_dim + 2 * mixer.rope_dim + mixer.nope_dim + mixer.value_dim
            heads = mixer.query_heads * width * share
        case _:
            heads = 0.0
    return max(ffn, heads)


def _graphs(engine: EngineAssumptions) -> MemoryPart:
    return MemoryPart(
        name=GRAPHS,
        size_bytes=GRAPHS_GIB * GIB,
        low_bytes=0,
        high_bytes=GRAPHS_HIGH_GIB * GIB,
        basis=f"prior ({engine.name}, 0.17-0.32 GiB recorded with an 8B model on H200)",
    )


def _runtime(split: Split, engine: EngineAssumptions) -> MemoryPart:
    alone = split.tp * split.pp == 1 and split.ep == 1
    size = (RUNTIME_ALONE_GIB if alone else RUNTIME_GROUP_GIB) * GIB
    what = "one GPU" if alone else "with communicators"
    return MemoryPart(
        name=RUNTIME,
        size_bytes=size,
        low_bytes=size / EITHER_WAY,
        high_bytes=size * EITHER_WAY,
        basis=f"prior ({engine.name}, published table, {what}; half to twice)",
    )
