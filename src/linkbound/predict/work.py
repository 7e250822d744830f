"""What one forward step makes one GPU do: bytes to read, FLOPs, layers to walk (S4).

Formulas: 2 FLOPs a parameter and token for matrix products; attention, recurrence and a mixture's
distinct experts as model/derive.py has them. Weights are read once a step, caches once a decoding
sequence: decoding is bound by the cache, so only prompt chunks count their attention's FLOPs.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

from linkbound.model.derive import experts_touched, layer_flops
from linkbound.model.types import Ffn, Layer, Mixer, ModelShape, MoeFfn, Role, Shard
from linkbound.predict.activations import moved_elements
from linkbound.predict.schedule import Step
from linkbound.splits.cache import RankCache, rank_cache
from linkbound.splits.ranks import rank_of, stage_bounds, tensor_share
from linkbound.splits.types import Split
from linkbound.splits.weights import layer_shares, padded_vocabulary
from linkbound.values import Value

Key = TypeVar("Key")


# What products of routed experts lose to their width: they reach width / (width + 300) of the rate
# of large ones. AIConfigurator 0.12.0 (Apache-2.0), its table of vLLM 0.24.0's fused experts on
# H200, bf16, 8,192 tokens, against 600 TFLOP/s: 0.71 at 768 wide, 0.55 at 384, all at 14,336.
NARROW_WIDTH = 300


class MixerWork(Value, frozen=True, kw_only=True):
    """Layers whose attention or recurrence costs the same, on one rank."""

    layers: int
    mixer: Mixer
    share: float
    """Of the mixer's heads, on this rank."""


class ExpertWork(Value, frozen=True, kw_only=True):
    """Layers with the same mixture, on one rank."""

    layers: int
    experts: int
    top_k: int
    width: int
    """Intermediate size of one expert, whole."""
    bytes_all: float
    """Stored bytes of all routed experts of one layer that this rank holds."""
    active_parameters: float
    """Routed parameters that one token multiplies on this rank, in one layer."""
    replicas: int
    """Replicas whose tokens these experts serve: all where experts are spread over them."""


class RankWork(Value, frozen=True, kw_only=True):
    """A rank's part of the model, summed so that a step is a few products."""

    layers: int
    mixture_layers: int
    stream_bytes: float
    """Read once in every step: all but embedding, head and routed experts."""
    parameters: float
    """Multiplied by every token: as above, norms and routers included."""
    head_bytes: float
    head_parameters: float
    mixers: tuple[MixerWork, ...]
    experts: tuple[ExpertWork, ...]
    cache: RankCache
    moved_bytes: float = 0.0
    """For each token: read and written by the kernels between matrix products."""

    @property
    def matrix_bytes(self) -> float:
        """Weights that some step reads: all that the rank holds but the embedding."""
        routed = math.fsum(one.layers * one.bytes_all for one in self.experts)
        return self.stream_bytes + self.head_bytes + routed


class StepWork(Value, frozen=True, kw_only=True):
    """One step of one rank."""

    tokens: int
    stream_bytes: float
    matrix_flops: float
    """As of large products: those of narrow experts count as what takes as long."""
    attention_flops: float
    cache_bytes: float
    moved_bytes: float
    """Read and written by the kernels between matrix products."""
    layers: int
    mixture_layers: int
    sampled: int


def rank_work(shape: ModelShape, split: Split, stage: int) -> RankWork:
    """The work of the fullest rank of pipeline stage `stage` (from 0): it sets the pace."""
    first, last = stage_bounds(split, len(shape.layers))[stage]
    layers = shape.layers[first:last]
    tensor = max(range(split.tp), key=lambda one: tensor_share(split, one))
    rank = rank_of(split, stage * split.tp + tensor)
    stream_bytes = parameters = 0.0
    mixers: dict[Mixer, int] = {}
    experts: dict[tuple[int, int, int, float, float], int] = {}
    for layer in layers:
        shares = layer_shares(layer, split, rank)
        for one in layer.weights:
            if one.role not in (Role.ROUTED_EXPERTS, Role.OTHER):
                stream_bytes += one.size_bytes * shares[one.shard]
                parameters += one.parameters * shares[one.shard]
        _count(mixers, layer.mixer)
        _count(experts, _experts(layer, shares))
    head_share = tensor_share(split, tensor) if stage == split.pp - 1 else 0.0
    head = shape.embedding if shape.head is None else shape.head
    head_share *= padded_vocabulary(shape.vocabulary) / shape.vocabulary
    return RankWork(
        layers=len(layers),
        mixture_layers=sum(isinstance(layer.ffn, MoeFfn) for layer in layers),
        stream_bytes=stream_bytes,
        parameters=parameters,
        head_bytes=head.size_bytes * head_share,
        head_parameters=head.parameters * head_share,
        mixers=tuple(
            MixerWork(layers=count, mixer=mixer, share=tensor_share(split, tensor))
            for mixer, count in mixers.items()
        ),
        experts=tuple(
            ExpertWork(
                layers=count,
                experts=number,
                top_k=top,
                width=width,
                bytes_all=stored,
                active_parameters=active,
                replicas=split.replicas if split.ep > split.tp else 1,
            )
            for (number, top, width, stored, active), count in experts.items()
        ),
        cache=rank_cache(layers, split, tensor),
        moved_bytes=shape.activation_bits / 8 * _moved_elements(shape, layers, split, tensor),
    )


def _moved_elements(shape: ModelShape, layers: Sequence[Layer], split: Split, tensor: int) -> float:
    """For each token in all `layers`: kinds of layers are few, and counted once."""
    kinds: dict[tuple[Mixer | None, Ffn | None], tuple[Layer, int]] = {}
    for layer in layers:
        first, count = kinds.get((layer.mixer, layer.ffn), (layer, 0))
        kinds[layer.mixer, layer.ffn] = first, count + 1
    return sum(
        count * moved_elements(layer, shape.hidden, split, tensor)
        for layer, count in kinds.values()
    )


def _count(groups: dict[Key, int], key: Key | None) -> None:
    if key is not None:
        groups[key] = groups.get(key, 0) + 1


def _experts(layer: Layer, shares: dict[Shard, float]) -> tuple[int, int, int, float, float] | None:
    if not isinstance(layer.ffn, MoeFfn):
        return None
    routed = [one for one in layer.weights if one.role is Role.ROUTED_EXPERTS]
    stored = sum(one.size_bytes * shares[one.shard] for one in routed)
    parameters = sum(one.parameters * shares[one.shard] for one in routed)
    ffn = layer.ffn
    return ffn.experts, ffn.top_k, ffn.intermediate, stored, parameters * ffn.top_k / ffn.experts


def narrow_factor(one: ExpertWork, cuts: int) -> float:
    """FLOPs of large products that take as long as one of an expert cut into `cuts` widths."""
    return 1 + NARROW_WIDTH * cuts / one.width


def expert_cuts(split: Split) -> int:
    """Over how many ranks each expert is cut: 1 where experts are spread whole."""
    return split.tp if split.ep == 1 else 1


def step_work(rank: RankWork, step: Step, tokens: int, cuts: int = 1) -> StepWork:
    """One step's work; `tokens` is its size as it runs, padded to a graph if there is one.

    `cuts` is `expert_cuts`. Replicas that share experts are taken to make the same step at once.
    """
    stream_bytes, multiplied = rank.stream_bytes, rank.parameters * tokens
    for one in rank.experts:
        routed = tokens * one.replicas
        touched = experts_touched(one.experts, one.top_k, routed)
        stream_bytes += one.layers * one.bytes_all * touched / one.experts
        multiplied += one.layers * one.active_parameters * routed * narrow_factor(one, cuts)
    if step.sampled:
        stream_bytes += rank.head_bytes
    return StepWork(
        tokens=tokens,
        stream_bytes=stream_bytes,
        matrix_flops=2 * multiplied + 2 * rank.head_parameters * step.sampled,
        attention_flops=sum(
            one.layers
            * one.share
            * chunk.count
            * layer_flops(one.mixer, chunk.tokens, chunk.cached)
            for chunk in step.chunks
            for one in rank.mixers
        ),
        cache_bytes=_cache_bytes(rank.cache, step),
        moved_bytes=rank.moved_bytes * tokens,
        layers=rank.layers,
        mixture_layers=rank.mixture_layers,
        sampled=step.sampled,
    )


def _cache_bytes(cache: RankCache, step: Step) -> float:
    """Read by the decoding sequences; recurrent state is read and written by every sequence."""
    total = cache.full_bytes_per_token * step.context_tokens
    if cache.state_bytes:
        total += 2 * cache.state_bytes * (step.decodes + step.prompts)
    for window, rate in cache.window_bytes_per_token:
        total += rate * min(step.context_tokens, step.decodes * float(window))
    return total


def is_mixture(shape: ModelShape) -> bool:
    """Whether any layer routes tokens to experts."""
    return any(isinstance(layer.ffn, MoeFfn) for layer in shape.layers)


def is_quantised(shape: ModelShape) -> bool:
    """Whether any weight is stored in fewer bits than 16."""
    return any(weights.bits < 16 for weights in shape.all_weights)
