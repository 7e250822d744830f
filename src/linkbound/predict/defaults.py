"""Where constants start: what was measured of the GPU itself, else published ceilings (D5, E3)."""

import math

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.types import Provenance
from linkbound.links.types import Operation, PairRate
from linkbound.predict.calibration import Calibration, Constant
from linkbound.predict.devices import DeviceCeiling, find_ceiling
from linkbound.predict.types import Estimate
from linkbound.topology.types import Gpu
from linkbound.values import Value

# A large copy inside one GPU reads and writes every byte; streaming weights only reads. The share
# of that traffic which decoding reaches, and of published memory bandwidth where none was timed.
STREAM_OF_COPY = (0.85, 0.97, 1.1)
STREAM_OF_PUBLISHED = (0.6, 0.8, 0.92)
# Large matrix products and attention as shares of the published dense bf16 rate.
MATRIX_OF_PUBLISHED = (0.45, 0.62, 0.8)
ATTENTION_OF_PUBLISHED = (0.3, 0.55, 0.85)
# How far constants may be off when another GPU's engine runs are carried over.
CARRIED_SPREAD = 1.6
CARRIED_MODEL_ERROR = 0.2
CARRIED_GAIN_ERROR = 0.12
# The same GPU model in another host: driver, clocks and host differ, the GPU does not.
SAME_MODEL_SPREAD = 1.15
SAME_MODEL_ERROR = 0.08
START = "carried from an earlier start"


class DeviceFacts(Value, frozen=True, kw_only=True):
    """What is known of one GPU without running an engine on it."""

    model: str
    stream: Constant
    """Bytes a second that decoding can read from its own memory."""
    memory_bytes_per_s: float
    """What no stream of bytes exceeds: published, or what a local copy was seen to move."""
    matrix_flops_per_s: float
    matrix_basis: str


def device_facts(gpu: Gpu, rates: tuple[PairRate, ...]) -> DeviceFacts:
    """Facts of a GPU. Raises InputError where neither measurement nor publication is known."""
    ceiling = find_ceiling(gpu.model)
    if ceiling is None:
        raise InputError(
            f"{gpu.label} is {gpu.model or 'a GPU of unknown model'}.",
            why="Neither an engine run nor a published arithmetic rate of it is known here, "
            "so step times cannot be predicted.",
            hint="Give engine runs of this GPU, or predict on a machine that has them.",
        )
    copies = [
        one
        for one in rates
        if one.operation is Operation.LOCAL_COPY and one.src == gpu.label == one.dst
    ]
    return DeviceFacts(
        model=ceiling.model,
        stream=_measured_stream(copies) if copies else _published_stream(ceiling),
        memory_bytes_per_s=max(
            ceiling.memory_bytes_per_s, *(2 * one.bytes_per_s for one in copies), 0.0
        ),
        matrix_flops_per_s=ceiling.matrix_flops_per_s,
        matrix_basis=f"{ceiling.matrix_flops_per_s / 1e12:.0f} TFLOP/s ({ceiling.source})",
    )


def prior_calibration(facts: DeviceFacts) -> Calibration:
    """Constants before any engine run was seen."""
    rate = facts.matrix_flops_per_s
    return Calibration(
        stream_bytes_per_s=facts.stream,
        matrix_flops_per_s=_prior(MATRIX_OF_PUBLISHED, rate, f"share of {facts.matrix_basis}"),
        attention_flops_per_s=_prior(
            ATTENTION_OF_PUBLISHED, rate, f"share of {facts.matrix_basis}"
        ),
        layer_s=_prior((15e-6, 30e-6, 60e-6), 1, "prior: ten small kernels of 3 us a layer"),
        # A fused mixture layer of one token there less the reading of its experts: 13 to 20 us.
        mixture_layer_s=_prior(
            (6e-6, 17e-6, 50e-6), 1, "prior: AIConfigurator 0.12.0, vLLM 0.24.0 on H200, one token"
        ),
        wait_s=_prior((0.5e-6, 3e-6, 12e-6), 1, "prior: ranks reach a call some us apart"),
        host_layer_s=_prior(
            (0.3e-3, 0.5e-3, 0.9e-3), 1, "prior: launching a layer eagerly, 0.5 ms in vLLM 0.24.0"
        ),
        host_layer_split_s=_prior(
            (0.4e-3, 0.9e-3, 1.8e-3), 1, "prior: launching a layer and its collectives eagerly"
        ),
        sequence_s=_prior((1.5e-6, 5e-6, 15e-6), 1, "prior: engine work a sampled sequence"),
        call_s=_prior((0.3e-3, 1e-3, 3e-3), 1, "prior: engine work a call"),
        model_error=CARRIED_MODEL_ERROR,
        gain_error=CARRIED_GAIN_ERROR,
    )


def carried(calibration: Calibration, source: DeviceFacts, target: DeviceFacts) -> Calibration:
    """Constants of one GPU's engine runs for another GPU, scaled by the facts of both.

    Rates scale with measured copies and published arithmetic; small latencies stay. All of it is a
    prior on the target: intervals widen and nothing is called calibrated.
    """
    same = source.model == target.model
    stream = 1.0 if same else target.stream.value / source.stream.value
    matrix = target.matrix_flops_per_s / source.matrix_flops_per_s
    scale = {
        "stream_bytes_per_s": stream,
        "matrix_flops_per_s": matrix,
        "attention_flops_per_s": matrix,
    }
    changes = {
        name: _carried(getattr(calibration, name), scale.get(name, 1.0), source, target)
        for name in calibration.__struct_fields__
        if isinstance(getattr(calibration, name), Constant)
    }
    errors = (
        math.hypot(calibration.model_error, SAME_MODEL_ERROR) if same else CARRIED_MODEL_ERROR,
        math.hypot(calibration.gain_error, SAME_MODEL_ERROR / 2) if same else CARRIED_GAIN_ERROR,
    )
    return msgspec.structs.replace(
        calibration, **changes, model_error=errors[0], gain_error=errors[1]
    )


def another_start(calibration: Calibration) -> Calibration:
    """Constants of one start of an engine as priors of the next on the same GPUs."""
    changes = {}
    for name in calibration.__struct_fields__:
        constant = getattr(calibration, name)
        if isinstance(constant, Constant):
            estimate = constant.estimate
            told = constant.provenance is Provenance.CALIBRATED
            changes[name] = Constant(
                estimate=Estimate(
                    value=estimate.value,
                    low=estimate.low / SAME_MODEL_SPREAD,
                    high=estimate.high * SAME_MODEL_SPREAD,
                ),
                provenance=Provenance.PRIOR if told else constant.provenance,
                basis=START if told else constant.basis,
            )
    return msgspec.structs.replace(
        calibration,
        **changes,
        model_error=math.hypot(calibration.model_error, SAME_MODEL_ERROR),
        gain_error=math.hypot(calibration.gain_error, SAME_MODEL_ERROR / 2),
    )


def _carried(
    constant: Constant, scale: float, source: DeviceFacts, target: DeviceFacts
) -> Constant:
    value = constant.value * scale
    same = source.model == target.model
    spread = SAME_MODEL_SPREAD if same else CARRIED_SPREAD
    where = "of another host" if same else f"to {target.model}, scaled by {scale:.3g}"
    return Constant(
        estimate=Estimate(
            value=value,
            low=constant.estimate.low * scale / spread,
            high=constant.estimate.high * scale * spread,
        ),
        provenance=Provenance.PRIOR,
        basis=f"carried from engine runs on {source.model} {where}",
    )


def _measured_stream(copies: list[PairRate]) -> Constant:
    rate = 2 * max(one.bytes_per_s for one in copies)
    methods = ", ".join(dict.fromkeys(one.method for one in copies))
    return _constant(
        STREAM_OF_COPY,
        rate,
        Provenance.ROOFLINE,
        f"roofline: {rate / 1e9:,.0f} GB/s read and written by a local copy ({methods})",
    )


def _published_stream(ceiling: DeviceCeiling) -> Constant:
    rate = ceiling.memory_bytes_per_s
    return _constant(
        STREAM_OF_PUBLISHED,
        rate,
        Provenance.PRIOR,
        f"share of {rate / 1e9:,.0f} GB/s ({ceiling.source})",
    )


def _prior(share: tuple[float, float, float], of: float, basis: str) -> Constant:
    return _constant(share, of, Provenance.PRIOR, basis)


def _constant(
    share: tuple[float, float, float], of: float, provenance: Provenance, basis: str
) -> Constant:
    low, value, high = (one * of for one in share)
    return Constant(
        estimate=Estimate(value=value, low=low, high=high), provenance=provenance, basis=basis
    )
