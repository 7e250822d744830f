"""The constants of an engine on a GPU, each with where it comes from (D5, E3)."""

from collections.abc import Mapping

from linkbound.evidence.types import Provenance
from linkbound.predict.types import Estimate
from linkbound.values import Value


class Constant(Value, frozen=True, kw_only=True):
    """One constant; low and high bound what the data leave open."""

    estimate: Estimate
    provenance: Provenance
    basis: str

    @property
    def value(self) -> float:
        return self.estimate.value


def _prior(low: float, value: float, high: float, basis: str) -> Constant:
    estimate = Estimate(low=low, value=value, high=high)
    return Constant(estimate=estimate, provenance=Provenance.PRIOR, basis=f"prior: {basis}")


class Seen(Value, frozen=True, kw_only=True):
    """What the calibrating runs cover: outside, a prediction is an extrapolation and says so."""

    least_bytes: float
    most_bytes: float
    """`RankWork.matrix_bytes`, fewest and most over the runs."""
    longest_tokens: int
    """Prompt and output of a sequence."""
    splits: bool
    """Whether one of them ran on several GPUs."""


class UnseenErrors(Value, frozen=True, kw_only=True):
    """Relative half-widths that a time gets more, in squares, for what no calibrating run shows.

    No calibrating run has experts, weights below 16 bits or stages. Published predictors of engines
    miss by 13 % (TPOT) to 32 % (TTFT) in the median (AIConfigurator 0.12.0 on its own sample): such
    plans are not claimed to be known better, until scores say so.
    """

    mixture: float = 0.2
    quantised: float = 0.2
    pipeline: float = 0.13
    size: float = 0.08
    """A rank with other weights than the calibrating runs cover."""
    split: float = 0.06
    """Several GPUs, where all runs were on one: constants of the recorded pair's runs on one GPU
    miss the rows on two by up to 6 %."""
    length: float = 0.1
    """A sequence longer than theirs."""
    runtime: float = 0.2
    """Another program's kernels of the same products: dense steps of the reference runtime on the
    recorded pair were missed by 4 % from 8 sequences on, by up to 26 % at one."""


class Learned(Value, frozen=True, kw_only=True):
    """Stated errors that scores of frozen predictions have moved, and from where."""

    starts: int
    rows: int
    stated: Mapping[str, float]
    """What was stated before: `model`, and names of `UnseenErrors`, of those that moved."""


class Calibration(Value, frozen=True, kw_only=True):
    """What turns work into time. Times in seconds, rates in bytes or FLOPs a second."""

    stream_bytes_per_s: Constant
    """Weights and caches read from the GPU's own memory."""
    matrix_flops_per_s: Constant
    attention_flops_per_s: Constant
    layer_s: Constant
    """What a layer takes however little it does: small kernels in a row."""
    mixture_layer_s: Constant
    """What routing adds to a layer."""
    wait_s: Constant
    """What a collective call waits for the slower rank."""
    host_layer_s: Constant
    """Host time to launch one layer without a CUDA graph, on one GPU."""
    host_layer_split_s: Constant
    """The same where every layer also calls collectives."""
    sequence_s: Constant
    """Engine time for each sampled sequence of a step."""
    call_s: Constant
    """Engine time of one call, once."""
    host_mixture_s: Constant = _prior(
        0.4e-3, 0.85e-3, 1.5e-3, "launching eagerly what routing adds to a layer in vLLM 0.24.0"
    )
    """Host time that routing adds to launching a layer without a CUDA graph."""
    host_step_s: Constant = _prior(
        4e-3,
        7e-3,
        10e-3,
        "launching a step eagerly, beside its layers: vLLM 0.24.0, 16 and 32 layers",
    )
    """Host time of a step without a CUDA graph, beside its layers, on each stage."""
    rest_gain: Constant = _prior(
        0.04, 0.17, 0.2, "one H200, products of 8,192 tokens after each of which it rested"
    )
    """How much faster a GPU multiplies that rests `FULL_REST` of the time or more: power sets its
    clock, and a GPU that waits for the host's path has some left."""
    model_error: float
    """Relative half-width that a predicted step keeps even where every term is known."""
    gain_error: float
    """Relative half-width of a ratio of two plans' times: what they share is out of it."""
    unseen: UnseenErrors = UnseenErrors()
    learned: Learned | None = None
    """None where no frozen prediction was scored."""
    seen: Seen | None = None
    """None where no run calibrated."""
    record_ids: tuple[str, ...] = ()


# The two ceilings of a matrix product add up softly: (a^p + b^p)^(1/p). p = 3 puts the knee 26 %
# above either ceiling alone; it is not fitted.
ROOF_SHARPNESS = 3.0
# benchmarks/bench_rest.py on one H200: products 8 % faster where it rests 12 % of the time after
# every layer, 16 % at 25 %, 17 % from 50 % on; 5 % where it rests as long after 32 layers.
FULL_REST = 0.25
LONG_REST_SHARE = 0.3
"""Of the gain, where the rest is as long as a whole step: another stage's turn."""
