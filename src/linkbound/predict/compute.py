"""Work and constants to seconds, part by part: one rank, one step, nothing that crosses (S4)."""

from bisect import bisect_left
from enum import StrEnum

from linkbound.predict.calibration import ROOF_SHARPNESS
from linkbound.predict.pace import Pace
from linkbound.predict.work import StepWork
from linkbound.serve.types import SchedulerRules


class LaunchMode(StrEnum):
    """How a step reaches the device."""

    GRAPH = "graph"
    """One CUDA graph for the whole step: decode batches up to the largest captured size."""
    PIECEWISE = "piecewise"
    """Graphs between attention calls: mixed steps up to that size."""
    EAGER = "eager"


# Share of the eager host time that a step of piecewise graphs keeps: one launch a piece and one
# attention call a layer in place of about ten kernels.
PIECEWISE_HOST_SHARE = 0.2


def launch_mode(tokens: int, *, prefill: bool, rules: SchedulerRules) -> LaunchMode:
    """The mode of a step of `tokens` tokens (vLLM's FULL_AND_PIECEWISE capture)."""
    if tokens > rules.graph_sizes[-1]:
        return LaunchMode.EAGER
    return LaunchMode.PIECEWISE if prefill else LaunchMode.GRAPH


def padded_tokens(tokens: int, rules: SchedulerRules) -> int:
    """The size a step runs at: the next captured graph, or as it is."""
    at = bisect_left(rules.graph_sizes, tokens)
    return rules.graph_sizes[at] if at < len(rules.graph_sizes) else tokens


def device_parts(
    work: StepWork, pace: Pace, gain: float = 0.0
) -> tuple[float, float, float, float, float]:
    """Seconds on the device for weights, matrix products, attention, layers and routing.

    They add up to the rank's compute time, in the order of KINDS. `gain`: how much faster products
    are than in a GPU that does nothing else.
    """
    stream_s = work.stream_bytes / pace.stream
    matrix_s = work.matrix_flops / (pace.matrix * (1 + gain))
    both_s = (stream_s**ROOF_SHARPNESS + matrix_s**ROOF_SHARPNESS) ** (1 / ROOF_SHARPNESS)
    return (
        stream_s,
        both_s - stream_s,
        work.cache_bytes / pace.stream + work.attention_flops / pace.attention,
        work.layers * pace.layer + work.moved_bytes / pace.stream,
        work.mixture_layers * pace.mixture,
    )


def host_share(mode: LaunchMode) -> float:
    """Share of the eager host time; inside a graph it is hidden behind the step before."""
    match mode:
        case LaunchMode.GRAPH:
            return 0.0
        case LaunchMode.PIECEWISE:
            return PIECEWISE_HOST_SHARE
        case LaunchMode.EAGER:
            return 1.0
