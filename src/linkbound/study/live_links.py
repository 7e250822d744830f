"""The links stage on a host with GPUs: a quick measurement, unless the study has one (L1, L4)."""

import sys
from datetime import UTC, datetime

from linkbound.errors import LinkboundError, MissingExtra, NothingToMeasure
from linkbound.evidence.study import Study
from linkbound.evidence.types import Reason, Record, Skipped
from linkbound.links.live import cuda, measure, request, state
from linkbound.links.live.cell import Cell
from linkbound.links.live.records import Origin
from linkbound.links.live.rows import LinkRow
from linkbound.study.reading import MachineRead, read_machine_record
from linkbound.study.sources import Sources


class Quiet:
    """Nobody is told how far it is: the stage says when it begins and ends."""

    def begin(self, _cell: Cell) -> None:
        """Nothing to say."""

    def begin_collective(self, _title: str) -> None:
        """Nothing to say."""

    def flagged(self, row: LinkRow) -> LinkRow:
        """Busy GPUs are refused before."""
        return row


def measure_links(study: Study, sources: Sources) -> None:
    """Curves of this host, quick ones where `linkbound links` has left none in this study.

    What stands in the way (a missing extra, one GPU, busy GPUs) is a record that says so: later
    stages go on without measured links.
    """
    if study.find("links.curve", machine=sources.name):
        return
    held = read_machine_record(study, sources.name)
    try:
        _measure(study, held)
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


def _measure(study: Study, held: MachineRead) -> None:
    asked = request.Asked(quick=True)
    gpus = request.measurable(held.machine)
    scope = request.to_scope(asked, held.machine, [gpu.label for gpu in gpus])
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
        request.to_jobs(held.machine, gpus, scope, asked),
        measure.collective_jobs(held.machine, gpus, asked),
        environment,
        Quiet(),
        watching,
    )
    if not any(one.row.samples_s for one in found.kept):
        raise NothingToMeasure("No link could be timed.", why="Every cell says why.")
