"""`ACSCtl` lines of lspci: which ports send peer traffic up to the root complex (M3).

`SrcValid+` alone redirects nothing, and `ACSCap` only says what a port could do.
"""

import re

from linkbound.doctor.parse_kernel_log import with_domain
from linkbound.doctor.types import AcsPort, Place
from linkbound.values import Value

_HEADING = re.compile(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.+?)(?::|$)", re.I)
_BUSES = re.compile(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_CONTROL = re.compile(r"^\s*(?:[A-Za-z].{0,60})?\bACSCtl:\s*(.+)$")
_GPU_CLASS = re.compile(r"^(?:VGA compatible|3D|Display) controller|^Processing accelerators", re.I)
_GPU_MAKER = re.compile(r"NVIDIA|\[AMD/ATI\]|Advanced Micro Devices")


class _Device(Value, frozen=True, kw_only=True):
    bus_id: str
    is_bridge: bool
    is_gpu: bool


def parse_acs(text: str, source: str) -> tuple[AcsPort, ...]:
    """Every `ACSCtl` line of a bridge or of an excerpt without headings."""
    if "ACSCtl" not in text:
        return ()
    device: _Device | None = None
    ranges: dict[str, tuple[int, int]] = {}
    gpus: list[str] = []
    found: list[tuple[Place, _Device | None, bool]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if heading := _HEADING.match(line):
            device = _device(line, heading)
            gpus += [device.bus_id] if device.is_gpu else []
        elif device and (buses := _BUSES.search(line)):
            ranges[device.bus_id] = (int(buses[1], 16), int(buses[2], 16))
        elif control := _CONTROL.match(line):
            redirects = "ReqRedir+" in control[1] or "CmpltRedir+" in control[1]
            found.append((Place(source=source, line=number), device, redirects))
    return tuple(
        AcsPort(
            place=place,
            bus_id=port.bus_id if port else None,
            redirects=redirects,
            above_gpu=_above_gpu(port, ranges, gpus),
        )
        for place, port, redirects in found
        if port is None or port.is_bridge
    )


def _device(line: str, heading: re.Match[str]) -> _Device:
    kind = heading[2]
    return _Device(
        bus_id=with_domain(heading[1]),
        is_bridge="bridge" in kind.lower(),
        is_gpu=bool(_GPU_CLASS.match(kind) and _GPU_MAKER.search(line)),
    )


def _above_gpu(
    port: _Device | None, ranges: dict[str, tuple[int, int]], gpus: list[str]
) -> bool | None:
    """Whether a listed GPU is on a bus below the port; None where the listing cannot say."""
    if port is None or not gpus:
        return None
    buses = ranges.get(port.bus_id)
    if buses is None:
        return None
    domain = port.bus_id.split(":")[0]
    return any(
        gpu.split(":")[0] == domain and buses[0] <= int(gpu.split(":")[1], 16) <= buses[1]
        for gpu in gpus
    )
