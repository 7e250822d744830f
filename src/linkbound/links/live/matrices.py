"""A sweep as text: one matrix a method, latencies, staging, contention, and what is missing (L1).

Titles say direction and initiator; what was not measured is a word with a footnote.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from linkbound.evidence.stats import cov
from linkbound.evidence.types import Finding
from linkbound.links.live.rows import HOST, Direction, LinkRow
from linkbound.links.live.tasks import METHODS, Method
from linkbound.links.types import Arm, Operation
from linkbound.units import format_significant, format_size, format_time

_COLUMN_GAP = "  "
_NO_FIGURE = frozenset({"check-only", "counters-only"})
Table = list[tuple[str, ...]]


def render_links(rows: Sequence[LinkRow], labels: Sequence[str]) -> str:
    """All sections that there are rows for, ending with footnotes."""
    notes = Footnotes()
    blocks = [
        *_rate_matrices(rows, labels, notes),
        *_host_table(rows, notes),
        *_staging_table(rows),
        *_latency_table(rows, notes),
        *_piece_table(rows),
        *_together_table(rows),
        *_counter_table(rows),
    ]
    if notes.lines:
        blocks.append("\n".join(notes.lines))
    return "\n\n".join(blocks) + "\n"


class Footnotes:
    """Words for cells without a figure, numbered where they first appear."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[str, int] = {}

    def cell(self, row: LinkRow) -> str:
        """`hang[1]`, with the sentence in the footnotes."""
        assert row.reason is not None
        text = row.reason.text
        if text not in self._numbers:
            self._numbers[text] = len(self._numbers) + 1
            self.lines.append(f"[{self._numbers[text]}] {text}")
        return f"{row.reason.code}[{self._numbers[text]}]"


def render_findings(findings: Iterable[Finding]) -> str:
    """Each finding as its code and three sentences."""
    return "\n".join(f"{one.code}: {one.seen} {one.why} {one.remedy}" for one in findings)


def gigabytes_per_s(rate: float) -> str:
    """Two decimals below 100, else three digits and one decimal of GB/s."""
    value = rate / 1e9
    return f"{value:,.2f}" if value < 99.995 else f"{value:,.1f}"


def align(table: Table) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(_COLUMN_GAP.join(cells).rstrip())
    return "\n".join(lines)


def _rate_matrices(
    rows: Sequence[LinkRow], labels: Sequence[str], notes: Footnotes
) -> Iterator[str]:
    """Sustained rates, or where none was asked for the largest size."""
    for method in Method:
        for direction in Direction:
            for node in _nodes(rows, method):
                cells = _largest(rows, method, direction, node)
                if cells:
                    yield _matrix(cells, labels, method, direction, node, notes)


def _nodes(rows: Sequence[LinkRow], method: Method) -> list[int | None]:
    return list(dict.fromkeys(row.numa_node for row in rows if row.method == method))


def _largest(
    rows: Sequence[LinkRow], method: Method, direction: Direction, node: int | None
) -> dict[tuple[str, str], LinkRow]:
    """For each pair the row with the most calls of the largest size, or the reason for none."""
    found: dict[tuple[str, str], LinkRow] = {}
    for row in rows:
        if row.method != method or row.direction is not direction or row.numa_node != node:
            continue
        if HOST in row.group or len(row.group) != 2 or row.concurrency != "alone":
            continue
        if row.reason is not None and row.reason.code in _NO_FIGURE:
            continue
        pair = (row.group[0], row.group[1])
        held = found.get(pair)
        if held is None or _weight(row) > _weight(held):
            found[pair] = row
    return found


def _weight(row: LinkRow) -> tuple[int, bool, int, int]:
    """A failure outweighs all speeds, its cause what follows from it; then sustained windows."""
    rank = 0
    if row.reason is not None and row.reason.code not in _NO_FIGURE:
        rank = 1 if row.reason.code == "path-failed" else 2
    return rank, row.calls > 1, row.calls * row.size_bytes, row.size_bytes


def _matrix(
    cells: dict[tuple[str, str], LinkRow],
    labels: Sequence[str],
    method: Method,
    direction: Direction,
    node: int | None,
    notes: Footnotes,
) -> str:
    arrow = "->" if direction is Direction.ONE_WAY else "<->"
    measured = [row for row in cells.values() if row.samples_s]
    where = "" if node is None else f", buffer on node {node}"
    peer = {"p2p": "P2P on", "staged": "P2P off"}.get(str(METHODS[method].arm), "")
    total = ", total of both ways" if direction is Direction.BOTH_WAYS else ""
    title = f"GPU(row) {arrow} GPU(column), {method}{where}, {peer}, {_sizes(measured)}"
    title += f"median GB/s{total}{_quality(measured)}"
    table: Table = [("", *labels)]
    for src in labels:
        table.append((src, *(_cell(cells, src, dst, notes) for dst in labels)))
    return f"{title}\n{METHODS[method].text}\n{align(table)}"


def _cell(cells: dict[tuple[str, str], LinkRow], src: str, dst: str, notes: Footnotes) -> str:
    if src == dst:
        return "-"
    row = cells.get((src, dst))
    if row is None:
        other = cells.get((dst, src))
        if other is not None and other.direction is Direction.BOTH_WAYS:
            row = other
    if row is None:
        return "not asked"
    rate = row.bytes_per_s
    return notes.cell(row) if rate is None and row.reason else gigabytes_per_s(rate or 0.0)


def _sizes(rows: Sequence[LinkRow]) -> str:
    sizes = sorted({row.size_bytes for row in rows})
    return "" if not sizes else " and ".join(format_size(size) for size in sizes) + ", "


def _quality(rows: Sequence[LinkRow]) -> str:
    """`  (n=5, worst CoV 0.8 %)` and how many rows carry a flag."""
    if not rows:
        return ""
    counts = sorted({len(row.samples_s) for row in rows})
    spreads = [spread for row in rows if (spread := cov(row.samples_s)) is not None]
    n = str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
    worst = f", worst CoV {max(spreads) * 100:.1f} %" if spreads else ""
    flags = sorted({flag.value for row in rows for flag in row.flags})
    flagged = f", flagged {', '.join(flags)}" if flags else ""
    return f"  (n={n}{worst}{flagged})"


def _host_table(rows: Sequence[LinkRow], notes: Footnotes) -> Iterator[str]:
    kept: dict[tuple[object, ...], LinkRow] = {}
    for row in rows:
        noted = row.reason is not None and row.reason.code in _NO_FIGURE
        if HOST not in row.group or row.concurrency != "alone" or noted:
            continue
        key = (row.group, row.direction, row.numa_node)
        if key not in kept or _weight(row) > _weight(kept[key]):
            kept[key] = row
    if not kept:
        return
    slots = _slots(rows)
    table: Table = [
        ("host links, pinned", "size", "GB/s", "each way", "n", "node", "slot under load")
    ]
    for row in kept.values():
        arrow = " -> " if row.direction is Direction.ONE_WAY else " <-> "
        rate = row.bytes_per_s
        shown = notes.cell(row) if rate is None and row.reason else gigabytes_per_s(rate or 0.0)
        each = " + ".join(gigabytes_per_s(one) for one in row.each_way_bytes_per_s) or "-"
        node = "any" if row.numa_node is None else str(row.numa_node)
        size = format_size(row.size_bytes)
        slot = next((slots[label] for label in row.group if label in slots), "not read")
        cells = (arrow.join(row.group), size, shown, each, str(len(row.samples_s)), node)
        table.append((*cells, slot))
    yield align(table)


def _slots(rows: Iterable[LinkRow]) -> dict[str, str]:
    """`Gen5 x16` of each GPU, as its driver said while copies went through the host."""
    found: dict[str, str] = {}
    for row in rows:
        for label in row.group:
            generation = row.facts.get(f"{label} pcie_generation")
            width = row.facts.get(f"{label} pcie_width")
            if row.arm is Arm.STAGED and generation and width:
                found[label] = f"Gen{generation} x{width}"
    return found


def _staging_table(rows: Sequence[LinkRow]) -> Iterator[str]:
    """The best way through the host for each pair, and what all ways cost the CPU."""
    found = [row for row in rows if row.cpu_s_per_gb is not None and row.samples_s]
    if not found:
        return
    table: Table = [("sustained", "pair", "GB/s", "CPU s per GB", "best of its arm")]
    best: dict[tuple[object, ...], float] = {}
    for row in found:
        key = (row.group, row.arm)
        best[key] = max(best.get(key, 0.0), row.bytes_per_s or 0.0)
    for row in found:
        rate = row.bytes_per_s or 0.0
        is_best = rate == best[row.group, row.arm] and HOST not in row.group
        cells = (row.method, " -> ".join(row.group), gigabytes_per_s(rate))
        table.append((*cells, f"{row.cpu_s_per_gb:.4f}", "best" if is_best else "-"))
    yield align(table)


def _latency_table(rows: Sequence[LinkRow], notes: Footnotes) -> Iterator[str]:
    found = [row for row in rows if row.operation is Operation.LATENCY]
    methods = dict.fromkeys(row.method for row in found)
    if not methods:
        return
    pairs = dict.fromkeys(row.group for row in found)
    table: Table = [("latency, median us", *(" -> ".join(pair) for pair in pairs), "n")]
    for method in methods:
        cells = {row.group: row for row in found if row.method == method}
        counts = [len(row.samples_s) for row in cells.values()]
        shown = [_latency(cells.get(pair), notes) for pair in pairs]
        table.append((method, *shown, str(min(counts))))
    yield align(table)


def _latency(row: LinkRow | None, notes: Footnotes) -> str:
    if row is None:
        return "not asked"
    if row.time_s is None:
        return notes.cell(row) if row.reason else "none valid"
    return format_significant(row.time_s * 1e6)


def _piece_table(rows: Sequence[LinkRow]) -> Iterator[str]:
    found = [row for row in rows if "piece_bytes" in row.facts and row.samples_s]
    if found:
        table: Table = [("the same bytes in pieces", "pair", "bytes", "pieces", "time", "GB/s")]
        for row in found:
            pair, size = " -> ".join(row.group), format_size(row.size_bytes)
            rate, spent_s = row.bytes_per_s or 0.0, median(row.samples_s)
            cells = (row.method, pair, size, f"{row.pieces:,}", format_time(spent_s))
            table.append((*cells, gigabytes_per_s(rate)))
        yield align(table)


def _together_table(rows: Sequence[LinkRow]) -> Iterator[str]:
    found = [row for row in rows if row.retained_share is not None]
    if found:
        table: Table = [("at the same time", "copy", "method", "GB/s", "retained")]
        for row in found:
            rate, share = row.bytes_per_s or 0.0, row.retained_share or 0.0
            cells = (row.concurrency, " -> ".join(row.group), row.method)
            table.append((*cells, gigabytes_per_s(rate), f"{share * 100:.0f} %"))
        yield align(table)


def _counter_table(rows: Sequence[LinkRow]) -> Iterator[str]:
    """What the hardware counted for a known number of bytes: proof of the path."""
    found = [row for row in rows if row.counters]
    if found:
        names = ("nvlink_tx", "pcie_tx", "pcie_rx")
        table: Table = [("counted by the hardware", "pair", "moved GB", "GB by GPU")]
        for row in found:
            moved = int(row.facts.get("moved_bytes", "0")) / 1e9
            counted = ", ".join(
                f"{key.removesuffix('_bytes')} {count / 1e9:.2f}"
                for key, count in row.counters.items()
                if any(name in key for name in names)
            )
            table.append((row.method, " -> ".join(row.group), f"{moved:.2f}", counted))
        yield align(table)
