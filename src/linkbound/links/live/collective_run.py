"""The jobs of a sweep of collectives in children, with their logs and findings (L4, L6)."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from linkbound.errors import MissingExtra
from linkbound.evidence.child import MULTICAST_GUARDS, child_environment
from linkbound.evidence.types import Finding, Level, Reason, Severity
from linkbound.links.arms import nccl_environment
from linkbound.links.live import nccl_library
from linkbound.links.live.collective_evidence import last_words, log_environment, read_logs
from linkbound.links.live.collective_rows import NCCL_WAYS, cells_of, row_without, title_of
from linkbound.links.live.collective_types import CollectiveJob, Family
from linkbound.links.live.jobs import End, JobResult, run_job
from linkbound.links.live.rows import LinkRow
from linkbound.links.live.state import State
from linkbound.values import Value

# A variable of the user's must not decide which path an arm takes.
_DROPPED = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_FILE",
)
STALL_S = 40.0
"""Without a word for so long, a child hangs: 1 GiB over shared memory of a slow host takes half."""
CONTRADICTIONS = ("transport-contradicts-arm", "transport-unproven")


class CollectiveResult(Value, frozen=True, kw_only=True):
    """What came of one job."""

    job: CollectiveJob
    """After a failure: the part of it that ran last."""
    rows: tuple[LinkRow, ...]
    rows_of_job: int
    """Rows of `job` itself: after a failure, `rows` has those of the attempts before too."""
    findings: tuple[Finding, ...]
    log: str
    """All ranks' NCCL logs; empty where NCCL was not used."""
    end: End
    begun: str | None
    """What it was doing when it hung or failed."""
    stuck: bool
    duration_s: float
    environment: dict[str, str]
    """The variables that made the arm."""
    counters: Mapping[str, int] = {}
    """Growth of the GPUs' byte counters over the job: the path's proof that no log can fake."""


def run_collectives(
    jobs: Iterable[CollectiveJob],
    *,
    on_row: Callable[[LinkRow], None] | None = None,
    on_begin: Callable[[str], None] | None = None,
    state: State | None = None,
) -> Iterator[CollectiveResult]:
    """Run the jobs one after the other; after a GPU that cannot be freed no more are started."""
    for job in jobs:
        result = run_one(job, on_row=on_row, on_begin=on_begin, state=state)
        yield result
        if result.stuck:
            return


def run_one(
    job: CollectiveJob,
    *,
    on_row: Callable[[LinkRow], None] | None = None,
    on_begin: Callable[[str], None] | None = None,
    state: State | None = None,
) -> CollectiveResult:
    """Run one job in a child of its own, in the environment of its arm; `state` gives the GPUs'
    byte counters.

    Where an operation hangs or fails, its cells are left out and those after it get a fresh child.
    """
    if job.family is Family.NCCL and not nccl_library.candidates():
        return _not_run(job, nccl_library.missing())
    before = byte_counters(job, state)
    result = _attempted(job, on_row, on_begin)
    grown = growth(before, byte_counters(job, state))
    return msgspec.structs.replace(result, counters=grown)


def _attempted(
    job: CollectiveJob,
    on_row: Callable[[LinkRow], None] | None,
    on_begin: Callable[[str], None] | None,
) -> CollectiveResult:
    """One attempt, and those after it that a failure makes possible."""
    result = _attempt(job, on_row, on_begin)
    while not result.stuck and (rest := after_failure(result)) is not None:
        if on_row:
            for row in rest.lost:
                on_row(row)
        if rest.job is None:
            return msgspec.structs.replace(result, rows=(*result.rows, *rest.lost))
        result = _joined(result, rest.lost, _attempt(rest.job, on_row, on_begin))
    return result


def byte_counters(job: CollectiveJob, state: State | None) -> dict[str, int]:
    """The hardware's counters of the job's GPUs by now, `GPU0 nvlink_tx_bytes`."""
    if state is None:
        return {}
    return {
        f"{label} {name}": count
        for label, uuid in zip(job.group, job.uuids, strict=False)
        if uuid is not None
        for name, count in state.counters(uuid).items()
    }


def growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how many bytes each counter grew; one that wrapped says nothing."""
    return {
        name: after[name] - count
        for name, count in before.items()
        if name in after and after[name] >= count
    }


class Rest(Value, frozen=True, kw_only=True):
    """What a failure left undone: rows that say so, and the job of the operations after it."""

    lost: tuple[LinkRow, ...]
    job: CollectiveJob | None


def after_failure(result: CollectiveResult) -> Rest | None:
    """What is left of a job that hung or failed; None where it ran to its end.

    Only NCCL's cells are known from here. A child that failed before its first cell would do so
    again.
    """
    if result.end is End.DONE or result.job.family is not Family.NCCL:
        return None
    job, cells = result.job, list(cells_of(result.job, NCCL_WAYS))
    done = result.rows_of_job
    if done == len(cells):
        return None
    failed = cells[done].operation
    reason = Reason(code=f"after-{result.end}", text=f"Not run: {result.findings[-1].seen}")
    later = job.operations[job.operations.index(failed) + 1 :]
    again = bool(later) and result.begun == title_of(job, cells[done])
    lost = [cell for cell in cells[done:] if cell.operation is failed or not again]
    return Rest(
        lost=tuple(row_without(job, cell, reason) for cell in lost),
        job=msgspec.structs.replace(job, operations=later) if again else None,
    )


def _joined(
    first: CollectiveResult, lost: Sequence[LinkRow], second: CollectiveResult
) -> CollectiveResult:
    """Both attempts; how the later one ended says whether a third is needed."""
    return msgspec.structs.replace(
        second,
        rows=(*first.rows, *lost, *second.rows),
        findings=(*first.findings, *second.findings),
        log=first.log + second.log,
        duration_s=first.duration_s + second.duration_s,
    )


def _attempt(
    job: CollectiveJob,
    on_row: Callable[[LinkRow], None] | None,
    on_begin: Callable[[str], None] | None,
) -> CollectiveResult:
    with tempfile.TemporaryDirectory(prefix="linkbound-nccl-") as folder:
        environment = environment_of(job, Path(folder))
        ended = run_job(
            "worker_collectives",
            job,
            child_environment(environment, drop=_DROPPED),
            job.limit_s,
            on_row=on_row,
            on_begin=on_begin,
            stall_s=STALL_S,
        )
        log = read_logs(Path(folder))
    return CollectiveResult(
        job=job,
        rows=ended.rows,
        rows_of_job=len(ended.rows),
        findings=(*path_findings(job, ended.rows), *_with_log(ended, log)),
        log=log,
        end=ended.end,
        begun=ended.begun,
        stuck=ended.stuck,
        duration_s=ended.duration_s,
        environment=environment,
    )


def _not_run(job: CollectiveJob, error: MissingExtra) -> CollectiveResult:
    finding = Finding(
        code="nccl-missing",
        level=Level.SEEN,
        severity=Severity.WARNING,
        seen=error.seen,
        why=error.why,
        remedy=error.hint,
    )
    return CollectiveResult(
        job=job,
        rows=(),
        rows_of_job=0,
        findings=(finding,),
        log="",
        end=End.DONE,
        begun=None,
        stuck=False,
        duration_s=0.0,
        environment={},
    )


def environment_of(job: CollectiveJob, folder: Path) -> dict[str, str]:
    """The variables of a job: its arm, NCCL's log where NCCL runs, multicast off."""
    if job.family is not Family.NCCL:
        return dict(MULTICAST_GUARDS)
    return {**nccl_environment(job.arm), **MULTICAST_GUARDS, **log_environment(folder)}


def path_findings(job: CollectiveJob, rows: Iterable[LinkRow]) -> tuple[Finding, ...]:
    """One finding where the path was not the arm's, however many rows say so."""
    reasons = {row.reason for row in rows if row.reason and row.reason.code in CONTRADICTIONS}
    return tuple(
        Finding(
            code=reason.code,
            level=Level.SEEN,
            severity=Severity.WARNING,
            seen=f"{', '.join(job.group)}, arm {job.arm}: {reason.text}",
            why="A time of another path under this arm's name would make the comparison wrong.",
            remedy="Read what NCCL's log says of the pair; linkbound doctor names the causes.",
        )
        for reason in sorted(reasons, key=lambda each: (each.code, each.text))
    )


def _with_log(ended: JobResult, log: str) -> tuple[Finding, ...]:
    """The findings of the job; one that ended it carries NCCL's last words."""
    if ended.end is End.DONE or not log:
        return ended.findings
    *before, last = ended.findings
    told = msgspec.structs.replace(last, seen=f"{last.seen} NCCL's log ends: {last_words(log)}")
    return (*before, told)
