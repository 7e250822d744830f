"""ACS control of the ports above this host's GPUs, from their configuration space (M3).

PCI Express Base Specification, 7.7.8: the extended capability 0x000D, whose control register at
offset 6 has P2P Request Redirect in bit 2 and P2P Completion Redirect in bit 3.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from linkbound.doctor.types import AcsPort, Place
from linkbound.values import Value

_BUS_ID = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_SPACE_BYTES = 4096
_FIRST_EXTENDED = 0x100
_ACS = 0x000D
_CONTROL = 6
_REDIRECTS = 0b1100
_MOST_CAPABILITIES = 960
"""The extended space holds no more headers of four bytes."""


class AcsReading(Value, frozen=True, kw_only=True):
    """The ports that could be read, and those whose configuration space is closed to this user."""

    ports: tuple[AcsPort, ...]
    denied: tuple[str, ...]
    """Bus ids: without root Linux shows the first 64 bytes only."""


def probe_acs(bus_ids: Iterable[str], root: Path = Path("/sys")) -> AcsReading:
    """Every port above the functions `bus_ids`; ports without the capability control nothing."""
    found: dict[str, AcsPort] = {}
    denied: list[str] = []
    above = dict.fromkeys(port for one in bus_ids for port in _ports_above(one, root))
    for port in above:
        file = port / "config"
        try:
            space = file.read_bytes()[:_SPACE_BYTES]
        except OSError:
            space = b""
        if len(space) <= _FIRST_EXTENDED:
            denied.append(port.name)
            continue
        control = _control(space)
        if control is not None:
            found[port.name] = AcsPort(
                place=Place(source=str(file)),
                bus_id=port.name,
                redirects=bool(control & _REDIRECTS),
                above_gpu=True,
            )
    return AcsReading(ports=tuple(found.values()), denied=tuple(denied))


def _ports_above(bus_id: str, root: Path) -> Iterator[Path]:
    """From the function's own port up to the root port, as folders of /sys."""
    function = root / "bus/pci/devices" / bus_id.lower()
    if not function.exists():
        return
    for parent in function.resolve().parents:
        if not _BUS_ID.match(parent.name):
            return
        yield parent


def _control(space: bytes) -> int | None:
    """The ACS control register; None where the function has no such capability."""
    at = _FIRST_EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if at < _FIRST_EXTENDED or at + 8 > len(space):
            return None
        header = int.from_bytes(space[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(space[at + _CONTROL : at + _CONTROL + 2], "little")
        at = header >> 20
    return None
