"""Work and constants to seconds, part by part: one rank, one step, nothing that crosses (S4)."""

from enum import StrEnum

from linkbound.predict.calibration import ROOF_SHARPNESS, Calibration
from linkbound.predict.types import TermKind
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
    return next((size for size in rules.graph_sizes if size >= tokens), tokens)


def device_parts(work: StepWork, constants: Calibration) -> dict[TermKind, float]:
    """Seconds of each part on the device; they add up to the rank's compute time."""
    stream_s = work.stream_bytes / constants.stream_bytes_per_s.value
    matrix_s = work.matrix_flops / constants.matrix_flops_per_s.value
    both_s = (stream_s**ROOF_SHARPNESS + matrix_s**ROOF_SHARPNESS) ** (1 / ROOF_SHARPNESS)
    return {
        TermKind.WEIGHTS: stream_s,
        TermKind.MATRIX: both_s - stream_s,
        TermKind.ATTENTION: work.cache_bytes / constants.stream_bytes_per_s.value
        + work.attention_flops / constants.attention_flops_per_s.value,
        TermKind.LAUNCH: work.layers * constants.layer_s.value,
        TermKind.ROUTING: work.mixture_layers * constants.mixture_layer_s.value,
    }


def host_s(layers: int, mode: LaunchMode, *, crossing: bool, constants: Calibration) -> float:
    """Host seconds to launch a step; inside a graph it is hidden behind the step before."""
    if mode is LaunchMode.GRAPH:
        return 0.0
    layer = constants.host_layer_split_s if crossing else constants.host_layer_s
    share = PIECEWISE_HOST_SHARE if mode is LaunchMode.PIECEWISE else 1.0
    return layers * layer.value * share
