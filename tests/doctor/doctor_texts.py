"""Outputs of tools as they are printed, for any number of GPUs and any figures."""

from collections.abc import Callable

Cell = Callable[[int, int], float]


def matrix(title: str, gpus: int, cell: Cell, corner: str = "D\\D") -> str:
    head = f"   {corner} " + " ".join(f"{number:6d}" for number in range(gpus))
    rows = [
        f"{src:6d} "
        + " ".join(f"{900.0 if src == dst else cell(src, dst):.2f}" for dst in range(gpus))
        for src in range(gpus)
    ]
    return "\n".join((title, head, *rows, ""))


def enabled(gpus: int, cell: Cell) -> str:
    return matrix("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", gpus, cell)


def disabled(gpus: int, cell: Cell) -> str:
    return matrix("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", gpus, cell)


def latency(switch: str, gpus: int, cell: Cell) -> str:
    writes = " (P2P Writes)" if switch == "Enabled" else ""
    return matrix(f"P2P={switch} Latency{writes} Matrix (us)", gpus, cell, corner="GPU") + "\n"


def devices(names: list[str], first_bus: int = 1) -> str:
    lines = [
        f"Device: {number}, {name}, pciBusID: {first_bus + number:x}, pciDeviceID: 0, pciDomainID:0"
        for number, name in enumerate(names)
    ]
    return "\n".join(("[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]", *lines, ""))


def access(gpus: int, granted: Callable[[int, int], bool] = lambda _src, _dst: True) -> str:
    return "".join(
        f"Device={src} {'CAN' if granted(src, dst) else 'CANNOT'} Access Peer Device={dst}\n"
        for src in range(gpus)
        for dst in range(gpus)
        if src != dst
    )


def topo(
    gpus: int, label: Callable[[int, int], str], node: Callable[[int], str] | None = None
) -> str:
    """`nvidia-smi topo -m`, with a NUMA column where `node` is given."""
    columns = [f"GPU{number}" for number in range(gpus)]
    columns += ["CPU Affinity", "NUMA Affinity"] if node else []
    rows = []
    for src in range(gpus):
        cells = [" X " if src == dst else label(src, dst) for dst in range(gpus)]
        cells += ["0-31", node(src)] if node else []
        rows.append("\t".join((f"GPU{src}", *cells)))
    return "\n".join(("\t" + "\t".join(columns), *rows, ""))


def peers(gpus: int, status: Callable[[int, int], str]) -> str:
    """`nvidia-smi topo -p2p r`, with its legend."""
    rows = [
        " \t".join(
            (f" GPU{src}", *("X" if src == dst else status(src, dst) for dst in range(gpus)))
        )
        for src in range(gpus)
    ]
    legend = "\nLegend:\n\n  X    = Self\n  GNS  = GPU not supported\n  DR   = Disabled by regkey\n"
    return "\n".join((" \t" + "\t".join(f"GPU{n}" for n in range(gpus)), *rows, legend))


def nvlink(name: str, states: list[bool], rate: str = "26.562", index: int = 0) -> str:
    lines = [
        f"\t Link {number}: {f'{rate} GB/s' if up else '<inactive>'}"
        for number, up in enumerate(states)
    ]
    return "\n".join((f"GPU {index}: {name} (UUID: GPU-{index})", *lines, ""))


def channel(src: int, dst: int, via: str) -> str:
    return f"hostA:1:1 [{src}] NCCL INFO Channel 00/0 : {src}[{src}] -> {dst}[{dst}] via {via}\n"


def bandwidths(name: str, arrow: str, gpus: int, cell: Cell, rows: int | None = None) -> str:
    """One test of nvbandwidth; `rows=1` for the tests that print one row."""
    lines = []
    for row in range(rows or gpus):
        cells = [
            "N/A" if rows is None and row == column else f"{cell(row, column):.2f}"
            for column in range(gpus)
        ]
        lines.append(f" {row} " + " ".join(f"{one:>9}" for one in cells))
    head = " " * 11 + "".join(f"{number:10d}" for number in range(gpus))
    title = f"memcpy CE {arrow} bandwidth (GB/s)"
    return "\n".join((f"Running {name}.", title, head, *lines, "", f"SUM {name} 1.0", "", ""))


def nccl_tests(names: list[str], column: str, cell: str, hosts: list[str] | None = None) -> str:
    """A table of one row; `column` is `#wrong` or the old `error`."""
    ranks = [
        f"#  Rank {number:2d} Pid    100 on {(hosts or ['hostA'] * len(names))[number]} device "
        f" {number} [0x{number + 1:02x}] {name}"
        for number, name in enumerate(names)
    ]
    half = f"1215.9   55.19   55.19 {cell:>6}"
    return "\n".join(
        (
            "# nThread 1 nGpus 2 minBytes 8 maxBytes 67108864 step: 2(factor) graph: 0",
            "# Using devices",
            *ranks,
            "#                                      out-of-place                in-place",
            f"#       size         count      type   redop     time   algbw   busbw {column} "
            f"time   algbw   busbw {column}",
            "#        (B)    (elements)                       (us)  (GB/s)  (GB/s)",
            f"    67108864      16777216     float     sum   {half}  {half}",
            "# Out of bounds values : 0 OK",
            "# Avg bus bandwidth    : 55.19",
            "",
        )
    )
