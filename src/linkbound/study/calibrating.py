"""Which engine runs calibrate a machine's constants, and the constants as a record (D5, E3).

A recorded machine's manifest names tags of its own runs. Others are chosen: a record that names
them, so that nothing that was merely measured moves a prediction.
"""

from collections.abc import Mapping, Sequence

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record, Stated
from linkbound.model.types import ModelShape
from linkbound.predict.calibrate import calibrate
from linkbound.predict.calibration import Calibration
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.ceilings import check_ceilings
from linkbound.predict.defaults import (
    DeviceFacts,
    another_start,
    carried,
    device_facts,
    prior_calibration,
)
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
    found, parents = _constants(study, sources, held)
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
        parents=(held.record_id, *rates, *parents, *scores),
    )
    study.append(record)
    return record


def first_usable(study: Study, held: MachineRead) -> Gpu:
    excluded = excluded_gpus(held.machine, read_access(study, held.name))
    return next(gpu for gpu in held.machine.gpus if gpu.label not in excluded)


def constants_with(
    study: Study,
    sources: Sources,
    held: MachineRead,
    runs: Sequence[EngineRun],
    shapes: Mapping[str, ModelShape],
) -> Calibration:
    """The constants if `runs` were chosen too; keeps nothing.

    Raises InputError where they ask for more than the GPU can do.
    """
    return _constants(study, sources, held, runs, shapes)[0]


def _constants(
    study: Study,
    sources: Sources,
    held: MachineRead,
    more: Sequence[EngineRun] = (),
    shapes: Mapping[str, ModelShape] = {},
) -> tuple[Calibration, list[str]]:
    """Constants of this machine, and the records of runs that they rest on."""
    facts = device_facts(first_usable(study, held), read_rates(study, held.name))
    prior = prior_calibration(facts)
    parents: list[str] = []
    if sources.engine_from is not None:
        other = read_machine_record(study, sources.engine_from)
        other_facts = device_facts(other.machine.gpus[0], read_rates(study, other.name))
        known = read_run_shapes(study, other.name)
        sets = _sets(study, other.name)
        there = _calibrated(study, other, other_facts, prior_calibration(other_facts), sets, known)
        parents += _ids(sets)
        prior = carried(there, other_facts, facts)
    known = {**read_run_shapes(study, held.name), **shapes}
    sets = _sets(study, held.name)
    found = _calibrated(study, held, facts, prior, sets, known)
    if more:
        found = _moved_again(study, held, facts, found, more, known, first=not sets)
    return found, [*parents, *_ids(sets)]


_RunSet = tuple[tuple[Record, EngineRun], ...]
"""Runs that calibrate at once."""


def _sets(study: Study, machine: str) -> tuple[_RunSet, ...]:
    """The machine's own runs, then those of each choice that nobody chose before."""
    runs = {record.id: (record, run) for record, run in read_runs(study, machine)}
    own = [record.id for record, _ in runs.values() if record.subject["calibrates"]]
    choices = [record.parents for record in study.find(CHOSEN, machine=machine)]
    found, used = [], set[str]()
    for ids in (own, *choices):
        new = tuple(runs[one] for one in ids if one in runs and one not in used)
        used |= set(ids)
        if new:
            found.append(new)
    return tuple(found)


def _ids(sets: Sequence[_RunSet]) -> list[str]:
    return [record.id for one in sets for record, _ in one]


def _calibrated(
    study: Study,
    held: MachineRead,
    facts: DeviceFacts,
    prior: Calibration,
    sets: Sequence[_RunSet],
    shapes: Mapping[str, ModelShape],
) -> Calibration:
    """The prior moved by each set of runs in turn."""
    found = prior
    for at, one in enumerate(sets):
        runs = [run for _, run in one]
        found = _moved_again(study, held, facts, found, runs, shapes, first=at == 0)
    return found


def _moved_again(
    study: Study,
    held: MachineRead,
    facts: DeviceFacts,
    before: Calibration,
    runs: Sequence[EngineRun],
    shapes: Mapping[str, ModelShape],
    *,
    first: bool,
) -> Calibration:
    """Constants moved by runs from where earlier ones left them.

    Repeats of both are never mixed: the middle of all would be that of the slower ones.
    """
    prior = before if first else another_start(before)
    found = calibrate(prior, merged(runs), shapes, book_of(study, held.name), VLLM)
    check_ceilings(found, facts)
    return found
