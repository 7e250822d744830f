"""`lspci -t` and `lspci -tv`: the tree drawn with bars, one or several domains (M1 M4).

The drawing has no classes: without names (`-v`) it says where functions are, not what they are.
"""

import re
from collections.abc import Iterator

from linkbound.errors import InputError
from linkbound.topology.labels import derive_nic_paths, derive_pairs
from linkbound.topology.lspci_names import (
    is_gpu_by_name,
    is_nic_by_name,
    is_nvswitch_by_name,
    model_in,
    nvidia_part,
    vendor_id_of,
)
from linkbound.topology.pci import PciFunction, host_bridge, sort_functions
from linkbound.topology.types import DeviceKind, Machine
from linkbound.values import Value

_ROOT = re.compile(r"^[\s|]*[-+\\]{1,3}\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}\]-", re.IGNORECASE)
_BUS = re.compile(r"\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_SLOT = re.compile(r"([0-9a-f]{2})\.([0-7])(?![0-9a-f.])", re.IGNORECASE)
_ART = " |+-\\`\t"
_BELOW = "-["


class _Bus(Value, frozen=True, kw_only=True):
    """A bus that was opened at a column; what stands right of it and below is on it."""

    column: int
    domain: str
    number: str
    key: str
    """Of the bridge above it."""


class _Drawn(Value, frozen=True, kw_only=True):
    """A function in the drawing."""

    bus_id: str
    parent: str
    name: str
    has_bus: bool


def looks_like_tree(text: str) -> bool:
    """Whether `text` is a drawing of `lspci -t`."""
    return any(_ROOT.match(line) for line in text.splitlines()[:200])


def parse_pci_tree(text: str, source: str) -> Machine:
    """The PCI tree of a drawing. Raises InputError where no root bus is drawn."""
    roots: dict[str, None] = {}
    drawn: list[_Drawn] = []
    open_buses: list[_Bus] = []
    for line in text.splitlines():
        for item in _scan(line, open_buses):
            if isinstance(item, _Drawn):
                drawn.append(item)
            else:
                roots[item.key] = None
    if not roots:
        raise InputError(
            f"{source}: no PCI tree in it.",
            why="A tree starts with a root bus such as `-[0000:00]-+-00.0`.",
            hint="Write the file with `lspci -tv`.",
        )
    gpus, others = sort_functions([_function(item) for item in drawn], source)
    devices = (*map(host_bridge, roots), *others)
    return Machine(
        sources=(source,),
        gpus=gpus,
        devices=devices,
        pairs=derive_pairs(gpus, devices, ports_shown=True),
        nic_paths=derive_nic_paths(gpus, devices, ports_shown=True),
        notes=() if any(item.name for item in drawn) else (_nameless(source),),
    )


def _scan(line: str, open_buses: list[_Bus]) -> Iterator[_Drawn | _Bus]:
    """Functions and root buses of one line, left to right; `open_buses` follows along."""
    column = 0
    while column < len(line):
        if line[column] in _ART:
            column += 1
            continue
        bus = _BUS.match(line, column)
        if bus:
            yield _open_root(bus, open_buses)
            column = bus.end()
            continue
        slot = _SLOT.match(line, column)
        while open_buses and open_buses[-1].column >= column:
            open_buses.pop()
        if not slot or not open_buses:
            return
        column = slot.end()
        above = open_buses[-1]
        bus_id = f"{above.domain}:{above.number}:{slot.group()}".lower()
        below = _BUS.match(line, column + 1) if line.startswith(_BELOW, column) else None
        if below is None:
            yield _Drawn(bus_id=bus_id, parent=above.key, name=line[column:].strip(), has_bus=False)
            return
        yield _Drawn(bus_id=bus_id, parent=above.key, name="", has_bus=True)
        open_buses.append(
            _Bus(column=column, domain=above.domain, number=below.group(2).lower(), key=bus_id)
        )
        column = below.end()


def _open_root(bus: re.Match[str], open_buses: list[_Bus]) -> _Bus:
    domain = f"{int(bus.group(1) or '0', 16):04x}"
    number = bus.group(2).lower()
    root = _Bus(column=bus.start(), domain=domain, number=number, key=f"pci{domain}:{number}")
    open_buses[:] = [root]
    return root


def _function(item: _Drawn) -> PciFunction:
    vendor_id = vendor_id_of(item.name)
    part = nvidia_part(item.name)
    return PciFunction(
        bus_id=item.bus_id,
        vendor_id=vendor_id,
        device_id=f"{vendor_id}:{part}" if part else None,
        name=model_in(item.name),
        parent=item.parent,
        kind=_kind(item),
        facts={"Name": item.name} if item.name else {},
    )


def _kind(item: _Drawn) -> DeviceKind:
    if item.has_bus:
        return DeviceKind.ROOT_PORT if item.parent.startswith("pci") else DeviceKind.SWITCH_PORT
    if is_nvswitch_by_name(item.name):
        return DeviceKind.NVSWITCH
    if is_gpu_by_name(item.name, int(item.bus_id[-1])):
        return DeviceKind.GPU
    return DeviceKind.NIC if is_nic_by_name(item.name) else DeviceKind.OTHER


def _nameless(source: str) -> str:
    return f"{source} has no names (`lspci -t`): which of its functions are GPUs is not known."
