"""Which engine runs calibrate a machine's constants, and the constants as a record (D5, E3).

A recorded machine's manifest names tags of its own runs. Others are chosen: a record that names
them, so that nothing that was merely measured moves a prediction.
"""

from collections.abc import Sequence

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record, Stated
from linkbound.predict.calibrate import calibrate
from linkbound.predict.calibration import Calibration
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.defaults import carried, device_facts, prior_calibration
from linkbound.serve import VLLM, EngineRun, merged
from linkbound.study.history import learned, teachers
from linkbound.study.predicting import book_of
from linkbound.study.reading import (
    MachineRead,
    read_access,
    read_machine_record,
    read_rates,
    read_run_shapes,
    read_runs,
)
from linkbound.study.sources import Sources
from linkbound.topology.types import Gpu

CHOSEN = "predict.calibrating"


def calibrating_runs(study: Study, machine: str) -> tuple[tuple[Record, EngineRun], ...]:
    """Runs that calibrate, with their records, in the order of the study."""
    chosen = {one for record in study.find(CHOSEN, machine=machine) for one in record.parents}
    return tuple(
        (record, run)
        for record, run in read_runs(study, machine)
        if record.subject["calibrates"] or record.id in chosen
    )


def taught_by(study: Study, machine: str) -> tuple[str, ...]:
    """Records that constants rest on beside the machine's own files: choices and scores."""
    choices = (record.id for record in study.find(CHOSEN, machine=machine))
    return (*choices, *teachers(study, machine))


def choose(study: Study, held: MachineRead, runs: Sequence[Record]) -> str:
    """Note that these runs calibrate from now on; returns the record's id."""
    return study.append(
        Record(
            kind=CHOSEN,
            subject={"machine": held.name, "engine": VLLM.engine},
            outcome=Stated(values={"runs": len(runs)}),
            method="linkbound calibrate",
            machine=held.fingerprint.id,
            parents=tuple(record.id for record in runs),
        )
    )


def append_calibration(study: Study, sources: Sources, held: MachineRead) -> Record:
    """The constants of this machine as a record that rests on the runs they are from."""
    facts = device_facts(first_usable(study, held), read_rates(study, held.name))
    prior = prior_calibration(facts)
    parents: list[str] = []
    if sources.engine_from is not None:
        other = read_machine_record(study, sources.engine_from)
        other_facts = device_facts(other.machine.gpus[0], read_rates(study, other.name))
        there, parents = _calibrated(study, other, prior_calibration(other_facts))
        prior = carried(there, other_facts, facts)
    found, here = _calibrated(study, held, prior)
    rates = [record.id for record in study.find("links.rates", machine=held.name)]
    scores = teachers(study, held.name)
    record = Record(
        kind="predict.calibration",
        subject={"machine": held.name, "engine": VLLM.engine},
        outcome=Derived(
            values={
                "calibration": msgspec.to_builtins(learned(study, held.name, found)),
                "rules": msgspec.to_builtins(VLLM),
            }
        ),
        method="linkbound.predict.calibrate",
        machine=held.fingerprint.id,
        parents=(held.record_id, *rates, *parents, *here, *scores),
    )
    study.append(record)
    return record


def first_usable(study: Study, held: MachineRead) -> Gpu:
    excluded = excluded_gpus(held.machine, read_access(study, held.name))
    return next(gpu for gpu in held.machine.gpus if gpu.label not in excluded)


def _calibrated(
    study: Study, held: MachineRead, prior: Calibration
) -> tuple[Calibration, list[str]]:
    """The prior moved by the machine's calibrating runs, and their records."""
    runs = calibrating_runs(study, held.name)
    shapes = read_run_shapes(study, held.name)
    book = book_of(study, held.name)
    found = calibrate(prior, merged(run for _, run in runs), shapes, book, VLLM)
    return found, [record.id for record, _ in runs]
