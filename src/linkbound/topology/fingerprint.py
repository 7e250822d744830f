"""Which machine records are from: keys that must agree, and keys that may differ (E2).

Identity is GPUs and links; condition is software and slots (DESIGN decision 10).
"""

from collections import Counter
from collections.abc import Iterable

from linkbound.evidence.types import Fingerprint
from linkbound.topology.types import Gpu, Machine
from linkbound.units import GIB


def fingerprint(machine: Machine) -> Fingerprint:
    """The fingerprint of what is known: an unknown key is left out, never filled."""
    identity = {
        "gpus": _counted(gpu.model or gpu.device_id for gpu in machine.gpus),
        "gpu_memory": _counted(_memory(gpu) for gpu in machine.gpus),
        "links": _counted(path.label for path in machine.pairs),
        "nvlinks": _counted(_links(gpu) for gpu in machine.gpus),
    }
    condition = {**machine.host, "slots": _counted(_slot(gpu) for gpu in machine.gpus)}
    return Fingerprint(
        identity={name: value for name, value in identity.items() if value},
        condition={name: value for name, value in condition.items() if value},
    )


def _counted(values: Iterable[str | None]) -> str:
    """`2x NVIDIA H200`: independent of the order, so that a renumbered machine is the same."""
    counts = Counter(value for value in values if value is not None)
    return ", ".join(f"{count}x {value}" for value, count in sorted(counts.items()))


def _memory(gpu: Gpu) -> str | None:
    # Whole GiB: tools differ by what the driver reserves.
    return None if gpu.memory_bytes is None else f"{round(gpu.memory_bytes / GIB)} GiB"


def _links(gpu: Gpu) -> str | None:
    if not gpu.nvlinks:
        return None
    return f"{sum(link.active is not False for link in gpu.nvlinks)} links"


def _slot(gpu: Gpu) -> str | None:
    if gpu.pcie is None:
        return None
    speed, lanes = gpu.pcie.max_gt_per_s, gpu.pcie.max_width
    parts = [f"{speed:g} GT/s" if speed else "", f"x{lanes}" if lanes else ""]
    return " ".join(part for part in parts if part) or None
