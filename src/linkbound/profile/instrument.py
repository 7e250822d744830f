"""What torch's profiler adds to each kernel of a CUDA graph, in this process (P1).

Measured by itself: one graph of trivial kernels, replayed without the profiler and with it.
"""

import itertools
from collections.abc import Callable

import torch

from linkbound.evidence.stats import median

KERNELS = 2000
"""Of the graph: as many as a decode step of a mixture has."""
REPEATS = 10
WARM_UPS = 2


def added_kernel_s() -> float:
    """Seconds a kernel; negative where noise is greater than what is added."""
    x = torch.zeros(1, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(KERNELS):
            x.add_(1)
    plain_s = _middle_s(graph.replay)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities):
        traced_s = _middle_s(graph.replay)
    return (traced_s - plain_s) / KERNELS


def _middle_s(run: Callable[[], None]) -> float:
    for _ in range(WARM_UPS):
        run()
    found = median(times_on_device(run, REPEATS))
    assert found is not None
    return found


def times_on_device(run: Callable[[], None], count: int) -> list[float]:
    """Event to event: all runs are enqueued before the first result is asked for."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in itertools.pairwise(events)]
