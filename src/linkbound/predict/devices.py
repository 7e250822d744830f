"""What vendors publish of a GPU's arithmetic and memory: used only where nothing is measured.

Figures are dense, without sparsity, bf16 products summed in fp32, from data sheets and
architecture papers. No link bandwidth is listed: links are measured (SPEC, not in scope).
"""

from linkbound.values import Value


class DeviceCeiling(Value, frozen=True, kw_only=True):
    """Published ceilings of one GPU model."""

    model: str
    matrix_flops_per_s: float
    memory_bytes_per_s: float
    source: str


def _ceiling(model: str, tera_flops: float, giga_bytes_per_s: float, source: str) -> DeviceCeiling:
    return DeviceCeiling(
        model=model,
        matrix_flops_per_s=tera_flops * 1e12,
        memory_bytes_per_s=giga_bytes_per_s * 1e9,
        source=source,
    )


_ADA = "NVIDIA Ada GPU architecture paper"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture paper"
# The longest name comes first where one is part of another.
CEILINGS = (
    _ceiling("H200", 989.4, 4800, "NVIDIA H200 data sheet"),
    _ceiling("H100 PCIe", 756.4, 2000, "NVIDIA H100 data sheet"),
    _ceiling("H100", 989.4, 3350, "NVIDIA H100 data sheet, SXM"),
    _ceiling("A100", 312, 2039, "NVIDIA A100 80 GB data sheet"),
    _ceiling("L40S", 362, 864, "NVIDIA L40S data sheet"),
    _ceiling("RTX 3090", 71, 936, "NVIDIA GA102 architecture paper"),
    _ceiling("RTX 4090", 165.2, 1008, _ADA),
    _ceiling("RTX 5090", 209.5, 1792, _BLACKWELL),
    _ceiling("RTX 5070 Ti", 87.9, 896, _BLACKWELL),
    _ceiling("RTX 5070", 61.7, 672, _BLACKWELL),
    _ceiling("RTX 5060 Ti", 47.4, 448, _BLACKWELL),
)


def find_ceiling(model: str | None) -> DeviceCeiling | None:
    """The ceiling of a GPU by its product name; None where it is not listed."""
    if model is None:
        return None
    name = model.upper()
    return next((one for one in CEILINGS if one.model.upper() in name), None)
