"""What no run can make of a GPU: constants beyond its ceilings are of another GPU (D5)."""

from linkbound.errors import InputError
from linkbound.predict.calibration import Calibration
from linkbound.predict.defaults import DeviceFacts
from linkbound.units import format_significant


def check_ceilings(constants: Calibration, facts: DeviceFacts) -> None:
    """Raises InputError where a rate is above what the GPU's memory or arithmetic can reach."""
    ceilings = {
        "stream_bytes_per_s": (facts.memory_bytes_per_s, 1e9, "GB/s", "memory"),
        "matrix_flops_per_s": (facts.matrix_flops_per_s, 1e12, "TFLOP/s", "arithmetic"),
        "attention_flops_per_s": (facts.matrix_flops_per_s, 1e12, "TFLOP/s", "arithmetic"),
    }
    for name, (ceiling, unit, word, what) in ceilings.items():
        value = getattr(constants, name).value
        if value > ceiling:
            raise InputError(
                f"These runs make {name} {format_significant(value / unit)} {word}; the {what} of "
                f"{facts.model} reaches {format_significant(ceiling / unit)}.",
                why="Runs so fast are of another GPU, or their times are wrong: constants from "
                "them would mean nothing.",
                hint="Name with --machine the machine that was measured, or look at the times.",
            )
