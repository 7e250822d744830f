"""What is placed as one: every way to split one copy of a model, or copies that share experts."""

from collections.abc import Iterator

from linkbound.model.types import ModelShape, MoeFfn
from linkbound.predict.plans import spreads_experts
from linkbound.splits.layouts import Unit
from linkbound.splits.possible import impossible
from linkbound.splits.types import Dispatch, Split


def unit_splits(shape: ModelShape, n_gpus: int, *, few: bool = False) -> Iterator[Split]:
    """Splits of up to `n_gpus` that are not copies of a smaller one, fewest GPUs first.

    `few` leaves out what rarely differs: stages whose longest is as long as with fewer of them, and
    experts that do not divide evenly over the copies that share them.
    """
    yield from sorted(
        (split for split in _units(shape, n_gpus, few) if impossible(shape, split) is None),
        key=lambda split: (split.gpus, split.pp, split.ep, split.replicas),
    )


def _units(shape: ModelShape, n_gpus: int, few: bool) -> Iterator[Split]:
    experts = [layer.ffn.experts for layer in shape.layers if isinstance(layer.ffn, MoeFfn)]
    for tp in range(1, n_gpus + 1):
        if impossible(shape, Split(tp=tp)) is not None and not experts:
            continue
        for pp in _stage_counts(len(shape.layers), n_gpus // tp, few):
            yield Split(tp=tp, pp=pp)
            if not experts:
                continue
            inside = Split(tp=tp, pp=pp, ep=tp)
            if tp > 1 and impossible(shape, inside) is None and spreads_experts(shape, inside):
                yield inside
            for copies in range(2, min(min(experts) // tp, n_gpus // (tp * pp)) + 1):
                if not few or min(experts) % (tp * copies) == 0:
                    yield Split(
                        tp=tp,
                        pp=pp,
                        ep=tp * copies,
                        replicas=copies,
                        dispatch=Dispatch.GATHER_SCATTER,
                    )


def _stage_counts(layers: int, most: int, few: bool) -> Iterator[int]:
    longest = 0
    for stages in range(1, min(layers, most) + 1):
        if not few or -(-layers // stages) != longest:
            yield stages
        longest = -(-layers // stages)


def unit_of(split: Split) -> Unit:
    """The unit that one of `unit_splits` is placed as."""
    return Unit(tp=split.tp, pp=split.pp, shared=split.replicas)
