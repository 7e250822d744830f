"""What a PCIe link can carry: lanes times rate, less the line code (L2)."""

from linkbound.topology.types import PcieLink

_LINE_CODE = ((8.0, 0.8), (64.0, 128 / 130))
"""8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s; Gen6 has none of its own."""


def pcie_bytes_per_s(link: PcieLink) -> float | None:
    """Raw bytes a second of one direction at the link's highest speed and present lanes."""
    width = link.width or link.max_width
    speed = link.max_gt_per_s or link.gt_per_s
    if width is None or speed is None:
        return None
    code = next((share for below, share in _LINE_CODE if speed < below), 1.0)
    return speed * 1e9 / 8 * width * code
