"""Constants as plain numbers, and how far each kind of term may be off with them (E3)."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from linkbound.evidence.types import Provenance
from linkbound.predict.calibration import Calibration, Constant

Margin = tuple[float, float]
"""Low and high end of a part as shares of its value."""


class Pace:
    """A calibration, read once for thousands of steps. Seconds, bytes a second, FLOPs a second."""

    def __init__(self, constants: Calibration) -> None:
        self.constants = constants
        self.stream = constants.stream_bytes_per_s.value
        self.matrix = constants.matrix_flops_per_s.value
        self.attention = constants.attention_flops_per_s.value
        self.layer = constants.layer_s.value
        self.mixture = constants.mixture_layer_s.value
        self.wait = constants.wait_s.value
        self.sequence = constants.sequence_s.value
        self.rest_gain = timed(constants.rest_gain)
        stream = rate_margin(constants.stream_bytes_per_s)
        matrix = rate_margin(constants.matrix_flops_per_s)
        attention = rate_margin(constants.attention_flops_per_s)
        layer, mixture = margin(constants.layer_s), margin(constants.mixture_layer_s)
        # In the order of KINDS: weights, matrix products, attention, layer latency, routing; low
        # ends, then high ends.
        self.prefill_shares = tuple(zip(stream, matrix, attention, layer, mixture, strict=True))
        # Decoding reads the cache; only prompts make attention compute.
        self.decode_shares = tuple(zip(stream, matrix, stream, layer, mixture, strict=True))
        self.host = timed(constants.host_layer_s)
        self.host_split = timed(constants.host_layer_split_s)
        self.host_mixture = timed(constants.host_mixture_s)
        self.host_step = timed(constants.host_step_s)
        self.wait_margin = margin(constants.wait_s)
        self.sequence_margin = margin(constants.sequence_s)


class Paces:
    """Paces of the GPU models of a machine; `others` are those that are not `main`'s."""

    def __init__(self, main: Calibration, others: Mapping[str, Calibration]) -> None:
        self.main = Pace(main)
        self.others = others
        self._kept: dict[frozenset[str], Pace] = {}

    def of(self, models: frozenset[str]) -> Pace:
        """The pace of GPUs that wait for each other: of each constant the slower."""
        if not self.others:
            return self.main
        if models not in self._kept:
            found = [self.others.get(model, self.main.constants) for model in sorted(models)]
            self._kept[models] = Pace(slowest(found))
        return self._kept[models]


def slowest(calibrations: Iterable[Calibration]) -> Calibration:
    """The lowest rates and gains, the longest times and the largest errors of several GPUs."""
    return _of_each(tuple(calibrations), rate=min, time=max)


def fastest(calibrations: Iterable[Calibration]) -> Calibration:
    """The highest rates and gains, the shortest times: no GPU of them is faster."""
    return _of_each(tuple(calibrations), rate=max, time=min)


def _of_each(
    known: tuple[Calibration, ...], rate: Callable[..., Constant], time: Callable[..., Constant]
) -> Calibration:
    found = known[0]
    for name in found.__struct_fields__:
        values = [getattr(one, name) for one in known]
        if isinstance(values[0], Constant):
            pick = rate if name.endswith(("_per_s", "_gain")) else time
            found = msgspec.structs.replace(found, **{name: pick(values, key=_value)})
    return msgspec.structs.replace(
        found,
        model_error=max(one.model_error for one in known),
        gain_error=max(one.gain_error for one in known),
        record_ids=tuple(dict.fromkeys(record for one in known for record in one.record_ids)),
    )


def _value(constant: Constant) -> float:
    return constant.value


def margin(constant: Constant) -> Margin:
    """A part moves with its constant: its relative interval is the constant's.

    Constants that runs were fitted to have no interval of their own here: they err together, and
    what they miss together is the calibration's model and gain error.
    """
    if constant.provenance is Provenance.CALIBRATED:
        return 1.0, 1.0
    return constant.estimate.low / constant.value, constant.estimate.high / constant.value


def timed(constant: Constant) -> tuple[float, float, float]:
    """Value, low and high of a constant, the ends at the value where runs were fitted."""
    low, high = margin(constant)
    return constant.value, constant.value * low, constant.value * high


def rate_margin(constant: Constant) -> Margin:
    """The same for a part that is work over a rate: the faster, the shorter."""
    low, high = margin(constant)
    return 1 / high, 1 / low
