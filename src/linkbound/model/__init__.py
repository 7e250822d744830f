"""Public names of this layer."""

from linkbound.model.derive import (
    active_parameters,
    cache_bytes,
    experts_touched,
    kept_tokens,
    kv_bytes_per_token,
    layer_flops,
    token_bytes,
)
from linkbound.model.gguf import read_gguf
from linkbound.model.parse_config import parse_config
from linkbound.model.read_model import bundled_names, read_model
from linkbound.model.safetensors import check_against_headers, stored_bytes
from linkbound.model.types import (
    Attention,
    DenseFfn,
    LatentAttention,
    Layer,
    Load,
    ModelShape,
    MoeFfn,
    Recurrent,
    Role,
    Shard,
    Weights,
)

__all__ = [
    "Attention",
    "DenseFfn",
    "LatentAttention",
    "Layer",
    "Load",
    "ModelShape",
    "MoeFfn",
    "Recurrent",
    "Role",
    "Shard",
    "Weights",
    "active_parameters",
    "bundled_names",
    "cache_bytes",
    "check_against_headers",
    "experts_touched",
    "kept_tokens",
    "kv_bytes_per_token",
    "layer_flops",
    "parse_config",
    "read_gguf",
    "read_model",
    "stored_bytes",
    "token_bytes",
]
