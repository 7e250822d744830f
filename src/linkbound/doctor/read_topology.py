"""Machines in a posted file, which may hold the output of several tools below each other (M4)."""

import importlib
import re
from collections.abc import Iterator
from contextlib import suppress

from linkbound.doctor.parse_gaps import header
from linkbound.errors import InputError
from linkbound.topology.sniff import READERS, read_machine
from linkbound.topology.types import Machine

_SECOND_READERS = frozenset(
    (
        "nvidia-smi topo -p2p",
        "nvidia-smi topo -m",
        "nvidia-smi -q",
        "nvidia-smi",
        "p2pBandwidthLatencyTest",
    )
)
"""Tools whose outputs people paste below each other into one file."""
_XML = re.compile(r"<system[\s>].*?(?:</system>|\Z)", re.DOTALL)
_MOST_PARTS = 32


def read_machines(name: str, data: bytes, text: str) -> tuple[Machine, ...]:
    """Every machine that a reader finds: of the whole file, else of its parts."""
    parts = list(_parts(text))
    if len(parts) < 2:
        return tuple(_whole(name, data, text))
    found = [machine for part in parts for machine in _whole(name, part.encode(), part)]
    return tuple(found)


def why_unread(name: str, data: bytes, text: str) -> str | None:
    """What the reader says that took the file for its own; None where none did."""
    if any(reader.matches(text) for reader in READERS):
        try:
            read_machine(data, name)
        except InputError as error:
            return error.seen
    return None


def _parts(text: str) -> Iterator[str]:
    """The tables of GPUs and the XML trees in a text, each with what follows it."""
    trees = _XML.findall(text[: 1 << 23])
    if trees and (len(trees) > 1 or not text.lstrip().startswith("<")):
        yield _XML.sub("", text)
        yield from trees[:_MOST_PARTS]
        return
    if "GPU0" not in text or "between two GPUs" in text:
        return
    part: list[str] = []
    count = 0
    for line in text.splitlines():
        if header(line) and count < _MOST_PARTS:
            count += 1
            yield "\n".join(part)
            part = []
        part.append(line)
    yield "\n".join(part)


def _whole(name: str, data: bytes, text: str) -> Iterator[Machine]:
    """The machine that the file's own reader sees, and what other tools in it add."""
    first = next((reader for reader in READERS if reader.matches(text)), None)
    # Where it is no topology file, the other readers decide whether it is anything.
    with suppress(InputError):
        yield read_machine(data, name)
    pasted = first is None or first.name.startswith(("nvidia-smi", "p2p", "lspci"))
    for reader in READERS if pasted else ():
        if reader is first or reader.name not in _SECOND_READERS or not reader.matches(text):
            continue
        module, function = reader.parser.split(".")
        parse = getattr(importlib.import_module(f"linkbound.topology.{module}"), function)
        try:
            other: Machine = parse(text, name)
        except InputError:
            continue
        # A row `GPU0 X` of one matrix looks like a row of the other: only what it adds counts.
        if "topo" not in reader.name or any(path.kind or path.status for path in other.pairs):
            yield other
