"""The cells of a job in order, and a row of each cell's report (L4)."""

from collections.abc import Iterable, Iterator, Mapping

from linkbound.evidence.types import Reason
from linkbound.links.collectives import OPERATIONS, bus_factor
from linkbound.links.live.collective_buffers import runs_in_place
from linkbound.links.live.collective_layout import layout
from linkbound.links.live.collective_measure import ENOUGH_SPREAD, FEW, spread
from linkbound.links.live.collective_types import (
    DTYPE_BYTES,
    GRAPH_MOST_BYTES,
    Cell,
    CollectiveJob,
    Placement,
    Processes,
    RankReport,
)
from linkbound.links.live.rows import Flag, LinkRow
from linkbound.links.types import Launch, Operation

NCCL_WAYS = (("nccl", ""),)
"""NCCL is one implementation without variants."""
UNDER_WORK = "while all GPUs do fma work"
NAMES = {operation: name for name, operation in OPERATIONS.items()}
"""The test of nccl-tests that an operation is."""


def cells_of(job: CollectiveJob, ways: Iterable[tuple[str, str]]) -> Iterator[Cell]:
    """Every cell that exists, an operation's smallest first; `ways` are implementations, each
    with its variant.
    """
    ways = tuple(ways)
    for operation in job.operations:
        for size_bytes in sorted(job.sizes_bytes):
            for implementation, variant in ways:
                for launch in job.launches:
                    for placement in job.placements:
                        cell = Cell(
                            operation=operation,
                            implementation=implementation,
                            variant=variant,
                            size_bytes=size_bytes,
                            launch=launch,
                            placement=placement,
                        )
                        if _worth_timing(job, cell):
                            yield cell


def _worth_timing(job: CollectiveJob, cell: Cell) -> bool:
    """Whether the cell exists, moves anything, and its launch can matter."""
    hidden = cell.launch is Launch.GRAPH and cell.size_bytes > GRAPH_MOST_BYTES
    return (
        runs_in_place(cell)
        and sent_bytes(job, cell) > 0
        and not (hidden and Launch.EAGER in job.launches)
    )


def sent_bytes(job: CollectiveJob, cell: Cell) -> int:
    """Bytes that the cell really moves, in nccl-tests' counting: equal shares round down."""
    element_bytes = DTYPE_BYTES[job.dtype]
    shape = layout(
        cell.operation,
        rank=0,
        ranks=len(job.group),
        elements=cell.size_bytes // element_bytes,
    )
    return max(shape.sent, shape.received) * element_bytes


def method_of(job: CollectiveJob, cell: Cell) -> str:
    """What was called, in words: one curve is of one method."""
    words = [f"{cell.implementation} {NAMES[cell.operation]} {job.dtype}"]
    if cell.variant:
        words.append(cell.variant)
    if cell.placement is Placement.IN_PLACE:
        words.append("in place")
    if job.processes is Processes.ONE_FOR_ALL:
        words.append("one process")
    return ", ".join(words)


def title_of(job: CollectiveJob, cell: Cell) -> str:
    """What a child says that it is about to do."""
    return f"{method_of(job, cell)}, {cell.launch}, {cell.size_bytes:,} bytes"


def row_of(job: CollectiveJob, cell: Cell, report: RankReport, facts: Mapping[str, str]) -> LinkRow:
    """The row of a cell that ran: wrong elements leave no time."""
    return _row(job, cell, report, facts, reason=_reason(report))


def row_without(job: CollectiveJob, cell: Cell, reason: Reason) -> LinkRow:
    """The row of a cell that did not run, and why."""
    return _row(job, cell, RankReport(), {}, reason=reason)


def busbw_bytes_per_s(operation: Operation, ranks: int, size_bytes: int, time_s: float) -> float:
    """Bus bandwidth in nccl-tests' sense, of one call of `size_bytes` in `time_s` seconds."""
    return size_bytes / time_s * bus_factor(NAMES[operation], ranks)


def _row(
    job: CollectiveJob,
    cell: Cell,
    report: RankReport,
    facts: Mapping[str, str],
    reason: Reason | None,
) -> LinkRow:
    samples = report.samples_s if reason is None else ()
    return LinkRow(
        operation=cell.operation,
        implementation=cell.implementation,
        method=method_of(job, cell),
        group=job.group,
        arm=job.arm,
        launch=cell.launch,
        concurrency=UNDER_WORK if job.work else "alone",
        size_bytes=sent_bytes(job, cell),
        samples_s=samples,
        calls=report.calls,
        wrong=report.wrong,
        wrong_at_bytes=report.wrong_at_bytes,
        flags=_flags(job, samples),
        facts={
            "dtype": job.dtype,
            "placement": cell.placement.value,
            "processes": job.processes.value,
            **facts,
        },
        reason=reason,
    )


def _reason(report: RankReport) -> Reason | None:
    if report.wrong:
        return Reason(code="wrong-values", text=f"{report.wrong:,} elements were wrong: no time.")
    if report.work_ended:
        text = "The work beside ended before the samples did: they say nothing about it."
        return Reason(code="work-ended", text=text)
    return None


def _flags(job: CollectiveJob, samples: tuple[float, ...]) -> tuple[Flag, ...]:
    cut = FEW <= len(samples) < job.samples and spread(samples) > ENOUGH_SPREAD
    return (Flag.UNSTEADY,) if cut else ()
