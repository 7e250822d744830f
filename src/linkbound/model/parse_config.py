"""config.json, with the quantisation file beside it, to a ModelShape: exact sizes (S1, S3).

Keys that change the cache and are not understood refuse the model rather than guess.
"""

from collections.abc import Mapping

from linkbound.model.attention import (
    Heads,
    attention_mixer,
    attention_parts,
    is_latent,
    latent_parts,
    read_global_heads,
    read_heads,
    read_latent,
    read_window_heads,
)
from linkbound.model.families import Family, find_family
from linkbound.model.feedforward import dense_parts, expert_parts, read_experts
from linkbound.model.keys import Config, load_config
from linkbound.model.parts import Part, norm, store
from linkbound.model.plan import FfnKind, LayerPlan, MixerKind, plan_layers
from linkbound.model.quantization import Quantization, read_quantization
from linkbound.model.recurrent import read_delta, read_mamba
from linkbound.model.types import (
    DenseFfn,
    Ffn,
    Layer,
    Mixer,
    ModelShape,
    Role,
    Shard,
    Weights,
)
from linkbound.model.vision import vision_weights

DTYPE_BITS = {"bfloat16": 16, "float16": 16, "float32": 32, "float": 32, "half": 16}
_SCALED = ("yarn", "linear", "dynamic")
"""Kinds of position scaling that stretch max_position_embeddings; the others are counted in it."""


def parse_config(
    text: str,
    source: str,
    quant_text: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> ModelShape:
    """The shape that a config.json states; `quant_text` is the hf_quant_config.json beside it.

    Raises ModelRefused for keys that change the cache and are not understood, InputError for
    anything else that cannot be read or an override that changes nothing.
    """
    stated = dict(overrides or {})
    config = load_config(text, source, stated)
    shape = _Reader(config, quant_text, stated).read()
    config.check_understood()
    config.check_overrides(stated)
    return shape


class _Reader:
    """One configuration on its way to a shape; keeps what several layers share."""

    def __init__(self, config: Config, quant_text: str | None, overrides: Mapping[str, str]):
        self.config = config
        self.gaps = [f"--override {key}={value} was applied." for key, value in overrides.items()]
        self.model_type = config.text("model_type")
        self.family = self._family()
        self.hidden = config.need("hidden")
        self.plain_bits = self._plain_bits()
        self.quantization: Quantization = read_quantization(config, self.plain_bits, quant_text)
        self.gaps += self.quantization.gaps
        self.cache_bits = self.quantization.cache_bits or self.plain_bits
        self.experts = read_experts(config, self.family)
        self.latent = is_latent(config)
        self._built: dict[LayerPlan, tuple[Mixer | None, Ffn | None, list[Part]]] = {}

    def read(self) -> ModelShape:
        config = self.config
        plans = plan_layers(config, self.family, self.latent, self.experts is not None)
        if not self.latent:
            self.heads = read_heads(config, self.family, self.hidden)
            self.window_heads = read_window_heads(config, self.heads)
            self.global_heads = read_global_heads(config, self.heads)
        layers = tuple(self._layer(index, plan) for index, plan in enumerate(plans))
        vocabulary = config.need("vocabulary")
        embedding, head = self._embeddings(vocabulary)
        vision = vision_weights(config, self.plain_bits, self.gaps)
        architectures = config.outer("architectures") or config.raw("architectures")
        first = architectures[0] if isinstance(architectures, list) and architectures else None
        known = isinstance(first, str) and first.isprintable() and len(first) <= 200
        self._note_conventions(plans)
        return ModelShape(
            name=self.model_type or config.source,
            architecture=str(first) if known else self.model_type or "unknown",
            hidden=self.hidden,
            vocabulary=vocabulary,
            layers=layers,
            embedding=embedding,
            head=head,
            extra=(*self._final_norm(), *vision),
            activation_bits=self.plain_bits,
            max_context=self._max_context(),
            source=config.source,
            gaps=tuple(dict.fromkeys(self.gaps)),
        )

    def _family(self) -> Family:
        family = find_family(self.model_type)
        if family is None:
            self.gaps.append(
                f"model_type {self.model_type or 'is absent and'} is not in the list of known "
                "families; biases, norms and ties are taken as in Llama."
            )
            return Family()
        self.gaps += [
            f"{key} is not stated; the family's default is taken: {family.defaults[key]}."
            for key in self.config.assume(family.defaults)
        ]
        return family

    def _plain_bits(self) -> float:
        stated = self.config.text("dtype")
        if stated is None:
            self.gaps.append("The file states no dtype; 16 bits are taken.")
            return 16
        bits = DTYPE_BITS.get(stated.removeprefix("torch."))
        key = self.config.found("dtype") or "dtype"
        return self.config.wrong(key, stated, "a type of floats") if bits is None else bits

    def _layer(self, index: int, plan: LayerPlan) -> Layer:
        mixer, ffn, parts = self._block(plan)
        weights = store(parts, self.quantization, f"layers.{index}.")
        blocks = (plan.mixer is not MixerKind.NONE) + (plan.ffn is not FfnKind.NONE)
        return Layer(
            mixer=mixer,
            ffn=ffn,
            weights=weights,
            reductions=min(blocks, 1) if self._parallel else blocks,
        )

    @property
    def _parallel(self) -> bool:
        return self._stated("parallel_attn", self.family.parallel)

    def _block(self, plan: LayerPlan) -> tuple[Mixer | None, Ffn | None, list[Part]]:
        if plan not in self._built:
            mixer, mixer_parts = self._mixer(plan)
            ffn, ffn_parts = self._ffn(plan)
            parts = [*mixer_parts, *ffn_parts, *self._layer_norms(plan)]
            self._built[plan] = (mixer, ffn, parts)
        return self._built[plan]

    def _mixer(self, plan: LayerPlan) -> tuple[Mixer | None, list[Part]]:
        config, hidden = self.config, self.hidden
        match plan.mixer:
            case MixerKind.NONE:
                return None, []
            case MixerKind.LINEAR:
                return None, [self._linear("attention as one matrix", Role.ATTENTION)]
            case MixerKind.LATENT:
                latent = read_latent(config, self.cache_bits)
                return latent, latent_parts(config, hidden, latent)
            case MixerKind.MAMBA:
                mamba = read_mamba(config, hidden, self.plain_bits)
                return mamba.mixer, list(mamba.parts)
            case MixerKind.DELTA:
                delta = read_delta(config, hidden, self.plain_bits)
                return delta.mixer, list(delta.parts)
            case MixerKind.FULL | MixerKind.WINDOW:
                heads = self._heads(plan)
                mixer = attention_mixer(heads, plan.window, self.cache_bits)
                return mixer, attention_parts(config, self.family, hidden, heads)

    def _heads(self, plan: LayerPlan) -> Heads:
        heads = self.window_heads if plan.mixer is MixerKind.WINDOW else self.global_heads
        if plan.kv_heads is None:
            return heads
        return Heads(
            query=heads.query, kv=plan.kv_heads, key_dim=heads.key_dim, value_dim=heads.value_dim
        )

    def _ffn(self, plan: LayerPlan) -> tuple[Ffn | None, list[Part]]:
        match plan.ffn:
            case FfnKind.NONE:
                return None, []
            case FfnKind.LINEAR:
                return None, [self._linear("ffn as one matrix", Role.FFN)]
            case FfnKind.EXPERTS:
                assert self.experts is not None
                return self.experts.block, expert_parts(self.hidden, self.experts)
            case FfnKind.DENSE:
                width = plan.intermediate or self._dense_width()
                block = DenseFfn(intermediate=width, gated=self.family.gated)
                bias = bool(self._stated("mlp_bias", self.family.mlp_bias))
                return block, dense_parts(self.hidden, block, bias)

    def _dense_width(self) -> int:
        # Llama-4 keeps intermediate_size for the experts.
        width = self.config.count("intermediate_size_mlp") or self.config.count("intermediate")
        if width is None and self.model_type == "falcon":
            return 4 * self.hidden
        return width or self.config.need("intermediate")

    def _stated(self, key: str, otherwise: bool) -> bool:
        value = self.config.flag(key)
        return otherwise if value is None else value

    def _linear(self, name: str, role: Role) -> Part:
        return Part(name=name, parameters=self.hidden**2, shard=Shard.SPLIT, role=role)

    def _layer_norms(self, plan: LayerPlan) -> list[Part]:
        blocks = (plan.mixer is not MixerKind.NONE) + (plan.ffn is not FfnKind.NONE)
        norms = self.family.layer_norms * blocks // 2
        if self._parallel and not self.config.flag("new_decoder_architecture"):
            norms = 1
        if self.experts is not None and self.experts.beside_width:
            norms += 3  # one before the experts, one after each of the two branches (Gemma-4)
        return [norm(norms * self._norm_width)]

    @property
    def _norm_width(self) -> int:
        return self.hidden * (2 if self.family.norm_bias else 1)

    def _final_norm(self) -> tuple[Weights, ...]:
        return store([norm(self._norm_width, "final norm")], self.quantization, "")

    def _embeddings(self, vocabulary: int) -> tuple[Weights, Weights | None]:
        embedding = Part(
            name="embedding",
            parameters=vocabulary * self.hidden,
            shard=Shard.VOCABULARY,
            role=Role.EMBEDDING,
        )
        head = Part(
            name="head",
            parameters=vocabulary * self.hidden,
            shard=Shard.VOCABULARY,
            role=Role.HEAD,
            module="lm_head",
        )
        (stored,) = store([embedding], self.quantization, "")
        if self._tied():
            return stored, None
        return stored, store([head], self.quantization, "")[0]

    def _tied(self) -> bool:
        outer = self.config.outer("tie_word_embeddings")
        inner = self.config.flag("tie_word_embeddings")
        stated = outer if isinstance(outer, bool) else inner
        if stated is None:
            how = "tied" if self.family.tied else "not tied"
            self.gaps.append(
                f"tie_word_embeddings is not stated; the family's convention is taken: {how}."
            )
            return self.family.tied
        return stated

    def _max_context(self) -> int | None:
        context = self.config.count("context", most=1 << 40)
        scaling = self.config.raw("rope_scaling") or self.config.raw("rope_parameters")
        if context is None or not isinstance(scaling, dict):
            return context
        kind = scaling.get("rope_type", scaling.get("type"))
        factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
        if kind not in _SCALED or not isinstance(factor, int | float) or not 1 <= factor < 1e6:
            return context
        if isinstance(original, int) and 0 < original <= context:
            return max(context, int(original * factor))
        return int(context * factor)

    def _note_conventions(self, plans: list[LayerPlan]) -> None:
        config = self.config
        heads = config.count("num_nextn_predict_layers", least=0) or config.count(
            "mtp_num_hidden_layers", least=0
        )
        if heads or config.flag("use_mtp"):
            self.gaps.append("Layers for multi-token prediction are on disk and not counted.")
        if config.count("index_head_dim") is not None:
            self.gaps.append(
                "Indexer keys are counted at the cache's bits; engines store them in other ways."
            )
        elif self.latent and self.cache_bits < 16:
            self.gaps.append("Scales of a quantised latent cache are not counted.")
        if not self.latent and self.global_heads.values_from_keys:
            self.gaps.append(
                "attention_k_eq_v saves the projection of values only: keys and values are normed "
                "apart, and engines cache both."
            )
        if any(plan.mixer in (MixerKind.MAMBA, MixerKind.DELTA) for plan in plans):
            self.gaps.append(
                "The convolution state is taken as kernel - 1 inputs in the model's own type."
            )
        self._note_cut_keys()

    def _note_cut_keys(self) -> None:
        cut = {"step3p7": "attention_other_setting", "llama4": "vision_config"}
        key = cut.get((self.model_type or "").removesuffix("_text"))
        if key is not None and self.config.raw(key) is None:
            self.gaps.append(
                f"{key} is not in the file, though models of this family have it; "
                "what it would add is not counted."
            )
