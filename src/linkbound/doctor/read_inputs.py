"""Files to facts: every reader that knows a file reads it, and what none knows is named (M3, M4).

A posted file often holds the output of several tools, so one reader's success ends nothing.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from linkbound.doctor.parse_acs import parse_acs
from linkbound.doctor.parse_gaps import parse_gaps, parse_surplus
from linkbound.doctor.parse_gpu_list import parse_gpu_list
from linkbound.doctor.parse_kernel_arguments import parse_kernel_arguments
from linkbound.doctor.parse_kernel_log import parse_kernel_log
from linkbound.doctor.parse_link_query import parse_link_query
from linkbound.doctor.parse_messages import parse_messages
from linkbound.doctor.parse_module_options import parse_module_options
from linkbound.doctor.parse_peer_checks import parse_peer_checks
from linkbound.doctor.parse_rate_matrix import parse_rate_matrix
from linkbound.doctor.read_links import UNUSED, read_link_facts
from linkbound.doctor.read_topology import read_machines, why_unread
from linkbound.doctor.types import (
    DmaFault,
    Facts,
    LimitedLink,
    Message,
    PciLine,
    Place,
    ReadInput,
    Symptom,
    Text,
    UnreadInput,
)
from linkbound.errors import InputError
from linkbound.links.sniff import decode
from linkbound.topology.types import Machine
from linkbound.values import Value

_BAR1 = re.compile(r"^\s*BAR 1: current size: (\d{1,6})([KMGT])B\b", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_UNIT = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


PROSE = (".md", ".rst", ".html")


class Reading(Value, frozen=True, kw_only=True):
    """The facts of all inputs, and which input gave any."""

    facts: Facts
    read: tuple[ReadInput, ...]
    unread: tuple[UnreadInput, ...]


def read_inputs(inputs: Sequence[tuple[str, bytes]], symptom: Symptom | None) -> Reading:
    """Facts of `inputs` (name and content); an input that no reader knows is listed with why."""
    found: dict[str, list[Any]] = {}
    read: list[ReadInput] = []
    unread: list[UnreadInput] = []
    for name, data in inputs:
        if name.lower().endswith(PROSE):
            reason = f"{name}: prose about a machine proves nothing; give what tools printed."
            unread.append(UnreadInput(name=name, reason=reason))
            continue
        try:
            text = decode(data, name)
        except InputError as error:
            unread.append(UnreadInput(name=name, reason=error.seen))
            continue
        text = _COLOUR.sub("", text)
        parts = _read_input(name, data, text)
        kinds = tuple(kind for kind, _, values in parts if values)
        if not kinds:
            reason = why_unread(name, data, text) or f"{name}: no line of it is known here."
            unread.append(UnreadInput(name=name, reason=reason))
            continue
        read.append(ReadInput(name=name, kinds=tuple(dict.fromkeys(kinds))))
        found.setdefault("texts", []).append(Text(source=name, text=text))
        for _, field, values in parts:
            found.setdefault(field, []).extend(values)
    fields: dict[str, Any] = {
        field: tuple(values) for field, values in found.items() if field != UNUSED
    }
    facts = Facts(symptom=symptom, **fields)
    return Reading(facts=facts, read=tuple(read), unread=tuple(unread))


Part = tuple[str, str, tuple[Any, ...]]
"""What a reader is called, the field of Facts it fills, and its facts."""

_TEXT_READERS: tuple[tuple[str, str, Callable[[str, str], tuple[Any, ...]]], ...] = (
    ("kernel command line", "kernel_arguments", parse_kernel_arguments),
    ("lspci ACS control", "acs", parse_acs),
    ("module options", "registry", parse_module_options),
    ("peer memory check", "peer_checks", parse_peer_checks),
    ("nvidia-smi link query", "link_rows", parse_link_query),
    ("messages", "messages", parse_messages),
)


def _read_input(name: str, data: bytes, text: str) -> list[Part]:
    parts: list[Part] = [("topology", "machines", read_machines(name, data, text))]
    parts += read_link_facts(name, data, text)
    parts += [(kind, field, parse(text, name)) for kind, field, parse in _TEXT_READERS]
    parts += _kernel_log(parse_kernel_log(text, name))
    matrices = [part for part in parts if part[1] == "matrices" and part[2]]
    if not matrices:
        parts.append(("bandwidth matrix", "matrices", parse_rate_matrix(text, name)))
    parts.append(("BAR sizes", "bar1", _bar1(text, name)))
    parts.append(("GPU list", "machines", parse_gpu_list(text, name)))
    if any(facts for _, _, facts in parts):
        gaps = (*parse_gaps(text, name), *_topology_gaps(parts[0][2], name))
        parts.append(("", "gaps", gaps))
    parts.append(("topo matrix", "contradictions", parse_surplus(text, name)))
    if any(facts for _, _, facts in parts):
        parts = [(kind or parts[0][0], field, facts) for kind, field, facts in parts]
    return parts


def _kernel_log(facts: Iterable[DmaFault | LimitedLink | PciLine]) -> list[Part]:
    listed = tuple(facts)
    return [
        ("kernel log", "dma_faults", tuple(f for f in listed if isinstance(f, DmaFault))),
        ("kernel log", "limited_links", tuple(f for f in listed if isinstance(f, LimitedLink))),
        ("kernel log", "pci_lines", tuple(f for f in listed if isinstance(f, PciLine))),
    ]


def _bar1(text: str, source: str) -> tuple[tuple[str, int], ...]:
    """BAR 1 of a resizable-BAR excerpt without a device's heading."""
    return tuple((source, int(size) * _UNIT[unit]) for size, unit in _BAR1.findall(text))


_GAP_NOTE = re.compile(
    r"is incomplete|is cut off|before it is complete|section `.*` is empty", re.IGNORECASE
)


def _topology_gaps(machines: tuple[Machine, ...], source: str) -> tuple[Message, ...]:
    """What the topology readers say of cut files."""
    return tuple(
        Message(place=Place(source=source), kind="gap", text=note.removeprefix(f"{source}: "))
        for machine in machines
        for note in machine.notes
        if _GAP_NOTE.search(note)
    )
