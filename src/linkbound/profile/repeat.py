"""The calls of a step again, each behind a product of the step's layers, and those products alone.

Their difference is what the calls take where they stand in a step (L4): the gaps beside them and a
rank that comes late are in it. With the time of a shard alone it predicts a split's step.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from linkbound.links.types import Launch
from linkbound.profile import ops
from linkbound.profile.network import Network
from linkbound.profile.types import Call


class Repeated(NamedTuple):
    """Both ways to run them, launched as the step is."""

    with_calls: Callable[[], None]
    products: Callable[[], None]


def repeated(
    network: Network, calls: Sequence[Call], launch: Launch, tokens: int
) -> Repeated | None:
    """Every call of `calls` as often as it counts; None where one needs more than its size.

    `tokens` of a step bound the rows of a product.
    """
    again = [(network.exchange.again(call), call.count) for call in calls]
    known = [(one, count) for one, count in again if one is not None]
    if not known or len(known) < len(again):
        return None
    products = _Products(network, tokens)

    def run(*, calling: bool) -> None:
        for one, count in known:
            for _ in range(count):
                products.into(one.sent)
                if calling:
                    one.run()

    ways = (lambda: run(calling=True), lambda: run(calling=False))
    if launch is Launch.EAGER:
        return Repeated(*ways)
    return Repeated(*(_captured(way) for way in ways))


class _Products:
    """Output projections of the layers in turn, so that none finds its weights in a cache."""

    def __init__(self, network: Network, tokens: int) -> None:
        weights = [layer.attention.output for layer in network.layers]
        self._weights = itertools.cycle(one for one in weights if one.shape == weights[0].shape)
        hidden, inputs = weights[0].shape
        self._hidden = hidden
        self._x = torch.randn(tokens, inputs, dtype=network.dtype, device=network.device)

    def into(self, sent: torch.Tensor) -> None:
        """One product, written to the begin of what a call sends, as many rows as it has."""
        rows = min(len(self._x), len(sent) // self._hidden)
        out = sent[: rows * self._hidden].view(rows, self._hidden) if rows else None
        ops.product(self._x[: max(1, rows)], next(self._weights), out)


def _captured(run: Callable[[], None]) -> Callable[[], None]:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    replay: Callable[[], None] = graph.replay
    return replay
