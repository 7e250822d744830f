"""The jobs of a sweep of collectives in children, with their logs and findings (L4, L6)."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from linkbound.errors import MissingExtra
from linkbound.evidence.child import MULTICAST_GUARDS, child_environment
from linkbound.evidence.types import Finding, Level, Severity
from linkbound.links.arms import nccl_environment
from linkbound.links.live import nccl_library
from linkbound.links.live.collective_evidence import last_words, log_environment, read_logs
from linkbound.links.live.collective_types import CollectiveJob, Family
from linkbound.links.live.jobs import End, JobResult, run_job
from linkbound.links.live.rows import LinkRow
from linkbound.values import Value

_GUARDS = {name: "1" if "DISABLE" in name else "0" for name in MULTICAST_GUARDS}
"""Every guard in its closed position, whatever the parent's environment has."""
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
CONTRADICTIONS = ("transport-contradicts-arm", "transport-unproven")


class CollectiveResult(Value, frozen=True, kw_only=True):
    """What came of one job."""

    job: CollectiveJob
    rows: tuple[LinkRow, ...]
    findings: tuple[Finding, ...]
    log: str
    """All ranks' NCCL logs; empty where NCCL was not used."""
    end: End
    stuck: bool
    duration_s: float
    environment: dict[str, str]
    """The variables that made the arm."""


def run_collectives(
    jobs: Iterable[CollectiveJob],
    *,
    on_row: Callable[[LinkRow], None] | None = None,
    on_begin: Callable[[str], None] | None = None,
) -> Iterator[CollectiveResult]:
    """Run the jobs one after the other; after a GPU that cannot be freed no more are started."""
    for job in jobs:
        result = run_one(job, on_row=on_row, on_begin=on_begin)
        yield result
        if result.stuck:
            return


def run_one(
    job: CollectiveJob,
    *,
    on_row: Callable[[LinkRow], None] | None = None,
    on_begin: Callable[[str], None] | None = None,
) -> CollectiveResult:
    """Run one job in a child of its own, in the environment of its arm."""
    if job.family is Family.NCCL and not nccl_library.candidates():
        return _not_run(job, nccl_library.missing())
    with tempfile.TemporaryDirectory(prefix="linkbound-nccl-") as folder:
        environment = environment_of(job, Path(folder))
        ended = run_job(
            "worker_collectives",
            job,
            child_environment(environment, drop=_DROPPED),
            job.limit_s,
            on_row=on_row,
            on_begin=on_begin,
        )
        log = read_logs(Path(folder))
    return CollectiveResult(
        job=job,
        rows=ended.rows,
        findings=(*_with_log(ended, log), *path_findings(job, ended.rows)),
        log=log,
        end=ended.end,
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
        findings=(finding,),
        log="",
        end=End.DONE,
        stuck=False,
        duration_s=0.0,
        environment={},
    )


def environment_of(job: CollectiveJob, folder: Path) -> dict[str, str]:
    """The variables of a job: its arm, NCCL's log where NCCL runs, multicast off."""
    if job.family is not Family.NCCL:
        return dict(_GUARDS)
    return {**nccl_environment(job.arm), **_GUARDS, **log_environment(folder)}


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
