"""`rocm-smi --showtopo`: weight, hops and link type per pair, NUMA node per GPU (M1 M4).

Hops are AMD's class of a path (1 XGMI, 2 one CPU, 3 two CPUs), never a number of links.
"""

import re
from collections.abc import Iterator, Mapping

from linkbound.errors import InputError
from linkbound.topology.pci import refuse_too_long
from linkbound.topology.types import (
    Capability,
    Gpu,
    Machine,
    NumaNode,
    Pair,
    PairPath,
    PathKind,
    PeerStatus,
)

_SECTION = re.compile(r"^=+ ?([A-Za-z][^=]{0,60}?) ?=+\s*$")
_LABEL = re.compile(r"^GPU(\d{1,3})$")
_NUMA = re.compile(r"^GPU\[(\d{1,3})\]\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?\d{1,5})\s*$")
_WEIGHT = "Weight between two GPUs"
_HOPS = "Hops between two GPUs"
_TYPE = "Link Type between two GPUs"
_ACCESS = "Link accessibility between two GPUs"
_NUMA_NODES = "Numa Nodes"
_KNOWN = (_WEIGHT, _HOPS, _TYPE, _ACCESS, _NUMA_NODES)
_KINDS = {"XGMI": PathKind.XGMI}
_STATUS = {"True": PeerStatus.OK, "False": PeerStatus.DENIED}

Cells = dict[tuple[str, str], str]


def parse_rocm_smi(text: str, source: str) -> Machine:
    """The GPUs and ordered pairs of `--showtopo`. Raises InputError where no section is found."""
    refuse_too_long(text, source)
    sections = dict(_sections(text))
    matrices = {name: _matrix(lines) for name, lines in sections.items() if name in _KNOWN}
    numa, affinity = _numa(sections.get(_NUMA_NODES, []))
    labels = sorted(
        {name for cells in matrices.values() for pair in cells for name in pair} | set(numa),
        key=lambda label: int(label[3:]),
    )
    if not labels:
        raise InputError(
            f"{source}: nothing of `rocm-smi --showtopo` in it.",
            why="No section such as `Link Type between two GPUs` with GPUs below it was found.",
            hint="Write the file with `rocm-smi --showtopo`.",
        )
    return Machine(
        sources=(source,),
        gpus=tuple(_gpu(label, matrices, numa, affinity) for label in labels),
        pairs=tuple(_pair(src, dst, matrices) for src in labels for dst in labels if src != dst),
        numa_nodes=tuple(NumaNode(index=node) for node in sorted(set(numa.values())) if node >= 0),
        notes=tuple(_notes(sections, matrices, numa, source)),
    )


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", list[str]()
    for line in text.splitlines():
        heading = _SECTION.match(line)
        if not heading:
            lines.append(line)
            continue
        yield name, lines
        name, lines = heading.group(1), []
    yield name, lines


def _matrix(lines: list[str]) -> Cells:
    """Cells by row and column label; the diagonal and short rows give none."""
    columns: list[str] = []
    cells: Cells = {}
    for line in lines:
        words = line.split()
        labels = [_label(word) for word in words[:1024]]
        if words and all(labels):
            columns = [label for label in labels if label]
        elif labels and labels[0] and columns:
            row = labels[0]
            for column, value in zip(columns, words[1:], strict=False):
                if column != row:
                    cells[row, column] = value
    return cells


def _label(word: str) -> str | None:
    found = _LABEL.match(word)
    return f"GPU{int(found.group(1))}" if found else None


def _numa(lines: list[str]) -> tuple[dict[str, int], dict[str, str]]:
    node: dict[str, int] = {}
    affinity: dict[str, str] = {}
    for line in lines:
        found = _NUMA.match(line)
        if found and found.group(2) == "Node":
            node[f"GPU{int(found.group(1))}"] = int(found.group(3))
        elif found:
            affinity[f"GPU{int(found.group(1))}"] = found.group(3)
    return node, affinity


def _gpu(
    label: str,
    matrices: Mapping[str, Cells],
    numa: Mapping[str, int],
    affinity: Mapping[str, str],
) -> Gpu:
    node = numa.get(label)
    facts = {
        f"{name.split(' between')[0]} to {dst}": value
        for name in (_WEIGHT, _TYPE)
        for (src, dst), value in matrices.get(name, {}).items()
        if src == label
    }
    if node is not None:
        facts["numa_node"] = str(node)
    if label in affinity:
        facts["Numa Affinity"] = affinity[label]
    return Gpu(
        key=label,
        label=label,
        vendor="AMD",
        numa_node=node if node is not None and node >= 0 else None,
        facts=facts,
    )


def _pair(src: str, dst: str, matrices: Mapping[str, Cells]) -> PairPath:
    said = {name: cells.get((src, dst), "") for name, cells in matrices.items()}
    hops = said.get(_HOPS, "")
    access = _STATUS.get(said.get(_ACCESS, ""))
    return PairPath(
        pair=Pair(src=src, dst=dst),
        # PCIE says only that it is not XGMI: bridges, host bridges and sockets look alike.
        kind=_KINDS.get(said.get(_TYPE, "")),
        hops=int(hops) if re.fullmatch(r"[1-9]\d{0,3}", hops) else None,
        status={Capability.ACCESS: access} if access else {},
    )


def _notes(
    sections: Mapping[str, list[str]],
    matrices: Mapping[str, Cells],
    numa: Mapping[str, int],
    source: str,
) -> Iterator[str]:
    if "PCIE" in matrices.get(_TYPE, {}).values():
        yield (
            f"{source}: PCIE pairs: rocm-smi does not say whether a switch, a host bridge or "
            "the link between sockets joins them."
        )
    if matrices.get(_HOPS):
        yield (
            f"{source}: hops are AMD's class of a path (1 XGMI, 2 through one CPU, "
            "3 through two CPUs), not a number of links."
        )
    if not numa:
        cut = "is empty" if _NUMA_NODES in sections else "is missing"
        yield f"{source}: the section `{_NUMA_NODES}` {cut}: no GPU's NUMA node is known."
    for label, node in numa.items():
        if node < 0:
            yield f"{source}: {label} has NUMA node {node}, which means unknown."
