"""Every split of a model that so many GPUs allow, smaller ones included (S1, D1)."""

from collections.abc import Iterator

from linkbound.model.types import ModelShape, MoeFfn
from linkbound.splits.possible import impossible
from linkbound.splits.types import Dispatch, Split


def enumerate_splits(n_gpus: int, shape: ModelShape) -> tuple[Split, ...]:
    """All tp x pp x ep x replicas that are possible on up to `n_gpus`, fewest GPUs first."""
    mixture = any(isinstance(layer.ffn, MoeFfn) for layer in shape.layers)
    found = [
        split
        for tp, pp, replicas in _degrees(n_gpus)
        for split in _with_experts(tp, pp, replicas, mixture)
        if impossible(shape, split) is None
    ]
    return tuple(sorted(found, key=lambda one: (one.gpus, one.replicas, one.pp, one.ep)))


def _degrees(n_gpus: int) -> Iterator[tuple[int, int, int]]:
    for tp in range(1, n_gpus + 1):
        for pp in range(1, n_gpus // tp + 1):
            for replicas in range(1, n_gpus // (tp * pp) + 1):
                yield tp, pp, replicas


def _with_experts(tp: int, pp: int, replicas: int, mixture: bool) -> Iterator[Split]:
    yield Split(tp=tp, pp=pp, replicas=replicas)
    if mixture and tp > 1:
        yield Split(tp=tp, pp=pp, ep=tp, replicas=replicas)
    if mixture and replicas > 1:
        yield Split(
            tp=tp, pp=pp, ep=tp * replicas, replicas=replicas, dispatch=Dispatch.GATHER_SCATTER
        )
