"""The links stage on a host with GPUs: a quick measurement, unless the study has one (L1, L4)."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from msgspec import structs

from linkbound.errors import LinkboundError, MissingExtra, NothingToMeasure
from linkbound.evidence.study import Study
from linkbound.evidence.types import Reason, Record, Skipped
from linkbound.links.curves import find_all
from linkbound.links.live import cuda, measure, request, state
from linkbound.links.live.cell import Cell, CopyJob
from linkbound.links.live.collective_types import CollectiveJob
from linkbound.links.live.records import Origin
from linkbound.links.live.rows import LinkRow
from linkbound.links.types import Arm, Curve, Launch, Operation
from linkbound.study.reading import MachineRead, read_curves, read_machine_record
from linkbound.study.sources import Sources
from linkbound.topology.types import Gpu, Machine


class Quiet:
    """Nobody is told how far it is: the stage says when it begins and ends."""

    def begin(self, _cell: Cell) -> None:
        """Nothing to say."""

    def begin_collective(self, _title: str) -> None:
        """Nothing to say."""

    def flagged(self, row: LinkRow) -> LinkRow:
        """Busy GPUs are refused before."""
        return row


def measure_links(study: Study, sources: Sources) -> bool:
    """Quick curves of this host where the study has none that a plan needs; whether all was tried.

    What stands in the way (a missing extra, one GPU, busy GPUs) is a record that says so: later
    stages go on without measured links, and the next run tries again.
    """
    held = read_machine_record(study, sources.name)
    try:
        _measure(study, held)
        return True
    except LinkboundError as error:
        code = "missing-extra" if isinstance(error, MissingExtra) else "not-measured"
        study.append(
            Record(
                kind="links.skipped",
                subject={"machine": sources.name},
                outcome=Skipped(reason=Reason(code=code, text=str(error))),
                method="linkbound links --quick",
                machine=held.fingerprint.id,
                parents=(held.record_id,),
            )
        )
        return False


def missing_jobs(
    machine: Machine, gpus: Sequence[Gpu], curves: Iterable[Curve]
) -> tuple[tuple[CopyJob, ...], tuple[CollectiveJob, ...]]:
    """Copies of the pairs, and collectives of the groups, of which an arm has no curve yet."""
    known = tuple(curves)
    asked = request.Asked(quick=True)
    scope = request.to_scope(asked, machine, [gpu.label for gpu in gpus])
    pairs = tuple(
        pair
        for pair in scope.pairs
        if not all(_is_known(known, Operation.COPY, pair, arm) for arm in measure.QUICK_ARMS)
    )
    wanted = structs.replace(scope, pairs=pairs)
    collectives = []
    for job in measure.collective_jobs(machine, gpus, asked):
        left = tuple(one for one in job.operations if not _is_known(known, one, job.group, job.arm))
        if left:
            collectives.append(structs.replace(job, operations=left))
    copies = request.to_jobs(machine, gpus, wanted, asked) if pairs else ()
    return copies, tuple(collectives)


def _is_known(
    curves: tuple[Curve, ...], operation: Operation, group: Sequence[str], arm: Arm
) -> bool:
    return any(find_all(curves, operation, group, arm, launch) for launch in Launch)


def _measure(study: Study, held: MachineRead) -> None:
    gpus = request.measurable(held.machine)
    copies, collectives = missing_jobs(held.machine, gpus, read_curves(study, held.name))
    if not copies and not collectives:
        return
    cuda.require_gpu_extra()
    watching = state.open_state()
    request.refuse_busy(gpus, watching)
    environment = request.job_environment()
    found = measure.measure(
        study,
        Origin(
            machine_name=held.name,
            machine_id=held.fingerprint.id,
            command=("linkbound", *sys.argv[1:]),
            environment=request.recorded_environment(environment),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            parents=(held.record_id,),
        ),
        copies,
        collectives,
        environment,
        Quiet(),
        watching,
    )
    if not any(one.row.samples_s for one in found.kept):
        raise NothingToMeasure("No link could be timed.", why="Every cell says why.")
