"""A machine as text: its tree, the matrix of links, and all that is unknown or disputed (M1, M2).

The matrix has the shape of `nvidia-smi topo -m`; a word stands where nothing is known.
"""

import textwrap
from collections.abc import Sequence

from linkbound.report.topology_tree import Branch, machine_tree
from linkbound.topology.types import (
    Capability,
    Gpu,
    Machine,
    PathKind,
    PeerStatus,
)
from linkbound.units import format_capacity, format_rate

WIDTH = 100
"""Columns of a page; wider matrices are split into blocks, never cut."""
UNKNOWN = "unknown"
_LEGEND = {
    PathKind.NVLINK: "NV#   # NVLinks, direct or through NVSwitch",
    PathKind.XGMI: "XGMI  a direct link between AMD GPUs",
    PathKind.C2C: "C2C   a coherent chip-to-chip link",
    PathKind.PIX: "PIX   at most one PCIe switch",
    PathKind.PXB: "PXB   several PCIe switches, no host bridge",
    PathKind.PHB: "PHB   through a PCIe host bridge (the CPU)",
    PathKind.NODE: "NODE  between host bridges of one NUMA node",
    PathKind.SYS: "SYS   between NUMA nodes (socket to socket)",
}
_STATUS = {
    PeerStatus.OK: "OK      granted",
    PeerStatus.CHIPSET_NOT_SUPPORTED: "CNS     chipset not supported",
    PeerStatus.GPU_NOT_SUPPORTED: "GNS     GPU not supported",
    PeerStatus.TOPOLOGY_NOT_SUPPORTED: "TNS     topology not supported",
    PeerStatus.DISABLED_BY_REGKEY: "DR      disabled by a driver setting",
    PeerStatus.NOT_SUPPORTED: "NS      not supported",
    PeerStatus.DENIED: "denied  refused without a reason",
    PeerStatus.UNKNOWN: "U       the driver does not know",
}
_ASKED = {
    Capability.READ: "read, says the driver",
    Capability.WRITE: "write, says the driver",
    Capability.NVLINK: "NVLink, says the driver",
    Capability.ATOMICS: "atomics, says the driver",
    Capability.PCI: "PCI path, says the driver",
    Capability.ACCESS: "peer access, says the CUDA runtime",
    Capability.NATIVE_ATOMICS: "atomics over the link, says CUDA",
}


def render_topology_text(machine: Machine) -> str:
    """The whole machine as text of at most 100 columns, ending with a line feed."""
    parts = [_heading(machine)]
    if machine.gpus:
        parts += [_gpu_table(machine), _tree(machine), _links(machine)]
        parts += [_peers(machine, one) for one in Capability if _asked(machine, one)]
        parts += [_ranks(machine), _link_errors(machine)]
        parts.append(_legend(machine))
    parts += [_contradictions(machine), _listed("Notes", machine.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(machine: Machine) -> str:
    counts = [f"{len(machine.gpus)} GPUs" if len(machine.gpus) != 1 else "1 GPU"]
    nodes = len(machine.numa_nodes)
    counts.append(f"{nodes} NUMA nodes" if nodes != 1 else "1 NUMA node")
    text = ", ".join(counts if nodes else [*counts[:1], "NUMA nodes unknown"])
    lines = [f"Machine: {text}", f"From: {', '.join(machine.sources) or UNKNOWN}"]
    lines += [f"{name}: {value}" for name, value in machine.host.items()]
    return "\n".join(lines)


def _gpu_table(machine: Machine) -> str:
    rows = [["GPU", "model", "memory", "bus id", "PCIe now", "PCIe max", "NVLinks", "NUMA"]]
    rows += [_gpu_row(gpu) for gpu in machine.gpus]
    known = [0] + [
        at for at in range(1, len(rows[0])) if any(row[at] != UNKNOWN for row in rows[1:])
    ]
    unknown = [name for at, name in enumerate(rows[0]) if at not in known]
    table = _columns([[row[at] for at in known] for row in rows])
    return table + (f"\nUnknown for every GPU: {', '.join(unknown)}." if unknown else "")


def _gpu_row(gpu: Gpu) -> list[str]:
    pcie = gpu.pcie
    up = [link for link in gpu.nvlinks if link.active is not False]
    rates = {link.bytes_per_s for link in up}
    rate = rates.pop() if len(rates) == 1 else None
    links = f"{len(up)} of {len(gpu.nvlinks)} up" if len(up) < len(gpu.nvlinks) else f"{len(up)}"
    return [
        gpu.label,
        gpu.model or gpu.device_id or UNKNOWN,
        UNKNOWN if gpu.memory_bytes is None else format_capacity(gpu.memory_bytes),
        gpu.bus_id or UNKNOWN,
        UNKNOWN if pcie is None else _slot(pcie.gt_per_s, pcie.width),
        UNKNOWN if pcie is None else _slot(pcie.max_gt_per_s, pcie.max_width),
        UNKNOWN if not gpu.nvlinks else links + (f" x {format_rate(rate)}" if rate else ""),
        UNKNOWN if gpu.numa_node is None else str(gpu.numa_node),
    ]


def _slot(gt_per_s: float | None, width: int | None) -> str:
    parts = (f"{gt_per_s:g} GT/s" if gt_per_s else "", f"x{width}" if width else "")
    return " ".join(part for part in parts if part) or UNKNOWN


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _tree(machine: Machine) -> str:
    lines: list[str] = []
    for root in machine_tree(machine):
        _grow(root, "", "", lines)
    return "Tree\n" + "\n".join(lines)


def _grow(branch: Branch, first: str, rest: str, lines: list[str]) -> None:
    lines.append(f"  {first}{branch.text}")
    for at, child in enumerate(branch.children):
        last = at == len(branch.children) - 1
        _grow(child, rest + ("`- " if last else "|- "), rest + ("   " if last else "|  "), lines)


def _links(machine: Machine) -> str:
    """Rows and columns are GPUs, then NICs, then each GPU's processors."""
    nics = _nics(machine)
    nic_kinds = {(path.gpu, path.nic): path.kind.value for path in machine.nic_paths}
    labels = {(path.pair.src, path.pair.dst): path.label for path in machine.pairs}
    heads = [gpu.label for gpu in machine.gpus] + [label for _, label in nics]
    rows = []
    for gpu in machine.gpus:
        cells = [
            "X" if other.key == gpu.key else labels.get((gpu.key, other.key)) or UNKNOWN
            for other in machine.gpus
        ]
        cells += [nic_kinds.get((gpu.key, key), UNKNOWN) for key, _ in nics]
        cells += [gpu.cpu_affinity or UNKNOWN]
        cells += [UNKNOWN if gpu.numa_node is None else str(gpu.numa_node)]
        rows.append((gpu.label, cells))
    table = _blocks([*heads, "CPU affinity", "NUMA"], rows)
    return "Links, GPU(row) -> GPU(column) and NIC\n" + table


def _nics(machine: Machine) -> list[tuple[str, str]]:
    """NICs about which any source says how near they are."""
    near = {path.nic for path in machine.nic_paths}
    return [(device.key, device.label) for device in machine.devices if device.key in near]


def _blocks(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table as blocks of whole columns, each block at most WIDTH wide."""
    widths = [
        max(len(head), *(len(cells[at]) for _, cells in rows)) for at, head in enumerate(heads)
    ]
    first = max(len(label) for label, _ in rows)
    blocks: list[list[int]] = [[]]
    used = first
    for at, width in enumerate(widths):
        if blocks[-1] and used + 2 + width > WIDTH:
            blocks.append([])
            used = first
        blocks[-1].append(at)
        used += 2 + width
    return "\n\n".join(
        _columns(
            [["", *(heads[at] for at in block)]]
            + [[label, *(cells[at] for at in block)] for label, cells in rows]
        )
        for block in blocks
    )


def _asked(machine: Machine, capability: Capability) -> bool:
    return any(capability in path.status for path in machine.pairs)


def _peers(machine: Machine, capability: Capability) -> str:
    status = {(path.pair.src, path.pair.dst): path.status.get(capability) for path in machine.pairs}
    rows = []
    for gpu in machine.gpus:
        found = [status.get((gpu.key, other.key)) for other in machine.gpus]
        cells = [UNKNOWN if one is None else one.value for one in found]
        own = machine.gpus.index(gpu)
        rows.append((gpu.label, [*cells[:own], "X", *cells[own + 1 :]]))
    table = _blocks([gpu.label for gpu in machine.gpus], rows)
    return f"Peers, GPU(row) -> GPU(column): {_ASKED[capability]}\n{table}"


def _ranks(machine: Machine) -> str:
    """CUDA's order of the pairs, where it tells them apart."""
    ranks = {(path.pair.src, path.pair.dst): path.performance_rank for path in machine.pairs}
    if len({rank for rank in ranks.values() if rank is not None}) < 2:
        return ""
    rows = []
    for gpu in machine.gpus:
        found = [(other.key == gpu.key, ranks.get((gpu.key, other.key))) for other in machine.gpus]
        cells = ["X" if own else UNKNOWN if one is None else str(one) for own, one in found]
        rows.append((gpu.label, cells))
    table = _blocks([gpu.label for gpu in machine.gpus], rows)
    return f"Performance rank, GPU(row) -> GPU(column), says CUDA: lower is faster\n{table}"


def _link_errors(machine: Machine) -> str:
    """Links that counted errors; a link at zero is not worth a line."""
    lines = [
        f"{gpu.label} link {link.index}: "
        + ", ".join(f"{name} {count:,}" for name, count in link.errors.items() if count)
        for gpu in machine.gpus
        for link in gpu.nvlinks
        if any(link.errors.values())
    ]
    return _listed("NVLink errors since the driver was loaded", lines)


def _legend(machine: Machine) -> str:
    """Only the words that stand above."""
    kinds = {path.kind for path in machine.pairs} | {path.kind for path in machine.nic_paths}
    status = {answer for path in machine.pairs for answer in path.status.values()}
    lines = [text for kind, text in _LEGEND.items() if kind in kinds]
    lines += [text for answer, text in _STATUS.items() if answer in status]
    if any(path.derived for path in machine.pairs):
        lines.append("Links were worked out from the tree where no tool printed them.")
    return _listed("Legend", lines)


def _contradictions(machine: Machine) -> str:
    lines = [
        f"{one.what}: " + "; ".join(f"{claim.source} says {claim.value}" for claim in one.claims)
        for one in machine.contradictions
    ]
    return _listed("Sources disagree (the first source's value is used)", lines)


def _listed(title: str, lines: Sequence[str]) -> str:
    wrapped = (
        textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ")
        for line in lines
    )
    return "\n".join([title, *wrapped]) if lines else ""
