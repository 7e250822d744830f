"""Whether a model can be divided so at all, before any memory is counted (S1, S3).

The rules are vLLM's; a split with a stated tensor ratio is held to none that asks for equal parts.
"""

from collections.abc import Iterator
from functools import lru_cache

from linkbound.evidence.types import Reason
from linkbound.model.types import Attention, DenseFfn, LatentAttention, Layer, ModelShape, MoeFfn
from linkbound.splits.ranks import stage_sizes
from linkbound.splits.types import Split
from linkbound.splits.weights import padded_vocabulary


@lru_cache(maxsize=4096)
def impossible(shape: ModelShape, split: Split) -> Reason | None:
    """Why this model cannot be split so, with the numbers; None where it can."""
    return next(_problems(shape, split), None)


def _problems(shape: ModelShape, split: Split) -> Iterator[Reason]:
    yield from _stage_problems(split, len(shape.layers))
    yield from _expert_problems(shape, split)
    if split.tp == 1 or split.tensor_ratio is not None:
        return
    rows = padded_vocabulary(shape.vocabulary)
    if rows % split.tp:
        yield _no("vocabulary", f"{rows:,} rows of the padded vocabulary do not divide", split.tp)
    seen: set[Layer] = set()
    for layer in shape.layers:
        if layer not in seen:
            seen.add(layer)
            yield from _layer_problems(layer, split)


def _no(code: str, what: str, parts: int) -> Reason:
    return Reason(code=code, text=f"{what} by tp {parts}.")


def _stage_problems(split: Split, layers: int) -> Iterator[Reason]:
    if split.pp > layers:
        yield Reason(
            code="stages", text=f"pp {split.pp} needs a layer a stage, the model has {layers}."
        )
    elif sum(stage_sizes(split, layers)) != layers or min(stage_sizes(split, layers)) < 1:
        sizes = ", ".join(str(size) for size in stage_sizes(split, layers))
        yield Reason(
            code="stages", text=f"Stages of {sizes} layers do not make the model's {layers}."
        )


def _expert_problems(shape: ModelShape, split: Split) -> Iterator[Reason]:
    if split.ep == 1:
        return
    experts = [layer.ffn.experts for layer in shape.layers if isinstance(layer.ffn, MoeFfn)]
    if not experts:
        yield Reason(code="experts", text=f"ep {split.ep} needs experts, the model has none.")
    elif split.ep > min(experts):
        yield Reason(
            code="experts",
            text=f"ep {split.ep} needs an expert a rank, a layer has {min(experts)}.",
        )


def _layer_problems(layer: Layer, split: Split) -> Iterator[Reason]:
    tp = split.tp
    match layer.mixer:
        case Attention(query_heads=heads, kv_heads=kv_heads):
            if heads % tp:
                yield _no("heads", f"{heads} query heads do not divide", tp)
            elif kv_heads % tp and tp % kv_heads:
                yield _no("kv_heads", f"{kv_heads} key/value heads neither divide nor repeat", tp)
        case LatentAttention(query_heads=heads) if heads % tp:
            yield _no("heads", f"{heads} query heads do not divide", tp)
        case _:
            pass
    match layer.ffn:
        case DenseFfn(intermediate=width) if width % tp:
            yield _no("intermediate", f"{width:,} feed-forward columns do not divide", tp)
        case MoeFfn(intermediate=width) if split.ep == 1 and width % tp:
            yield _no("intermediate", f"{width:,} columns of an expert do not divide", tp)
        case _:
            pass
