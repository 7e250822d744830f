"""Reads `nvidia-smi topo -m`: what joins each ordered pair, and each GPU's processors (M1, M4).

All formats: with or without NICs, NUMA columns, legend, tabs; also cut ones.
"""

import re

from linkbound.errors import InputError
from linkbound.topology.identifiers import cpus_of_list
from linkbound.topology.matrix import Matrix, Row, is_gpu, plain_lines, read_matrix
from linkbound.topology.types import (
    Device,
    DeviceKind,
    Gpu,
    Machine,
    NicPath,
    NumaNode,
    Pair,
    PairPath,
    PathKind,
)

# SOC is what drivers before 390 or so printed for a path between sockets.
_WORDS = {"X": PathKind.SELF, "SOC": PathKind.SYS, "C2C": PathKind.C2C}
_WORDS |= {kind.value: kind for kind in PathKind if kind not in (PathKind.SELF, PathKind.NVLINK)}
_NVLINK = re.compile(r"NV(\d{1,3})")
_NIC_NAME = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*")
_NUMA_WORD = re.compile(r"NUMA\s+(\d{1,4})", re.IGNORECASE)
_ABSENT = frozenset(("N/A", "n/a", ""))


def is_link(word: str) -> bool:
    """Whether a cell of the matrix is a link's word: PIX, NV4, ..."""
    return word in _WORDS or _NVLINK.fullmatch(word) is not None


def parse_topo_matrix(text: str, source: str) -> Machine:
    """The machine that the matrix shows; pairs that it does not show are not there."""
    matrix = read_matrix(text, source, is_link)
    rows = {row.device: row for row in matrix.rows}
    notes = list(matrix.notes)
    gpus = tuple(
        _gpu(name, rows.get(name), matrix, notes) for name in matrix.devices if is_gpu(name)
    )
    if not gpus:
        raise InputError(
            f"{source}: the matrix names no GPU, only {', '.join(matrix.devices[:4])}.",
            why="Nothing about links between GPUs can be taken from it.",
            hint="Give the whole output of nvidia-smi topo -m.",
        )
    nics = tuple(name for name in matrix.devices if not is_gpu(name))
    return Machine(
        sources=(source,),
        gpus=gpus,
        devices=_nics(nics, text),
        pairs=_pairs(matrix),
        nic_paths=_nic_paths(matrix, rows, nics),
        numa_nodes=_numa_nodes(gpus),
        notes=tuple(notes),
    )


def _gpu(name: str, row: Row | None, matrix: Matrix, notes: list[str]) -> Gpu:
    if row is None:
        return Gpu(key=name, label=name)
    printed = _affinity(row, matrix.columns)
    facts = {}
    numa_node = None
    numa = printed.get("NUMA Affinity")
    if numa and numa.isdecimal():
        numa_node = int(numa)
    elif numa:
        facts["numa_affinity"] = numa
        notes.append(f"{name} is near to several NUMA nodes ({numa}); no single node is stated.")
    cpus = printed.get("CPU Affinity")
    if cpus and cpus_of_list(cpus) is None:
        facts["cpu_affinity"] = cpus
        notes.append(f"The CPU affinity of {name} is cut off: '{cpus}'.")
        cpus = None
    if own := printed.get("GPU NUMA ID"):
        facts["gpu_numa_id"] = own
    if beyond := printed.get("beyond"):
        notes.append(f"Not understood at the end of row {name}: '{beyond[:60]}'.")
    return Gpu(key=name, label=name, numa_node=numa_node, cpu_affinity=cpus or None, facts=facts)


def _affinity(row: Row, columns: tuple[str, ...]) -> dict[str, str]:
    """What stands right of the links, by heading; a value that is N/A is left out."""
    if not columns:
        return _without_heading(row.rest.strip())
    words = row.rest.split()
    if len(words) < len(columns) and "\t" in row.rest:
        # An empty affinity is seen only while the tabs are there; the last heading has one
        # tab more in front of it than the others.
        words = [cell.strip() for cell in row.rest.split("\t")][1:]
        if len(words) > len(columns):
            words = [*words[: len(columns) - 1], words[-1]]
    elif len(words) < len(columns):
        words = _by_look(words, columns)
    found = {name: word for name, word in zip(columns, words, strict=False) if word not in _ABSENT}
    beyond = " ".join(words[len(columns) :])
    return found | ({"beyond": beyond} if beyond else {})


def _by_look(words: list[str], columns: tuple[str, ...]) -> list[str]:
    """Cells in the order of the headings where some are missing: a list of CPUs shows itself."""
    cells = dict.fromkeys(columns, "")
    for word in words:
        if word in _ABSENT:
            continue
        name = "CPU Affinity" if re.search(r"[-,]", word) else "NUMA Affinity"
        if cells.get(name) == "":
            cells[name] = word
    return list(cells.values())


def _without_heading(rest: str) -> dict[str, str]:
    found = _NUMA_WORD.fullmatch(rest)
    if found:
        return {"NUMA Affinity": found[1]}
    return {"beyond": rest} if rest else {}


def _nics(names: tuple[str, ...], text: str) -> tuple[Device, ...]:
    found = (_NIC_NAME.fullmatch(line) for line in plain_lines(text))
    legend = {entry[1]: entry[2] for entry in found if entry}
    return tuple(
        Device(
            key=name,
            kind=DeviceKind.NIC,
            label=name,
            facts={"name": known}
            if (known := legend.get(name) or (None if name.startswith("NIC") else name))
            else {},
        )
        for name in names
    )


def _kind(word: str) -> tuple[PathKind, int | None]:
    found = _NVLINK.fullmatch(word)
    return (PathKind.NVLINK, int(found[1])) if found else (_WORDS[word], None)


def _pairs(matrix: Matrix) -> tuple[PairPath, ...]:
    pairs = []
    for row in matrix.rows:
        for device, word in zip(matrix.devices, row.cells, strict=False):
            if device != row.device and is_gpu(row.device) and is_gpu(device):
                kind, count = _kind(word)
                pair = Pair(src=row.device, dst=device)
                pairs.append(PairPath(pair=pair, kind=kind, nvlink_count=count))
    return tuple(pairs)


def _nic_paths(matrix: Matrix, rows: dict[str, Row], nics: tuple[str, ...]) -> tuple[NicPath, ...]:
    """From the GPU's row, or from the NIC's row where the GPU's is missing."""
    cells = {
        (row.device, device): word
        for row in rows.values()
        for device, word in zip(matrix.devices, row.cells, strict=False)
    }
    return tuple(
        NicPath(gpu=gpu, nic=nic, kind=_kind(word)[0])
        for gpu in matrix.devices
        if is_gpu(gpu)
        for nic in nics
        if (word := cells.get((gpu, nic)) or cells.get((nic, gpu)))
    )


def _numa_nodes(gpus: tuple[Gpu, ...]) -> tuple[NumaNode, ...]:
    """The nodes that GPUs are near to; their processors where all GPUs of a node agree."""
    affinities: dict[int, set[str]] = {}
    for gpu in gpus:
        if gpu.numa_node is not None:
            affinities.setdefault(gpu.numa_node, set()).update(
                (gpu.cpu_affinity,) if gpu.cpu_affinity else ()
            )
    return tuple(
        NumaNode(index=index, cpus=next(iter(cpus)) if len(cpus) == 1 else None)
        for index, cpus in sorted(affinities.items())
    )
