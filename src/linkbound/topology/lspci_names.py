"""What `lspci` says in words: the class, vendor and model that its printed names stand for (M4)."""

import re

from linkbound.topology.pci import AMD, INTEL, NVIDIA

_CLASS_CODES = {
    "VGA compatible controller": 0x0300,
    "3D controller": 0x0302,
    "Display controller": 0x0380,
    "Processing accelerators": 0x1200,
    "Host bridge": 0x0600,
    "PCI bridge": 0x0604,
    "Bridge": 0x0680,
    "Ethernet controller": 0x0200,
    "Infiniband controller": 0x0207,
    "InfiniBand controller": 0x0207,
    "Network controller": 0x0280,
}
_VENDORS = (
    ("NVIDIA Corporation", NVIDIA),
    ("nVidia Corporation", NVIDIA),
    ("Advanced Micro Devices, Inc. [AMD/ATI]", AMD),
    ("Intel Corporation", INTEL),
)
_BARE_PART = re.compile(r"^NVIDIA Corporation Device ([0-9a-f]{4})\b", re.IGNORECASE)
_BRACKETS = re.compile(r"\[([^\[\]]{1,100})\]")
_TAIL = re.compile(r"\s*\((?:rev [0-9a-f]{2}|prog-if [0-9a-f]{2}[^)]{0,60})\)", re.IGNORECASE)
_ID_PAIR = re.compile(r"\s*\[[0-9a-f]{4}:[0-9a-f]{4}\]", re.IGNORECASE)
_BARE_DEVICE = re.compile(r"^Device [0-9a-f]{4}$", re.IGNORECASE)
# PCI ids of the NVSwitch generations; the tree prints no class by which to tell them from GPUs.
_NVSWITCH_PARTS = frozenset({"1ac0", "1ac1", "1ac2", "1af1", "22a3", "22a4"})
_OTHER_FUNCTIONS = re.compile(
    r"audio|\bUSB\b|UCSI|\bbridge\b|nvswitch|switch|I2C|serial|ethernet|SATA|root complex",
    re.IGNORECASE,
)
_NIC = re.compile(r"ethernet|infiniband|connectx|mellanox|bluefield|network", re.IGNORECASE)


def class_code_of(class_name: str) -> int | None:
    """The class code behind a printed class; None for classes that decide nothing here."""
    return _CLASS_CODES.get(class_name.strip())


def vendor_id_of(name: str) -> str | None:
    """Vendor id of the makers of GPUs; None for all others."""
    return next((code for start, code in _VENDORS if name.startswith(start)), None)


def nvidia_part(name: str) -> str | None:
    """`2330` of "NVIDIA Corporation Device 2330", the print where pci.ids is older than the GPU."""
    found = _BARE_PART.match(name)
    return found.group(1).lower() if found else None


def model_in(name: str) -> str | None:
    """The product in a printed name ("GeForce RTX 3090"); None where pci.ids did not know it."""
    words = _ID_PAIR.sub("", _TAIL.sub("", name)).strip()
    for start, code in _VENDORS:
        if words.startswith(start):
            words = words[len(start) :].strip()
            product = _BRACKETS.search(words)
            if product and code in (NVIDIA, AMD):
                return product.group(1)
    if not words or _BARE_DEVICE.match(words) or re.search(r" Device [0-9a-f]{4}$", words):
        return None
    return words


def is_gpu_by_name(name: str, function: int) -> bool:
    """Whether the function with this name in `lspci -tv`, which prints no class, is a GPU."""
    vendor = vendor_id_of(name)
    if vendor not in (NVIDIA, AMD) or _OTHER_FUNCTIONS.search(name):
        return False
    # Function 0 is the GPU of an NVIDIA card; its sound and USB functions may be nameless.
    return function == 0 and nvidia_part(name) not in _NVSWITCH_PARTS


def is_nvswitch_by_name(name: str) -> bool:
    """Whether this name is that of an NVSwitch."""
    return vendor_id_of(name) == NVIDIA and (
        "nvswitch" in name.lower() or nvidia_part(name) in _NVSWITCH_PARTS
    )


def is_nic_by_name(name: str) -> bool:
    """Whether this name is that of a network adapter."""
    return bool(_NIC.search(name))
