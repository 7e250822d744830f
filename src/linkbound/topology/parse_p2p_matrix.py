"""Reads what the driver and the CUDA runtime say about peer access, by ordered pair (M2, M4).

`nvidia-smi topo -p2p r|w|n|a|p`, and the first lines of p2pBandwidthLatencyTest.
"""

import re

from linkbound.errors import InputError
from linkbound.topology.identifiers import normal_bus_id
from linkbound.topology.matrix import is_gpu, plain_lines, read_matrix
from linkbound.topology.types import Capability, Gpu, Machine, Pair, PairPath, PeerStatus

_STATUS = {status.value: status for status in PeerStatus if status is not PeerStatus.DENIED}
_LETTER = {
    "r": Capability.READ,
    "w": Capability.WRITE,
    "n": Capability.NVLINK,
    "a": Capability.ATOMICS,
    "p": Capability.PCI,
}
_FILE_NAME = re.compile(r"p2p[-_ ]?([rwnap])(?![a-z0-9])", re.IGNORECASE)
_DEVICE = re.compile(
    r"Device:\s*(\d{1,4}), {0,4}(.{1,200}?),\s{0,4}pciBusID:\s*([0-9a-fA-F]{1,2}),"
    r"\s*pciDeviceID:\s*([0-9a-fA-F]{1,2}),\s*pciDomainID:\s*([0-9a-fA-F]{1,8})"
)
_ACCESS = re.compile(r"Device=(\d{1,4}) (CAN|CANNOT) Access Peer Device=(\d{1,4})")


def is_status(word: str) -> bool:
    """Whether a cell is an answer of the driver: OK, CNS, ..."""
    return word == "X" or word in _STATUS


def parse_p2p_matrix(text: str, source: str, capability: Capability | None = None) -> Machine:
    """The driver's answer for each ordered pair.

    The text does not say which capability was asked for: without `capability` the file's name
    decides (`topo-p2p-w.txt`), else it is taken as read and a note says so.
    """
    matrix = read_matrix(text, source, is_status)
    notes = list(matrix.notes)
    if capability is None:
        found = _FILE_NAME.search(source)
        capability = _LETTER[found[1].lower()] if found else Capability.READ
        if not found:
            notes.append(f"{source} does not say which capability it is about; taken as read.")
    pairs = tuple(
        PairPath(pair=Pair(src=row.device, dst=device), status={capability: _STATUS[cell]})
        for row in matrix.rows
        for device, cell in zip(matrix.devices, row.cells, strict=False)
        if device != row.device and is_gpu(row.device) and is_gpu(device)
    )
    gpus = tuple(Gpu(key=name, label=name) for name in matrix.devices if is_gpu(name))
    return Machine(sources=(source,), gpus=gpus, pairs=pairs, notes=tuple(notes))


def parse_peer_access(text: str, source: str) -> Machine:
    """GPUs with names and bus ids, and what cudaDeviceCanAccessPeer answered for each pair."""
    lines = plain_lines(text)
    printed = {found[1]: found for line in lines if (found := _DEVICE.search(line))}
    gpus = {ordinal: _gpu(found) for ordinal, found in printed.items()}
    answers = [found for line in lines if (found := _ACCESS.search(line))]
    if not gpus and not answers:
        raise InputError(
            f"{source}: no line 'Device=0 CAN Access Peer Device=1'.",
            why="Nothing on peer access can be taken from this file.",
            hint="Give the output of p2pBandwidthLatencyTest from its first line on.",
        )
    if len({gpu.key for gpu in gpus.values()}) < len(gpus):
        raise InputError(
            f"{source}: two devices have the same bus id.",
            why="Which GPU is meant cannot be told.",
            hint="Give the output of one run on one host.",
        )
    for found in answers:
        for ordinal in (found[1], found[3]):
            gpus.setdefault(ordinal, Gpu(key=f"GPU{ordinal}", label=f"GPU{ordinal}"))
    pairs = {
        (found[1], found[3]): PairPath(
            pair=Pair(src=gpus[found[1]].key, dst=gpus[found[3]].key),
            status={Capability.ACCESS: PeerStatus.OK if found[2] == "CAN" else PeerStatus.DENIED},
        )
        for found in answers
    }
    return Machine(
        sources=(source,),
        gpus=tuple(gpus[ordinal] for ordinal in sorted(gpus, key=int)),
        pairs=tuple(pairs.values()),
        notes=("GPU numbers are CUDA ordinals of the test: a bus id says which GPU it is.",),
    )


def _gpu(found: re.Match[str]) -> Gpu:
    ordinal, model, bus, device, domain = found.groups()
    bus_id = normal_bus_id(f"{domain}:{bus}:{device}.0")
    return Gpu(
        key=bus_id or f"GPU{ordinal}",
        label=f"GPU{ordinal}",
        bus_id=bus_id,
        vendor="NVIDIA",
        model=model,
    )
