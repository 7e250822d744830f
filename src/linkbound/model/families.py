"""What a model family does that its config.json does not say: biases, norms, windows, ties (S3).

One row a `model_type`; a key in the file always wins over the row.
"""

from collections.abc import Mapping
from enum import StrEnum

from linkbound.values import Value


class QkNorm(StrEnum):
    """Norms on queries and keys, and how wide their weights are."""

    NONE = "none"
    HEAD = "head"
    """One weight of head_dim each, shared by the heads."""
    FULL = "full"
    """One weight for every element of all heads."""


class WindowRule(StrEnum):
    """Which layers keep only a window of tokens, where the file has no list of layers."""

    NONE = "none"
    """No layer: such a key in the file is not understood."""
    ALL = "all"
    EVEN = "even"
    """Layers 0, 2, 4, ... (Gemma-2, gpt-oss)."""
    PATTERN = "pattern"
    """All but every p-th layer (Gemma-3, Cohere-2)."""
    LATER = "later"
    """Layers from max_window_layers on, if use_sliding_window is true (Qwen2)."""
    CHUNKS = "chunks"
    """All but every fourth keep attention_chunk_size tokens (Llama-4)."""


class Family(Value, frozen=True, kw_only=True):
    """Conventions of one family."""

    qkv_bias: bool | None = None
    """None: as attention_bias says."""
    o_bias: bool | None = None
    qk_norm: QkNorm = QkNorm.NONE
    layer_norms: int = 2
    """Norms of width H in a layer with a mixer and a feed-forward block."""
    norm_bias: bool = False
    gated: bool = True
    mlp_bias: bool = False
    tied: bool = False
    sinks: bool = False
    parallel: bool = False
    """Attention and feed-forward are added together: one all-reduce a layer."""
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    """The shared expert has a gate of its own, H parameters."""
    gated_query: bool = False
    """q_proj holds a gate beside the queries: twice the rows."""
    windows: WindowRule = WindowRule.NONE
    window_pattern: int | None = None
    defaults: Mapping[str, int] = {}
    """Dimensions that files of the family may leave to the class that reads them."""


_QWEN2 = Family(qkv_bias=True, o_bias=False, windows=WindowRule.LATER)
_QWEN3 = Family(qk_norm=QkNorm.HEAD, windows=WindowRule.LATER)
_QWEN_HYBRID = Family(qk_norm=QkNorm.HEAD, shared_gate=True, gated_query=True)
_GEMMA3 = Family(
    qk_norm=QkNorm.HEAD,
    layer_norms=4,
    tied=True,
    windows=WindowRule.PATTERN,
    window_pattern=6,
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
    },
)
_MISTRAL = Family(windows=WindowRule.ALL)
_FALCON = Family(gated=False, tied=True, norm_bias=True, parallel=True)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "llama4": Family(windows=WindowRule.CHUNKS),
    "mistral": _MISTRAL,
    "mistral3": _MISTRAL,
    "ministral": _MISTRAL,
    "mixtral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_moe": Family(qkv_bias=True, o_bias=False, windows=WindowRule.LATER, shared_gate=True),
    "qwen3": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_next": _QWEN_HYBRID,
    "qwen3_5": _QWEN_HYBRID,
    "qwen3_5_moe": _QWEN_HYBRID,
    "gpt_oss": Family(
        qkv_bias=True,
        o_bias=True,
        sinks=True,
        router_bias=True,
        expert_bias=True,
        windows=WindowRule.EVEN,
    ),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(),
    "kimi_k2": Family(),
    "deepseek_v32": Family(),
    "glm_moe_dsa": Family(),
    "minimax_m2": Family(qk_norm=QkNorm.FULL),
    "gemma": Family(tied=True),
    "gemma2": Family(layer_norms=4, tied=True, windows=WindowRule.EVEN),
    "gemma3": _GEMMA3,
    "gemma4": Family(qk_norm=QkNorm.HEAD, layer_norms=4, tied=True),
    "phi3": Family(windows=WindowRule.ALL),
    "falcon": _FALCON,
    "chatglm": Family(qkv_bias=True, o_bias=False),
    "glm4": Family(qkv_bias=True, o_bias=False, layer_norms=4),
    "glm4_moe": Family(o_bias=False, router_bias=True),
    "mimo": Family(qkv_bias=True, o_bias=False, windows=WindowRule.LATER),
    "mimo_v2_flash": Family(),
    "step3p7": Family(qk_norm=QkNorm.HEAD),
    "step3p5": Family(qk_norm=QkNorm.HEAD),
    "nemotron_h": Family(gated=False, router_bias=True),
    "nemotron-nas": Family(),
    "olmo2": Family(qk_norm=QkNorm.FULL),
    "granite": Family(tied=True),
    "starcoder2": Family(
        qkv_bias=True,
        o_bias=True,
        norm_bias=True,
        gated=False,
        mlp_bias=True,
        tied=True,
        windows=WindowRule.ALL,
    ),
}


def find_family(model_type: str | None) -> Family | None:
    """The row of a model_type; a `_text` ending names the same language model. None: unknown."""
    name = (model_type or "").removesuffix("_text")
    return FAMILIES.get(name)
