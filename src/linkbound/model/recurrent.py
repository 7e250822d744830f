"""Layers whose memory does not grow with the context: Mamba-2 and gated linear attention (S3).

The state is constant per sequence: a short convolution's inputs and one matrix a head.
"""

from linkbound.model.keys import Config
from linkbound.model.parts import Part, norm
from linkbound.model.types import Recurrent, Role, Shard
from linkbound.values import Value

MAMBA_FLOPS_PER_STATE = 5
"""Decay, outer product and sum (3), then the read-out product (2), for each element of state."""
DELTA_FLOPS_PER_STATE = 7
"""As above, and the product that reads the old value of a key (2)."""
_STATE_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}


class RecurrentBlock(Value, frozen=True, kw_only=True):
    """One recurrent block: its state and its parameters."""

    mixer: Recurrent
    parts: tuple[Part, ...]


def read_mamba(config: Config, hidden: int, plain_bits: float) -> RecurrentBlock:
    """A Mamba-2 block as Nemotron-H has it."""
    heads = config.need("mamba_num_heads")
    inner = heads * config.need("mamba_head_dim")
    state = config.need("ssm_state_size")
    channels = inner + 2 * config.need("n_groups") * state
    kernel = config.need("conv_kernel")
    into = hidden * (inner + channels + heads)
    conv = channels * (kernel + (0 if config.flag("use_conv_bias") is False else 1))
    parts = [
        _split("in", into, "mixer.in_proj"),
        _split("convolution", conv),
        _split("state scales", 3 * heads),
        _split("gated norm", inner),
        _split("out", inner * hidden, "mixer.out_proj"),
    ]
    if config.flag("mamba_proj_bias") or config.flag("use_bias"):
        parts += [_split("in bias", inner + channels + heads), norm(hidden, "out bias")]
    elements = inner * state
    mixer = Recurrent(
        state_bytes=channels * (kernel - 1) * plain_bits / 8
        + elements * _state_bits(config, "mamba_ssm_cache_dtype", plain_bits) / 8,
        flops_per_token=elements * MAMBA_FLOPS_PER_STATE,
    )
    return RecurrentBlock(mixer=mixer, parts=tuple(parts))


def read_delta(config: Config, hidden: int, plain_bits: float) -> RecurrentBlock:
    """A gated delta-rule block as Qwen3-Next and Qwen3.5 have it."""
    value_heads = config.need("linear_num_value_heads")
    key_dim = config.need("linear_key_head_dim")
    value_dim = config.need("linear_value_head_dim")
    keys = config.need("linear_num_key_heads") * key_dim
    values = value_heads * value_dim
    channels = 2 * keys + values
    kernel = config.need("linear_conv_kernel_dim")
    parts = (
        _split("in", hidden * channels, "linear_attn.in_proj_qkv"),
        _split("output gate", hidden * values, "linear_attn.in_proj_z"),
        _split("decay gates", hidden * 2 * value_heads, "linear_attn.in_proj_ba"),
        _split("convolution", channels * kernel),
        _split("state scales", 2 * value_heads),
        norm(value_dim, "gated norm"),
        _split("out", values * hidden, "linear_attn.out_proj"),
    )
    elements = value_heads * key_dim * value_dim
    mixer = Recurrent(
        state_bytes=channels * (kernel - 1) * plain_bits / 8
        + elements * _state_bits(config, "mamba_ssm_dtype", plain_bits) / 8,
        flops_per_token=elements * DELTA_FLOPS_PER_STATE,
    )
    return RecurrentBlock(mixer=mixer, parts=parts)


def _state_bits(config: Config, key: str, plain_bits: float) -> float:
    stated = config.text(key)
    if stated is None:
        return plain_bits
    bits = _STATE_BITS.get(stated)
    return config.wrong(key, stated, "a type of floats") if bits is None else bits


def _split(name: str, parameters: int, module: str = "") -> Part:
    return Part(
        name=name, parameters=parameters, shard=Shard.SPLIT, role=Role.ATTENTION, module=module
    )
