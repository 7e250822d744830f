"""Collectives into the study: each row as it comes, then the job with NCCL's log, then curves (E2).

The records have the shapes of copies and of imported tables: the same readers read them.
"""

from collections.abc import Callable, Iterable

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Finding, Measured, Reason, Record
from linkbound.links.live.collective_run import CollectiveResult, run_collectives
from linkbound.links.live.collective_types import CollectiveJob
from linkbound.links.live.jobs import End
from linkbound.links.live.records import (
    METHOD,
    VERSION,
    Kept,
    Origin,
    append_cell,
    append_finding,
    append_summaries,
)
from linkbound.links.live.rows import Flag, LinkRow
from linkbound.links.live.state import State
from linkbound.values import Value


class Collected(Value, frozen=True, kw_only=True):
    """What came of all jobs."""

    kept: tuple[Kept, ...]
    findings: tuple[Finding, ...]

    @property
    def rows(self) -> tuple[LinkRow, ...]:
        return tuple(one.row for one in self.kept)


def measure_collectives(
    study: Study,
    origin: Origin,
    jobs: Iterable[CollectiveJob],
    *,
    on_begin: Callable[[str], None] | None = None,
    state: State | None = None,
) -> Collected:
    """Run the jobs; every row is in the study before the next cell begins.

    `state` answers for the GPUs: their byte counters, and whether something slows them.
    """
    jobs = tuple(jobs)
    uuids = {uuid for job in jobs for uuid in job.uuids if uuid is not None}
    kept: list[Kept] = []
    findings: list[Finding] = []

    def keep(row: LinkRow) -> None:
        kept.append(append_cell(study, origin, flagged(row, uuids, state)))

    try:
        for result in run_collectives(jobs, on_row=keep, on_begin=on_begin, state=state):
            append_job(study, origin, result)
            for finding in result.findings:
                append_finding(study, origin, finding, result.log)
            findings += result.findings
    finally:
        # Also after an interrupt: what was measured is then readable like all else.
        append_summaries(study, origin, [as_single_call(one) for one in kept])
    return Collected(kept=tuple(kept), findings=tuple(findings))


def flagged(row: LinkRow, uuids: Iterable[str], state: State | None) -> LinkRow:
    """The row, marked where the driver holds the clocks of one of the GPUs back just now."""
    if state is None or not row.samples_s or not any(state.slowing(uuid) for uuid in uuids):
        return row
    return msgspec.structs.replace(row, flags=(*row.flags, Flag.THROTTLED))


def append_job(study: Study, origin: Origin, result: CollectiveResult) -> str:
    """How a job ended, in which environment, with the logs of all ranks; the record's id."""
    job = result.job
    values = {
        "rows": len(result.rows),
        "end": result.end.value,
        "family": job.family.value,
        "devices": list(job.devices),
        "seed": job.seed,
        "environment": dict(result.environment),
        "counters": dict(result.counters),
    }
    problem = result.findings[-1] if result.end is not End.DONE else None
    blob = study.add_blob(result.log.encode()) if result.log else None
    return study.append(
        Record(
            kind="links.collectives",
            subject={
                "machine": origin.machine_name,
                "family": job.family.value,
                "group": list(job.group),
                "arm": job.arm.value,
                "processes": job.processes.value,
            },
            outcome=Measured(values=values)
            if problem is None
            else Failed(reason=Reason(code=problem.code, text=problem.seen), log=blob),
            method=METHOD,
            method_version=VERSION,
            machine=origin.machine_id,
            command=origin.command,
            environment={**origin.environment, **result.environment},
            started=origin.started,
            duration_s=result.duration_s,
            parents=origin.parents,
            blobs=() if blob is None else (blob,),
        )
    )


def as_single_call(one: Kept) -> Kept:
    """The row as a curve is read: each call of a sample began after the one before had ended, so
    that the mean over them is the time of one call and no sustained rate.
    """
    return Kept(row=msgspec.structs.replace(one.row, calls=1), record_id=one.record_id)
