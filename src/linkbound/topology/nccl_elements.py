"""What one `<pci>` element of an NCCL or RCCL topology file says (M4)."""

import re
from xml.etree.ElementTree import Element

from linkbound.topology.types import DeviceKind, PcieLink

VENDORS = {"10de": "NVIDIA", "1002": "AMD"}
_GPU_CLASSES = ("0302", "0380", "1200")
_VGA_CLASS = "0300"
_NIC_CLASSES = ("0200", "0207")
SWITCH_CLASS = "0680"
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,2})?) GT/s")
SMALL = re.compile(r"\d{1,4}")
"""A small number, as files count ranks, nodes and lanes."""


def pci_kind(element: Element) -> DeviceKind:
    """What a `<pci>` is, by its class and by what is inside."""
    code = element.get("class", "").removeprefix("0x")[:4]
    vendor = element.get("vendor", "").removeprefix("0x")
    if element.find("gpu") is not None or code in _GPU_CLASSES:
        return DeviceKind.GPU
    if code == _VGA_CLASS and vendor in VENDORS:
        return DeviceKind.GPU
    if code in _NIC_CLASSES or element.find("nic") is not None:
        return DeviceKind.NIC
    if code == SWITCH_CLASS:
        return DeviceKind.NVSWITCH
    return DeviceKind.BRIDGE if len(element) or code == "0604" else DeviceKind.OTHER


def pcie(element: Element) -> PcieLink | None:
    """The best that device and port can do together; 0 lanes is NCCL's word for unknown."""
    speed = _SPEED.search(element.get("link_speed", ""))
    width = element.get("link_width", "")
    lanes = int(width) if SMALL.fullmatch(width) and int(width) else None
    if speed is None and lanes is None:
        return None
    return PcieLink(max_gt_per_s=float(speed[1]) if speed else None, max_width=lanes)


def ids(element: Element) -> dict[str, str]:
    """Vendor and device of a function, as printed."""
    return {name: value for name in ("vendor", "device") if (value := element.get(name))}


def capability(sm: str) -> str | None:
    """`9.0` for NVIDIA's sm="90"."""
    return f"{sm[:-1]}.{sm[-1]}" if re.fullmatch(r"\d{2,3}", sm) else None
