"""Machines that do not exist, as the files that tools would print of them.

`write` makes a folder that `--machine` takes: `nvidia-smi topo -m`, p2pBandwidthLatencyTest, tables
of nccl-tests for the groups that somebody would time, and a manifest. No figure is of a real
machine.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

H100 = "NVIDIA H100 80GB HBM3"
RTX_4090 = "NVIDIA GeForce RTX 4090"
SIZES_BYTES = tuple(1024 * 4**power for power in range(11))


class Link(NamedTuple):
    """A link as copies and collectives see it."""

    label: str
    """As `nvidia-smi topo -m` prints it."""
    direct: float
    """GB/s of a copy with peer access."""
    staged: float
    latency_us: float = 8.0
    """Of a small collective call with peer access; staged it takes `staged_us`."""
    staged_us: float = 20.0
    granted: bool = True


NVLINK = Link("NV6", direct=130.0, staged=20.0)
SAME_SOCKET = Link("NODE", direct=22.0, staged=14.0, latency_us=14.0)
ACROSS = Link("SYS", direct=12.0, staged=9.0, latency_us=20.0, staged_us=30.0)


class Made(NamedTuple):
    """What a machine is made of."""

    name: str
    link: Callable[[int, int], Link]
    """How two GPUs are joined, by their numbers."""
    model: str = H100
    memory: str = "80GiB"
    gpus: int = 8
    nodes: tuple[int, ...] = ()
    """NUMA node of each GPU; none: all are near node 0."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Groups over which collectives were timed."""


def islands(size: int, beside: Link = SAME_SOCKET) -> Callable[[int, int], Link]:
    """NVLink islands of `size` GPUs, four GPUs on each of two sockets."""

    def link(one: int, other: int) -> Link:
        if one // size == other // size:
            return NVLINK
        return beside if one // 4 == other // 4 else ACROSS

    return link


EIGHT = Made(
    name="eight",
    link=islands(4),
    nodes=(0, 0, 0, 0, 1, 1, 1, 1),
    groups=((0, 1), (0, 1, 2, 3), (0, 4), (0, 1, 4, 5), tuple(range(8))),
)
"""Two NVLink islands of four, a socket each."""
PCIE_PAIR = Made(
    name="pcie-pair",
    link=lambda _one, _other: SAME_SOCKET,
    gpus=2,
    groups=((0, 1),),
)
"""Two GPUs on PCIe."""


def write(folder: Path, made: Made) -> Path:
    """Write the files of `made` into FOLDER/NAME; returns that folder."""
    target = folder / made.name
    target.mkdir()
    (target / "topo-m.txt").write_text(_topology(made))
    (target / "p2p-test.txt").write_text(_copies(made))
    for group in made.groups:
        name = "-".join(map(str, group))
        for arm in ("on", "off"):
            for collective in ("all_reduce", "sendrecv"):
                for graph in (0, 10):
                    text = _table(made, group, arm == "on", collective, graph)
                    kind = "graph." if graph else ""
                    (target / f"{collective}.{name}.{kind}p2p-{arm}.txt").write_text(text)
    (target / "machine.toml").write_text(
        f'note = "{made.name}: made up"\nengine_from = "h200-pair"\n\n'
        f'[memory]\n"{made.model}" = "{made.memory}"\n'
    )
    return target


def _cell(made: Made, one: int, other: int) -> str:
    return "X" if one == other else made.link(one, other).label


def _topology(made: Made) -> str:
    numbers = range(made.gpus)
    head = "\t".join(["", *(f"GPU{number}" for number in numbers)])
    rows = [f"{head}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for one in numbers:
        node = made.nodes[one] if made.nodes else 0
        cells = [f"{_cell(made, one, other):^5}" for other in numbers]
        rows.append(
            "\t".join([f"GPU{one}", *cells, f"{node * 32}-{node * 32 + 31}", str(node), "N/A"])
        )
    return "\n".join(rows) + "\n"


def _copies(made: Made) -> str:
    numbers = range(made.gpus)
    lines = ["[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]"]
    lines += [
        f"Device: {one}, {made.model}, pciBusID: {one + 1:x}, pciDeviceID: 0, pciDomainID:0"
        for one in numbers
    ]
    lines += [
        f"Device={one} {'CAN' if made.link(one, other).granted else 'CANNOT'} Access Peer "
        f"Device={other}"
        for one in numbers
        for other in numbers
        if one != other
    ]
    head = "     D\\D" + "".join(f"{one:>6}" for one in numbers)
    lines += ["", "P2P Connectivity Matrix", head]
    lines += [
        f"     {one}\t" + "".join(f"{int(_granted(made, one, other)):>6}" for other in numbers)
        for one in numbers
    ]
    for title, both, direct in (
        ("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", 1.0, False),
        ("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", 1.0, True),
        ("Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)", 1.3, False),
        ("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)", 1.9, True),
    ):
        lines += [title, "   D\\D" + "".join(f"{one:>8}" for one in numbers)]
        lines += [
            f"{one:>6} "
            + "".join(f"{_rate(made, one, other, direct) * both:>8.2f}" for other in numbers)
            for one in numbers
        ]
    for title, direct in (
        ("P2P=Disabled Latency Matrix (us)", False),
        ("P2P=Enabled Latency (P2P Writes) Matrix (us)", True),
    ):
        for clock in ("GPU", "CPU"):
            heading = [title] if clock == "GPU" else [""]
            lines += [*heading, f"   {clock}" + "".join(f"{one:>8}" for one in numbers)]
            lines += [
                f"{one:>6} "
                + "".join(f"{_latency(made, one, other, direct):>8.2f}" for other in numbers)
                for one in numbers
            ]
    return "\n".join(lines) + "\n"


def _granted(made: Made, one: int, other: int) -> bool:
    return one == other or made.link(one, other).granted


def _rate(made: Made, one: int, other: int, direct: bool) -> float:
    if one == other:
        return 1500.0
    link = made.link(one, other)
    return link.direct if direct and link.granted else link.staged


def _latency(made: Made, one: int, other: int, direct: bool) -> float:
    if one == other:
        return 1.2
    return 1.5 if direct and made.link(one, other).granted else 16.0


def _table(made: Made, group: Sequence[int], direct: bool, collective: str, graph: int) -> str:
    """A table of nccl-tests: latency and bytes over the slowest pair of the group."""
    pairs = [made.link(one, other) for one in group for other in group if one != other]
    open_to = [direct and link.granted for link in pairs]
    latency_us = max(
        link.latency_us if yes else link.staged_us for link, yes in zip(pairs, open_to, strict=True)
    )
    rate = min(
        link.direct if yes else link.staged for link, yes in zip(pairs, open_to, strict=True)
    )
    ranks = len(group)
    wire = 2 * (ranks - 1) / ranks if collective == "all_reduce" else 1.0
    latency_us *= 1 + 0.15 * (ranks - 2)
    latency_us *= 1.0 if graph else 2.5
    lines = [
        "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809",
        f"# Collective test starting: {collective}_perf",
        f"# nThread 1 nGpus {ranks} minBytes 1024 maxBytes {SIZES_BYTES[-1]} step: 4(factor) "
        f"warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: {graph} unalign: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:>2} Group  0 Pid    100 on     madeup device {number:>2} "
            f"[0000:00:{number + 1:02x}] {made.model}"
            for rank, number in enumerate(group)
        ),
        "#",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
        "      (us)  (GB/s)  (GB/s)",
    ]
    redop = "sum" if collective == "all_reduce" else "none"
    for size in SIZES_BYTES:
        time_us = latency_us + size * wire / (rate * 1e3)
        cells = f"{time_us:>8.2f} {size / time_us / 1e3:>7.2f} {size / time_us / 1e3:>7.2f} {0:>7}"
        lines.append(f"{size:>12} {size // 4:>13} {'float':>9} {redop:>7} {-1:>7} {cells} {cells}")
    lines += [
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 1.0",
        "#",
        f"# Collective test concluded: {collective}_perf",
    ]
    return "\n".join(lines) + "\n"
