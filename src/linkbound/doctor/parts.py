"""What a GPU's or a bridge's name says about its links: which parts have NVLink, which none (M3).

Counts of links are facts of a product, kept here because a link that is missing leaves no trace.
"""

import re

from linkbound.topology.types import Device, Gpu
from linkbound.values import Value


class NvlinkPart(Value, frozen=True, kw_only=True):
    """A product whose modules always have NVLink; the rate is raw, of one link and direction."""

    links: int
    bytes_per_s: float
    multicast: bool
    """Hopper and later: its NVSwitch systems can multicast (NVLS)."""


def _part(links: int, gb_per_s: float, *, multicast: bool) -> NvlinkPart:
    return NvlinkPart(links=links, bytes_per_s=gb_per_s * 1e9, multicast=multicast)


_SXM = (
    (re.compile(r"\bP100-SXM"), _part(4, 20, multicast=False)),
    (re.compile(r"\bV100-SXM"), _part(6, 25, multicast=False)),
    (re.compile(r"\bA800-SXM"), _part(8, 25, multicast=False)),
    (re.compile(r"\bA100-SXM"), _part(12, 25, multicast=False)),
    (re.compile(r"\bH800(?!.*(?:PCIe|NVL))"), _part(8, 26.562, multicast=True)),
    (
        re.compile(r"\bH100(?: SXM|-SXM| \d+GB HBM[23]|.*HBM3)|\bH200(?!.*NVL)|\bH20(?:-3e)?\b"),
        _part(18, 26.562, multicast=True),
    ),
    (re.compile(r"\b(?:GB|B)[23]00\b"), _part(18, 50, multicast=True)),
)
_SXM_IDS = {
    "10de:1db1": "V100-SXM2-16GB",
    "10de:1db5": "V100-SXM2-32GB",
    "10de:20b0": "A100-SXM4-40GB",
    "10de:20b2": "A100-SXM4-80GB",
    "10de:2329": "H20",
    "10de:2330": "H100 80GB HBM3",
    "10de:2335": "H200",
}
_PAIRED = re.compile(r"\bH[12]00 NVL\b")
PAIRED_LINKS = 12
"""Links that H100 NVL and H200 NVL bring out to their bridge, of 18 that the chip has."""
_NO_NVLINK = re.compile(
    r"\bRTX (?:PRO|[45]0\d\d|30[5-8]\d|20[67]0(?! SUPER)|\d{4}(?: SFF)? Ada)|\bGTX\b"
    r"|\b(?:T4|L4|L40S?|A10G?|A2|A16|L20|L2)\b|\bTesla [PM]4\b"
)
_RAW_RATES = (
    (re.compile(r"\bA30\b|\bA100\b"), 25e9),
    (re.compile(r"RTX (?:3090|A\d000)|\bA40\b"), 14.0625e9),
)
_CHIPSET_IDS = frozenset(
    f"1022:{device}"
    for device in (
        *("43b0", "43b1", "43b2", "43b3", "43b4", "43c6", "43c7", "43e9", "43ea", "43eb"),
        *("43f4", "43f5", "43fc", "43fd", "57a3", "57a4", "57ad"),
    )
)
_CHIPSET_WORDS = re.compile(
    r"\bPCH\b|\bChipset\b.*\b(?:Root Port|Switch|Upstream|Downstream|PCIe|PCI Express)\b", re.I
)
_VIRTUAL_BRIDGE = re.compile(r"\bQEMU\b|\bVMware PCI Express\b|\bRed Hat\b.*\bbridge|Virtio", re.I)
_VIRTUAL_IDS = re.compile(r"^(?:1b36:|1af4:|15ad:07a0|1414:)")
_VIRTUAL_FUNCTIONS = frozenset(("1002:74b5", "1002:74b9", "1002:74bd", "1002:7410"))
_VGPU = re.compile(r"^(?:NVIDIA )?GRID |^NVIDIA \w+-\d+(?:-\d+)?[ABCQ]$")
_XGMI_IDS = frozenset(
    f"1002:{device}" for device in ("7408", "740c", "74a0", "74a1", "74a2", "74a5", "74a9")
)
_XGMI_NAMES = re.compile(r"\bMI(?:250X?|300[AX]|308X|325X|35[05]X)\b")


def nvlink_part(model: str | None) -> NvlinkPart | None:
    """The module this name is of; None for cards, and where no name is known."""
    return next((part for pattern, part in _SXM if pattern.search(model or "")), None)


def model_of(gpu: Gpu) -> str | None:
    """The printed name, else the name that a known device id stands for."""
    name = gpu.model or gpu.facts.get("Name") or _SXM_IDS.get(gpu.device_id or "")
    return None if name is None or name.startswith("(") else name


def is_paired(model: str | None) -> bool:
    """H100 NVL and H200 NVL: cards whose bridge takes some of the chip's links."""
    return _PAIRED.search(model or "") is not None


def never_has_nvlink(model: str | None) -> bool:
    """Whether this product has no NVLink connector at all."""
    return _NO_NVLINK.search(model or "") is not None


def raw_link_rate(model: str | None) -> float | None:
    """Raw bytes a second of one NVLink in one direction; None where the name does not tell."""
    part = nvlink_part(model)
    if part:
        return part.bytes_per_s
    return next((rate for pattern, rate in _RAW_RATES if pattern.search(model or "")), None)


def has_xgmi(gpu: Gpu) -> bool:
    """AMD modules that are joined by XGMI in every machine they are built into."""
    return gpu.device_id in _XGMI_IDS or bool(_XGMI_NAMES.search(gpu.model or ""))


def is_chipset_id(device_id: str | None) -> bool:
    """Whether a bridge's vendor:device is a chipset's."""
    return device_id in _CHIPSET_IDS


def is_chipset(device: Device) -> bool:
    """A bridge of a chipset, by id, by name, or by Intel's place for it (bus 0, device 1b-1d)."""
    if is_chipset_id(id_of(device)) or _CHIPSET_WORDS.search(device.facts.get("Name", "")):
        return True
    intel = (id_of(device) or "").startswith("8086:") or "Intel" in device.facts.get("Name", "")
    place = (device.bus_id or "").partition(":")[2]
    return intel and re.match(r"^00:1[bcd]\.", place) is not None


def is_virtual(device: Device) -> bool:
    """A bridge that only a hypervisor makes."""
    if _VIRTUAL_IDS.match(id_of(device) or ""):
        return True
    return _VIRTUAL_BRIDGE.search(device.facts.get("Name", "")) is not None


def is_virtual_function(gpu: Gpu) -> bool:
    """A GPU's virtual function or a vGPU: what a guest is given of a card."""
    return gpu.device_id in _VIRTUAL_FUNCTIONS or bool(_VGPU.match(gpu.model or ""))


def id_of(device: Device) -> str | None:
    """vendor:device of a bridge, from the facts its reader kept."""
    vendor, number = device.facts.get("vendor"), device.facts.get("device")
    if vendor and number:
        return f"{vendor.removeprefix('0x')}:{number.removeprefix('0x')}".lower()
    found = re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", device.label)
    return device.label if found else None
