"""The keys of a GGUF file as caches and feed-forward blocks, layer by layer (S3).

Keys are `<architecture>.<name>`; several may be an array with one entry a layer.
"""

from collections.abc import Mapping

from linkbound.errors import InputError
from linkbound.model.families import Family, WindowRule, find_family
from linkbound.model.gguf_header import Tensor
from linkbound.model.keys import COUNT_LIMIT, refused, shorten
from linkbound.model.types import (
    Attention,
    DenseFfn,
    Ffn,
    LatentAttention,
    Mixer,
    MoeFfn,
    Recurrent,
)

_FAMILY_NAMES = {"gpt-oss": "gpt_oss", "gptoss": "gpt_oss"}
"""Architectures that the families of configurations know under another name."""
_UNKNOWN = ("wkv.head_size", "attention.shared_kv_layers", "altup.num_inputs", "kda.head_dim")


class Keys:
    """Typed access to the keys of one file's architecture."""

    def __init__(self, table: Mapping[str, object], source: str):
        self.source = source
        self._table = table
        name = table.get("general.architecture")
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 60:
            raise InputError(
                f"{source} has the general.architecture {shorten(name)}.",
                why="All other keys start with it.",
                hint="Give the .gguf file of a language model.",
            )
        self.architecture = name
        unknown = tuple(f"{name}.{key}" for key in _UNKNOWN if self._raw(key))
        if unknown:
            raise _without_override(refused(source, unknown))
        self._notes: list[str] = []
        self.context = self._optional("context_length")

    def note(self, sentence: str) -> None:
        """Add a sentence on what the file leaves open, or what is left out."""
        self._notes.append(sentence)

    @property
    def gaps(self) -> tuple[str, ...]:
        """What the keys leave open."""
        gaps = list(self._notes)
        if self._optional("ssm.state_size"):
            gaps.append(
                "Recurrent state is taken as float32, with kernel - 1 inputs of a convolution."
            )
        gaps.append("The cache is taken as 16 bits, llama.cpp's default.")
        return tuple(gaps)

    def need(self, key: str, most: int = COUNT_LIMIT) -> int:
        """A whole number of at least 1 that the model cannot be read without."""
        value = self._optional(key, most=most)
        if value is None:
            raise InputError(
                f"{self.source} has no {self.architecture}.{key}.",
                why="The sizes of the model cannot be computed without it.",
                hint="Give the .gguf file of a language model.",
            )
        return value

    def mixer(self, index: int, tensors: Mapping[str, Tensor]) -> Mixer | None:
        """What layer `index` caches; None where it has no attention."""
        recurrent = any(name.startswith("ssm_") for name in tensors)
        if recurrent and not any(name in tensors for name in ("attn_k", "attn_kv_a_mqa")):
            return self._recurrent()
        if recurrent:
            raise _without_override(
                refused(self.source, ("ssm.state_size",), " beside attention in one layer")
            )
        if "attn_kv_a_mqa" in tensors:
            return self._latent()
        kv_heads = self._layer_count("attention.head_count_kv", index, least=0)
        if not any(name in tensors for name in ("attn_k", "attn_qkv", "attn_kv")):
            return None
        heads = self._layer_count("attention.head_count", index) or 1
        return self._attention(index, heads, kv_heads or heads)

    def _attention(self, index: int, heads: int, kv_heads: int) -> Attention:
        window = self._window(index)
        suffix = "_swa" if window and self._optional("attention.key_length_swa") else ""
        derived = max(1, self.need("embedding_length") // heads)
        key_dim = self._optional(f"attention.key_length{suffix}") or derived
        return Attention(
            query_heads=heads,
            kv_heads=kv_heads,
            key_dim=key_dim,
            value_dim=self._optional(f"attention.value_length{suffix}") or key_dim,
            window=window,
        )

    def _latent(self) -> LatentAttention:
        rope = self.need("rope.dimension_count")
        key = self._optional("attention.key_length_mla") or self.need("attention.key_length")
        value = self._optional("attention.value_length_mla") or self.need("attention.value_length")
        if key <= rope:
            raise InputError(
                f"{self.source} has keys of {key} elements, {rope} of them for positions.",
                why="Latent attention needs some for content too.",
                hint="Fetch the file again, or give the model's config.json.",
            )
        return LatentAttention(
            query_heads=self.need("attention.head_count"),
            latent_dim=self.need("attention.kv_lora_rank"),
            rope_dim=rope,
            nope_dim=key - rope,
            value_dim=value,
            indexer_dim=self._optional("attention.indexer.key_length") or 0,
        )

    def _recurrent(self) -> Recurrent:
        inner, state = self.need("ssm.inner_size"), self.need("ssm.state_size")
        groups = self._count("ssm.group_count", 0, least=0)
        channels = inner + 2 * groups * state
        elements = channels * (self.need("ssm.conv_kernel") - 1) + inner * state
        return Recurrent(state_bytes=elements * 4, flops_per_token=5 * inner * state)

    def ffn(self, index: int, tensors: Mapping[str, Tensor]) -> Ffn | None:
        """The feed-forward block of layer `index`; None where it has none."""
        if any("_exps" in name or name.startswith("ffn_gate.") for name in tensors):
            gated = any(name.startswith(("ffn_gate_exps", "ffn_gate_up_exps")) for name in tensors)
            width = self._optional("expert_feed_forward_length")
            experts, top_k = self.need("expert_count"), self.need("expert_used_count")
            if top_k > experts:
                raise InputError(
                    f"{self.source} routes a token to {top_k} of {experts} experts.",
                    why="A token cannot take more experts than there are.",
                    hint="Fetch the file again.",
                )
            return MoeFfn(
                experts=experts,
                top_k=top_k,
                intermediate=width or self._layer_count("feed_forward_length", index) or 1,
                gated=gated or "ffn_gate.0" in tensors,
                shared_experts=1 if "ffn_up_shexp" in tensors else 0,
            )
        if "ffn_down" not in tensors:
            return None
        # Phi-3 and GLM-4 fuse gate and up into one tensor of twice the width.
        width = tensors["ffn_down"].dimensions[0]
        up = tensors.get("ffn_up")
        fused = up is not None and up.dimensions[-1] == 2 * width
        return DenseFfn(intermediate=width, gated="ffn_gate" in tensors or fused)

    def reductions(self, tensors: Mapping[str, Tensor]) -> int:
        """All-reduces of one layer: after the mixer and after the feed-forward block."""
        blocks = any(name.startswith(("attn_", "ssm_")) for name in tensors) + any(
            name.startswith("ffn_down") for name in tensors
        )
        return min(blocks, 1) if self._family.parallel else blocks

    @property
    def _family(self) -> Family:
        name = _FAMILY_NAMES.get(self.architecture, self.architecture)
        return find_family(name) or Family()

    def _window(self, index: int) -> int | None:
        window = self._optional("attention.sliding_window", least=0)
        if not window:
            return None
        pattern = self._raw("attention.sliding_window_pattern")
        if isinstance(pattern, tuple) and index < len(pattern):
            return window if pattern[index] else None
        if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
            return window if (index + 1) % pattern else None
        family = self._family
        match family.windows:
            case WindowRule.ALL:
                return window
            case WindowRule.EVEN:
                return window if index % 2 == 0 else None
            case WindowRule.PATTERN if family.window_pattern:
                return window if (index + 1) % family.window_pattern else None
        key = f"{self.architecture}.attention.sliding_window"
        raise _without_override(
            refused(self.source, (key,), " without saying which layers it holds for")
        )

    def _raw(self, key: str) -> object:
        return self._table.get(f"{self.architecture}.{key}")

    def _optional(self, key: str, least: int = 1, most: int = COUNT_LIMIT) -> int | None:
        value = self._raw(key)
        return None if value is None else self._whole(key, value, least, most)

    def _count(self, key: str, otherwise: int, least: int = 1) -> int:
        value = self._optional(key, least)
        return otherwise if value is None else value

    def _layer_count(self, key: str, index: int, least: int = 1) -> int | None:
        """A number of the whole model, or the entry of layer `index` in an array."""
        value = self._raw(key)
        if value is None:
            return None
        if isinstance(value, tuple):
            value = value[index] if index < len(value) else None
            least = 0
        return self._whole(key, value, least, COUNT_LIMIT)

    def _whole(self, key: str, value: object, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(
                f"{self.architecture}.{key} of {self.source} is {shorten(value)}.",
                why=f"The sizes of the model need a number from {least} to {most:,} there.",
                hint="Fetch the file again, or give the model's config.json.",
            )
        return value


def _without_override(error: InputError) -> InputError:
    """A GGUF file takes no overrides: the way out is the model's config.json."""
    error.hint = "Give the model's config.json instead."
    return error
