"""A sweep: jobs in children one after the other; what hangs or fails is left out and the rest
goes on in a fresh child (L6, DESIGN 1).
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from linkbound.evidence.types import Finding
from linkbound.links.live.cell import Cell, CopyJob
from linkbound.links.live.condemn import condemned_by_row
from linkbound.links.live.jobs import STALL_S, End, JobResult, run_job
from linkbound.links.live.rows import LinkRow
from linkbound.links.live.station import without_figure
from linkbound.values import Value

WORKER = "worker_copies"
MOST_CHILDREN = 12
"""Of one job: a machine on which more cells than that hang has shown what it is."""
LIMIT_S = 3600.0
"""Of one child, far above the largest sweep: silence ends a child long before."""

OnRow = Callable[[Cell | None, LinkRow], None]
OnCell = Callable[[Cell], None]


class Swept(Value, frozen=True, kw_only=True):
    """What came of all jobs."""

    rows: tuple[LinkRow, ...]
    findings: tuple[Finding, ...]
    children: int
    log: str
    """The last words of children that did not end well."""


class _Watch:
    """Follows one child: which cell it is in, and what its rows condemn."""

    def __init__(self, job: CopyJob, on_cell: OnCell, on_row: OnRow) -> None:
        self._job = job
        self._on_cell = on_cell
        self._on_row = on_row
        self._begun = 0
        self.condemned = set(job.condemned)

    @property
    def at(self) -> int:
        """Index of the cell that began last; -1 while the child starts."""
        return self._begun - 2

    @property
    def cell(self) -> Cell | None:
        return self._job.cells[self.at] if 0 <= self.at < len(self._job.cells) else None

    def begin(self, _title: str) -> None:
        self._begun += 1
        if self.cell is not None:
            self._on_cell(self.cell)

    def row(self, row: LinkRow) -> None:
        if row.wrong and self.cell is not None:
            self.condemned |= condemned_by_row(row, self.cell)
        self._on_row(self.cell, row)


def sweep(
    jobs: Sequence[CopyJob],
    environment: Mapping[str, str],
    *,
    on_cell: OnCell,
    on_row: OnRow,
    stall_s: float = STALL_S,
) -> Swept:
    """Run all jobs to their ends. Rows come through `on_row` as they are written."""
    kept = _Kept(on_row)
    for job in jobs:
        if not kept.stuck:
            _run_through(job, environment, kept, on_cell, stall_s)
    return Swept(
        rows=tuple(kept.rows),
        findings=tuple(kept.findings),
        children=kept.children,
        log="\n".join(kept.logs),
    )


class _Kept:
    """What all children gave so far."""

    def __init__(self, on_row: OnRow) -> None:
        self._on_row = on_row
        self.rows: list[LinkRow] = []
        self.findings: list[Finding] = []
        self.logs: list[str] = []
        self.children = 0
        self.stuck = False

    def row(self, cell: Cell | None, row: LinkRow) -> None:
        self.rows.append(row)
        self._on_row(cell, row)

    def result(self, result: JobResult) -> None:
        self.children += 1
        self.findings += result.findings
        self.stuck = result.stuck
        if result.end is not End.DONE:
            self.logs.append(result.log)

    def leave(self, cells: Sequence[Cell], job: CopyJob, text: str) -> None:
        """Rows of cells that are not run any more."""
        for cell in cells:
            self.row(cell, without_figure(cell, job.arm, "not-run", text))


def _run_through(
    job: CopyJob, environment: Mapping[str, str], kept: _Kept, on_cell: OnCell, stall_s: float
) -> None:
    """One job, in a fresh child after each that failed."""
    rest: CopyJob | None = job
    for _ in range(MOST_CHILDREN):
        if rest is None:
            return
        watch = _Watch(rest, on_cell, kept.row)
        result = run_job(
            WORKER,
            rest,
            environment,
            LIMIT_S,
            on_row=watch.row,
            on_begin=watch.begin,
            stall_s=stall_s,
        )
        kept.result(result)
        rest = _rest(rest, watch, result, kept)
    if rest is not None:
        kept.leave(rest.cells, rest, f"{MOST_CHILDREN} children had failed before it.")


def _rest(job: CopyJob, watch: _Watch, result: JobResult, kept: _Kept) -> CopyJob | None:
    """The job without what was done and what failed; None where nothing is left to do."""
    if result.end is End.DONE:
        return None
    failed = watch.cell
    if failed is None or result.stuck:
        # Without a start, or with a child that cannot be killed, no further one would fare better.
        left = job.cells[max(watch.at, 0) :]
        kept.leave(left, job, "The child before it could not be started or ended.")
        return None
    text = result.findings[-1].seen
    kept.row(failed, without_figure(failed, job.arm, result.end.value, text))
    cells = job.cells[watch.at + 1 :]
    condemned = tuple(sorted(watch.condemned | failed.condemned_by))
    return structs.replace(job, cells=cells, condemned=condemned) if cells else None
