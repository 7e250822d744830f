"""Which inputs may be of one machine: names, bus ids and hosts must not contradict (M3).

Files that name different GPUs, hosts or bus ids are different machines, and nothing is compared
across them.
"""

import re
from collections.abc import Iterable, Iterator

from linkbound.doctor.parts import model_of
from linkbound.doctor.types import Facts, RateMatrix
from linkbound.topology.types import Machine, PathKind
from linkbound.values import Value


class Identity(Value, frozen=True, kw_only=True):
    """What one input says of whose output it is; empty parts say nothing."""

    gpus: int | None
    """How many GPUs a whole listing has; None where it may be a part."""
    models: frozenset[str] = frozenset()
    buses: frozenset[str] = frozenset()
    """Domain and bus, `0000:0a`."""
    hosts: frozenset[str] = frozenset()


def identity(facts: Facts, source: str) -> Identity:
    """What all readers together found in one input."""
    machines = [machine for machine in facts.machines if source in machine.sources]
    runs = [run for run in facts.runs if run.source == source]
    logs = [log for log in facts.logs if log.source == source]
    gpus = [gpu for machine in machines for gpu in machine.gpus]
    devices = [device for run in runs for device in run.devices]
    matrices = [matrix for matrix in facts.matrices if matrix.source == source]
    buses = [
        *(gpu.bus_id for gpu in gpus),
        *(device.bus_id for device in devices),
        *(comm.bus_id for log in logs for comm in log.communicators),
        *(line.bus_id for line in facts.pci_lines if line.place.source == source),
    ]
    counts = [len(machine.gpus) for machine in machines if len(machine.gpus) > 1]
    counts += [len(matrix.gpus) for matrix in matrices]
    return Identity(
        gpus=max(counts, default=None),
        models=frozenset(_plain(name) for gpu in gpus if (name := model_of(gpu)))
        | frozenset(_plain(device.name) for device in devices if device.name),
        buses=frozenset(bus for text in buses if text and (bus := _bus(text))),
        hosts=frozenset(device.host for device in devices),
    )


def may_be_same(one: Identity, other: Identity) -> bool:
    """Whether nothing that both say differs."""
    return not any(
        ours and theirs and not ours & theirs
        for ours, theirs in (
            (one.models, other.models),
            (one.buses, other.buses),
            (one.hosts, other.hosts),
        )
    )


def same_gpus(one: Identity, other: Identity) -> bool:
    """Whether labels of the two may be compared: one machine, equally many GPUs."""
    return may_be_same(one, other) and None is not one.gpus == other.gpus


def maps_of(facts: Facts, matrix: RateMatrix) -> Iterator[Machine]:
    """The machines that show how the GPUs of `matrix` are joined, by the same labels."""
    ours = identity(facts, matrix.source)
    for machine in facts.machines:
        mapped = any(path.kind for path in machine.pairs)
        alike = mapped and len(machine.gpus) == len(matrix.gpus)
        if alike and may_be_same(ours, identity(facts, machine.sources[0])):
            yield machine


def kinds(machine: Machine) -> dict[tuple[str, str], PathKind]:
    """The path of each ordered pair of labels, where the machine says."""
    labels = {gpu.key: gpu.label for gpu in machine.gpus}
    return {
        (labels[path.pair.src], labels[path.pair.dst]): path.kind
        for path in machine.pairs
        if path.kind is not None
    }


def sources(machines: Iterable[Machine]) -> tuple[str, ...]:
    """The files behind machines, once each."""
    return tuple(dict.fromkeys(name for machine in machines for name in machine.sources))


def _plain(name: str) -> str:
    """`v100-sxm2-32gb` of `NVIDIA V100-SXM2-32GB` and of `Tesla V100-SXM2-32GB`."""
    return re.sub(r"^(?:nvidia|tesla|geforce|quadro|amd)\s+", "", _once(name.lower()))


def _once(name: str) -> str:
    return re.sub(r"^nvidia\s+", "", name).strip()


def _bus(printed: str) -> str | None:
    """Domain and bus of `0000:1d:00.0`, `0000:1d:00`, `0x1d` and of NCCL's number `1d000`."""
    text = printed.lower().removeprefix("0x")
    if found := re.fullmatch(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):[0-9a-f]{2}(?:\.[0-7])?", text):
        return f"{(found[1] or '0000')[-4:]}:{found[2]}"
    if not re.fullmatch(r"[0-9a-f]{1,12}", text):
        return None
    number = int(text, 16)
    if len(text) <= 2:
        return f"0000:{number:02x}"
    return f"{number >> 20 & 0xFFFF:04x}:{number >> 12 & 0xFF:02x}"
