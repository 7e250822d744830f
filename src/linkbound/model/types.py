"""What a model file says: layers, weights, how each divides, cache; and the load on it (S1, S3)."""

from enum import StrEnum

from linkbound.values import Value


class Shard(StrEnum):
    """How a weight divides over the ranks of a tensor-parallel group of t."""

    SPLIT = "split"
    """Column or row parallel: 1/t on each rank."""
    KV_HEADS = "kv_heads"
    """By key/value heads: 1/min(t, kv heads) on each rank."""
    REPLICATED = "replicated"
    """Whole on every rank: norms, routers, down-projections of latent attention."""
    EXPERTS = "experts"
    """Whole experts under expert parallelism, 1/t of each expert otherwise."""
    VOCABULARY = "vocabulary"
    """Rows padded to a multiple of 64, then 1/t."""


class Role(StrEnum):
    """What a weight is for; decides when it is read and multiplied."""

    ATTENTION = "attention"
    FFN = "ffn"
    ROUTED_EXPERTS = "routed_experts"
    ROUTER = "router"
    NORM = "norm"
    EMBEDDING = "embedding"
    """A row lookup: takes memory, is not streamed in a step."""
    HEAD = "head"
    """Multiplied for sampled positions only."""
    OTHER = "other"
    """Vision towers and the like: memory only."""


class Weights(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A group of parameters that are stored, divided and used alike."""

    name: str
    parameters: int
    bits: float
    """Stored bits per parameter, scales included."""
    float8: bool = False
    """Stored as 8-bit floats with float32 scales: products can be of 8-bit floats."""
    shard: Shard
    role: Role

    @property
    def size_bytes(self) -> float:
        """Stored size on one device that holds all of it."""
        return self.parameters * self.bits / 8


class Attention(Value, frozen=True, kw_only=True, tag="attention", tag_field="mixer"):
    """Softmax attention with a cache of keys and values (MHA, GQA, MQA)."""

    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    """Tokens that stay in the cache; None keeps all."""
    shared_kv: bool = False
    """Keys serve as values: one of the two is stored."""
    cache_bits: float = 16


class LatentAttention(Value, frozen=True, kw_only=True, tag="latent", tag_field="mixer"):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one latent per token."""

    query_heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    cache_bits: float = 16
    indexer_dim: int = 0
    """Extra cached elements per token of a sparse-attention indexer."""


class Recurrent(Value, frozen=True, kw_only=True, tag="recurrent", tag_field="mixer"):
    """Linear attention or a state-space layer: a constant state per sequence."""

    state_bytes: float
    flops_per_token: float = 0


Mixer = Attention | LatentAttention | Recurrent


class DenseFfn(Value, frozen=True, kw_only=True, tag="dense", tag_field="ffn"):
    """One feed-forward block for every token."""

    intermediate: int
    gated: bool


class MoeFfn(Value, frozen=True, kw_only=True, tag="moe", tag_field="ffn"):
    """Routed experts, top_k a token, beside shared ones that every token takes."""

    experts: int
    top_k: int
    intermediate: int
    gated: bool
    shared_experts: int = 0


Ffn = DenseFfn | MoeFfn


class Layer(Value, frozen=True, kw_only=True):
    """One decoder layer; a layer may lack its mixer or its feed-forward block."""

    mixer: Mixer | None
    ffn: Ffn | None
    weights: tuple[Weights, ...]
    reductions: int = 2
    """All-reduces that tensor parallelism needs in one forward pass of this layer."""


class ModelShape(Value, frozen=True, kw_only=True, cache_hash=True):
    """A decoder-only language model, as its files state it."""

    name: str
    architecture: str
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    embedding: Weights
    head: Weights | None
    """None where the embedding serves as the head (tied)."""
    extra: tuple[Weights, ...] = ()
    """Final norm, vision tower, anything outside layers."""
    activation_bits: float = 16
    max_context: int | None = None
    source: str = ""
    """The file it was read from, and how."""
    gaps: tuple[str, ...] = ()
    """What the file leaves open and which convention was taken, one sentence each."""

    @property
    def tied(self) -> bool:
        return self.head is None

    @property
    def all_weights(self) -> tuple[Weights, ...]:
        """Every weight group, in file order."""
        head = () if self.head is None else (self.head,)
        layers = tuple(weights for layer in self.layers for weights in layer.weights)
        return (self.embedding, *layers, *self.extra, *head)

    @property
    def parameters(self) -> int:
        """Exact count; tied embeddings once, scales of quantised weights not counted."""
        return sum(weights.parameters for weights in self.all_weights)

    @property
    def weight_bytes(self) -> float:
        return sum(weights.size_bytes for weights in self.all_weights)


class Load(Value, frozen=True, kw_only=True):
    """What is asked of the model: lengths in tokens, sequences at once."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int
