"""Which bus ids are GPUs, and which models are listed, by all inputs together (M3)."""

import re

from linkbound.doctor.parse_kernel_log import with_domain
from linkbound.doctor.types import Facts

_DISPLAY, _ACCELERATOR = 0x03, 0x12
_MAKERS = ("10de:", "1002:")
_DRIVER_LINE = re.compile(
    r"\b(?:nvidia|amdgpu|NVRM: (?:GPU|Xid)[^\n]{0,40}?)[ (](?:PCI:)?"
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)",
    re.I,
)
_NEEDLES = ("nvidia ", "amdgpu ", "NVRM:")


def gpu_buses(facts: Facts) -> frozenset[str]:
    """Full bus ids of what some input shows to be a GPU."""
    found = {gpu.bus_id for machine in facts.machines for gpu in machine.gpus if gpu.bus_id}
    found |= {line.bus_id for line in facts.pci_lines if is_gpu(line.device_id, line.class_code)}
    found |= {link.device for link in facts.limited_links if link.driver in ("nvidia", "amdgpu")}
    for text in facts.texts:
        if facts.dma_faults or facts.limited_links or "iommu group" in text.text:
            found |= _driven(text.text)
    return frozenset(found)


def is_gpu(device_id: str, class_code: int) -> bool:
    """A display controller or accelerator of a maker of GPUs that compute."""
    return device_id.startswith(_MAKERS) and class_code >> 8 in (_DISPLAY, _ACCELERATOR)


def _driven(text: str) -> set[str]:
    """Devices that a line of a GPU's driver names."""
    found = set()
    for line in text.splitlines():
        if any(needle in line for needle in _NEEDLES):
            for address in _DRIVER_LINE.findall(line[:400]):
                found.add(_whole(address))
    return found


def _whole(address: str) -> str:
    """With domain and function, as the kernel prints it."""
    text = address.lower()
    return with_domain(text if "." in text else f"{text}.0")
