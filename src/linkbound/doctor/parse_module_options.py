"""Options of the NVIDIA kernel module: the driver's registry keys (M3).

Reads modprobe files, kernel command lines and anything else that sets NVreg_RegistryDwords.
"""

import re

from linkbound.doctor.types import Place, Registry

_DWORDS = re.compile(r"\bNVreg_RegistryDwords\w*\s*[=:]\s*([\"']?)([^\"'\n]{1,2000})\1")
_ENTRY = re.compile(r"^\s*(\w{2,60})\s*=\s*(0x[0-9a-fA-F]{1,8}|\d{1,10})\s*$")
STATIC_BAR1 = frozenset(("RMForceStaticBar1", "PeerMappingOverride"))
"""What makes a patched driver map a peer's whole memory through BAR1."""


def parse_module_options(text: str, source: str) -> tuple[Registry, ...]:
    """Every registry key that `text` sets; comments set none."""
    if "NVreg_RegistryDwords" not in text:
        return ()
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for dwords in _DWORDS.finditer(line[:4000]):
            for entry in map(_ENTRY.match, dwords[2].split(";")):
                if entry:
                    place = Place(source=source, line=number)
                    found.append(Registry(place=place, key=entry[1], value=entry[2]))
    return tuple(found)


def forbids_peers(option: Registry) -> bool:
    """Whether the key switches peer access off.

    ForceP2P holds one state for reading in its lowest two bits and one for writing in bits 4
    and 5; 0 is off, 1 is on, 2 leaves it to the driver.
    """
    number = int(option.value, 0) if option.value.startswith("0x") else int(option.value)
    if option.key.lower() == "forcep2p":
        return 0 in (number & 3, number >> 4 & 3)
    return bool(re.search(r"disable\w*(?:p2p|peer)", option.key, re.I)) and number != 0
