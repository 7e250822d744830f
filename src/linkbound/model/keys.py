"""A model's configuration as typed keys: aliases, nesting, overrides, and what was left unread.

The reader asks for keys here, so that at the end it is known which keys nobody understood (S3).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from linkbound.errors import InputError, ModelRefused

TEXT_LIMIT_BYTES = 64 * 1024 * 1024
"""The largest real configuration is under 1 MB; past this the file is something else."""
COUNT_LIMIT = 1 << 26
"""No dimension of a model reaches this; a larger number is a damaged or hostile file."""
LAYER_LIMIT = 512
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")

ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "query_heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "intermediate": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "vocabulary": ("padded_vocab_size", "vocab_size"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "top_k_experts",
        "moe_top_k",
        "moe_k",
    ),
    "expert_intermediate": ("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_size"),
    "context": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "dtype": ("torch_dtype", "dtype"),
}

# Keys that say how much is cached or stored. One of these that the reader did not ask for means
# that the sizes could be wrong, so the model is refused instead (fail closed).
_DECISIVE = re.compile(
    r"compress|_lora_rank$|^index_|^indexer_types$|mamba|^ssm_|_ssm_|^linear_|^swa_|window"
    r"|attention_chunk|kv_shared|shared_kv|share_kv|kv_reuse|^cla_|layer_types|layers_block_type"
    r"|attn_layer|expert_layer|hybrid|^hc_|^o_groups$|block_configs|state_size|conv_kernel"
    r"|memory_block|^global_|num_global|k_eq_v|cross_attention_layers|attention_other_setting"
    r"|latent_size|per_layer_input|altup|laurel|hash_layers|is_encoder_decoder|double_wide"
    r"|time_mix|rwkv|retention|loop_count|share_expert|shared_expert|moe_layer|sparse_step"
)
# These match the pattern and change neither the cache nor the weights.
_HARMLESS = frozenset(
    {
        "mamba_hidden_act",
        "use_mamba_kernels",
        "mamba_chunk_size",
        "max_window_layers",
        "use_sliding_window",
        "use_unified_vision_chunk",
        "vocab_size_per_layer_input",
        "share_expert_gate_act",
        "sliding_window_size",
        "swa_rope_theta",
    }
)


class Config:
    """The keys of one configuration; remembers which were asked for."""

    def __init__(
        self,
        keys: Mapping[str, object],
        source: str,
        outer: Mapping[str, object],
        in_file: frozenset[str],
    ):
        self.source = source
        self._keys = keys
        self._outer = outer
        self._asked: set[str] = set()
        self._in_file = in_file

    def raw(self, key: str) -> object:
        """The value as it stands; None where it is absent or null."""
        self._asked.add(key)
        return self._keys.get(key)

    def outer(self, key: str) -> object:
        """The value beside a nested language model, where a multimodal file has one."""
        self._asked.add(key)
        return self._outer.get(key)

    def assume(self, defaults: Mapping[str, int]) -> tuple[str, ...]:
        """Take a value for each key that is absent or null; returns the keys that needed one."""
        missing = {key: value for key, value in defaults.items() if self._keys.get(key) is None}
        self._keys = {**self._keys, **missing}
        return tuple(missing)

    def found(self, name: str) -> str | None:
        """The first alias of `name` that has a value."""
        return next((key for key in ALIASES.get(name, (name,)) if self.raw(key) is not None), None)

    def count(self, name: str, least: int = 1, most: int = COUNT_LIMIT) -> int | None:
        """A whole number from `least` to `most`; None where no alias of `name` has a value."""
        key = self.found(name)
        return None if key is None else self._whole(key, self._keys[key], least, most)

    def need(self, name: str, most: int = COUNT_LIMIT) -> int:
        """A whole number of at least 1 that the model cannot be read without."""
        value = self.count(name, most=most)
        if value is None:
            names = ALIASES.get(name, (name,))
            raise InputError(
                f"{self.source} has no {' or '.join(names)}.",
                why="The sizes of the model cannot be computed without it.",
                hint=f"Give a model's config.json, or --override {names[0]}=VALUE.",
            )
        return value

    def flag(self, key: str) -> bool | None:
        """True or false; None where it is absent."""
        value = self.raw(key)
        if value is None or isinstance(value, bool):
            return value
        return self.wrong(key, value, "true or false")

    def text(self, name: str) -> str | None:
        """A short printable string; None where it is absent."""
        key = self.found(name)
        if key is None:
            return None
        value = self._keys[key]
        if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
            return self.wrong(key, value, "a name")
        return value

    def table(self, key: str) -> Mapping[str, object] | None:
        """A JSON object; None where it is absent."""
        value = self.raw(key)
        if value is None or isinstance(value, dict):
            return value
        return self.wrong(key, value, "an object")

    def rows(self, key: str) -> Sequence[object] | None:
        """A JSON array; None where it is absent."""
        value = self.raw(key)
        if value is None or isinstance(value, list):
            return value
        return self.wrong(key, value, "a list")

    def per_layer(self, key: str, layers: int) -> tuple[object, ...] | None:
        """One entry a layer; what follows the last layer is for prediction heads, not counted."""
        entries = self.rows(key)
        if entries is None:
            return None
        if len(entries) < layers:
            raise InputError(
                f"{key} of {self.source} has {len(entries)} entries for {layers} layers.",
                why="Each layer needs one.",
                hint="The file may be cut or edited: fetch it again.",
            )
        return tuple(entries[:layers])

    def wrong(self, key: str, value: object, expected: str) -> NoReturn:
        """Raise the error for a value that cannot be what the key stands for."""
        raise InputError(
            f"{key} of {self.source} is {shorten(value)}, not {expected}.",
            why="The sizes of the model cannot be computed from it.",
            hint=f"Correct the file, or give --override {key}=VALUE.",
        )

    def check_overrides(self, overrides: Mapping[str, str]) -> None:
        """Refuse an override that changed nothing the reader looks at."""
        # A key that is set aside (KEY=null) is not asked for, but would have refused the model.
        removed = {key for key in self._in_file if _DECISIVE.search(key)}
        unused = [key for key in overrides if key not in self._asked | removed]
        if unused:
            raise InputError(
                f"--override {unused[0]}={overrides[unused[0]]} changes nothing in {self.source}.",
                why="No such key is read for this kind of model.",
                hint="Check the spelling, or leave it out.",
            )

    def check_understood(self) -> None:
        """Refuse the model if a key that decides sizes was not asked for."""
        unread = tuple(
            sorted(
                key
                for key, value in (*self._outer.items(), *self._keys.items())
                if key not in self._asked
                and key not in _HARMLESS
                and value not in (None, False, 0, "", [], {})
                and _DECISIVE.search(key)
            )
        )
        if unread:
            raise refused(self.source, tuple(dict.fromkeys(unread)))

    def _whole(self, key: str, value: object, least: int, most: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            return self.wrong(key, value, "a whole number")
        if not least <= value <= most:
            return self.wrong(key, value, f"between {least} and {most:,}")
        return value


def refused(source: str, keys: tuple[str, ...], meaning: str = "") -> ModelRefused:
    """The error for keys that change the cache or the weights in a way not understood."""
    named = ", ".join(keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
    return ModelRefused(
        f"{source} has {named}{meaning}, which this reader does not know.",
        keys=keys,
        why="Such a key changes what is cached or stored, so every size could be wrong.",
        hint=f"--override {keys[0]}=null, one for each key, reads the model as if without it.",
    )


def shorten(value: object) -> str:
    """A value as it may stand in a message: one line, at most 60 characters, printable."""
    try:
        text = ascii(value)
    except (RecursionError, ValueError):  # deep nesting; integers too long to be written out
        return "a value too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


def load_json(text: str, source: str) -> Mapping[str, object]:
    """The JSON object in `text`. Infinity and NaN are taken, as Python wrote them (Nemotron-H)."""
    if len(text) > TEXT_LIMIT_BYTES:
        raise InputError(
            f"{source} has {len(text):,} characters.",
            why=f"A configuration is far smaller; more than {TEXT_LIMIT_BYTES:,} are not read.",
            hint="Give the config.json of the model.",
        )
    try:
        value = json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise _no_json(source, "it is nested too deeply") from None
    except ValueError as error:
        raise _no_json(source, str(error) if text.strip() else "it is empty") from None
    if not isinstance(value, dict):
        raise _no_json(source, f"it holds {shorten(value)}, not an object")
    return value


def _no_json(source: str, seen: str) -> InputError:
    return InputError(
        f"{source} cannot be read as JSON: {seen[:200]}.",
        why="A model's configuration is one JSON object.",
        hint="Check that this is the file meant, and that it is complete.",
    )


def load_config(text: str, source: str, overrides: Mapping[str, str]) -> Config:
    """The keys of the language model in a config.json, overrides applied."""
    outer = dict(load_json(text, source))
    name = next((key for key in NESTED if isinstance(outer.get(key), dict)), None)
    if name is None:
        return Config({**outer, **_parsed(overrides)}, source, {}, frozenset(outer))
    inner = outer.pop(name)
    if name == "thinker_config" and isinstance(inner, dict):
        inner = inner.get("text_config", inner)
    if not isinstance(inner, dict):
        inner = {}
    stated = {key: value for key, value in inner.items() if value is not None}
    parsed = _parsed(overrides)
    in_file = frozenset((*outer, *inner))
    return Config({**outer, **stated, **parsed}, source, {**outer, **parsed}, in_file)


def _parsed(overrides: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, text in overrides.items():
        try:
            values[key] = json.loads(text)
        except (ValueError, RecursionError):
            values[key] = text
    return values
