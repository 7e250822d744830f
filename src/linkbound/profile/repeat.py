"""The calls of a step again, one after the other with nothing between: what the wire takes (L4).

With the time of a shard alone they predict a split's step from two measurements.
"""

from collections.abc import Callable, Sequence

import torch

from linkbound.links.types import Launch
from linkbound.profile.exchange import Exchange
from linkbound.profile.types import Call


def repeated(
    exchange: Exchange, calls: Sequence[Call], launch: Launch
) -> Callable[[], None] | None:
    """Runs every call of `calls` as often as it counts; None where one needs more than its size.

    Sums of sums grow beyond all bounds here: the data mean nothing, their size does.
    """
    again = [(exchange.again(call), call.count) for call in calls]
    runs = [(run, count) for run, count in again if run is not None]
    if not runs or len(runs) < len(again):
        return None

    def run_all() -> None:
        for run, count in runs:
            for _ in range(count):
                run()

    if launch is Launch.EAGER:
        return run_all
    run_all()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run_all()
    replay: Callable[[], None] = graph.replay
    return replay
