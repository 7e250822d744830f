"""Small models of each kind, written for the tests: every dimension differs from the others."""

import json
from typing import Any

from linkbound.model.parse_config import parse_config
from linkbound.model.types import ModelShape

_DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 250,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_MIXTURE = {
    **_DENSE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_LATENT = {
    **_DENSE,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}
# As Qwen3-32B-FP8 states it: all matrices of the layers, a scale a tensor, an 8-bit cache.
_FP8 = {
    "config_groups": {"group_0": {"weights": {"dynamic": False, "num_bits": 8, "type": "float"}}},
    "ignore": ["lm_head"],
    "quant_algo": "FP8",
    "kv_cache_scheme": "FP8",
    "producer": {"name": "modelopt"},
}
_FP8_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def _shape(config: dict[str, Any]) -> ModelShape:
    return parse_config(json.dumps(config), "config.json")


CONFIGS = {
    "dense": _DENSE,
    "one_kv_head": {**_DENSE, "num_key_value_heads": 1},
    "tied": {**_DENSE, "tie_word_embeddings": True},
    "mixture": _MIXTURE,
    "latent": _LATENT,
    "fp8": {**_DENSE, "quantization_config": _FP8},
    "fp8_mixture": {**_MIXTURE, "moe_intermediate_size": 32, "quantization_config": _FP8_BLOCKS},
    "fp8_latent": {
        **_LATENT,
        "q_lora_rank": 48,
        "kv_lora_rank": 24,
        "v_head_dim": 16,
        "qk_nope_head_dim": 8,
        "moe_intermediate_size": 32,
        "quantization_config": _FP8_BLOCKS,
    },
}
MODELS = {name: _shape(config) for name, config in CONFIGS.items()}
