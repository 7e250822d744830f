"""The host's pace from loads that were measured on it, as evidence (E3)."""

import statistics

import msgspec

from linkbound.errors import UsageError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Measured, Record
from linkbound.predict.pricing import NoForecast
from linkbound.predict.simulate import FittedCell, HostPace
from linkbound.predict.simulate.host_pace import FIGURE, fit_share
from linkbound.serve.batch_records import model_label
from linkbound.serve.compare_runs import rows_of
from linkbound.serve.load_types import Arrival
from linkbound.study.reading import read_calibration, read_machine_record
from linkbound.study.simulating import scenarios_of
from linkbound.study.simulation_score import (
    CellName,
    asked_of,
    cell_words,
    cells_of,
    problem_of,
)

SHOWN = 3
"""Cells that an error names with why they say nothing."""
LEAST_FACTOR = 1.25
"""Either way, whatever the cells say: between neighbouring cells of one run it differed by so much
in the median (docs/simulation.md)."""


def fit_host_pace(
    study: Study,
    measured: Study,
    machine: str,
    model: str,
    *,
    engine: str | None = None,
    sequences: int | None = None,
) -> HostPace:
    """The pace that explains the open loads of `model` in `measured`; `study` keeps it.

    `engine` names whose loads count, None those of all; `sequences` is what the servers held at
    once, None as their rules say. `study` must hold the machine, its constants and the model.
    Raises UsageError where no cell says anything, and where loads are of several machines.
    """
    fitted: list[FittedCell] = []
    left_out: list[str] = []
    machines: set[str] = set()
    for name, records in cells_of(measured, "The host's pace follows from its cells."):
        found = (
            _other(name, records, model, engine)
            or problem_of(records)
            or _fit(study, machine, model, records, sequences)
        )
        if isinstance(found, str):
            left_out.append(f"{cell_words(records[0])}: {found}")
        else:
            fitted.append(found)
            machines |= {one.machine for one in records if one.machine is not None}
    _refuse(measured, model, fitted, left_out, machines)
    held = read_machine_record(study, machine)
    shares = [one.share for one in fitted]
    value = statistics.median(shares)
    elsewhere = machines - {held.fingerprint.id}
    pace = HostPace(
        value=value,
        low=min(*shares, value / LEAST_FACTOR),
        high=max(*shares, value * LEAST_FACTOR),
        cells=tuple(fitted),
        left_out=tuple(left_out),
        elsewhere=next(iter(elsewhere), None),
    )
    constants, _ = read_calibration(study, machine)
    used = [one for cell in fitted for one in cell.record_ids]
    record_id = study.append(
        Record(
            kind="predict.host_pace",
            subject={"machine": machine, "model": model, "file": measured.path.name},
            outcome=Derived(values={"pace": msgspec.to_builtins(pace)}),
            method="linkbound.predict.simulate.host_pace",
            machine=held.fingerprint.id,
            parents=tuple(
                dict.fromkeys(
                    (held.record_id, constants.id, *(one for one in used if study.has(one)))
                )
            ),
        )
    )
    return msgspec.structs.replace(pace, record_ids=(record_id,))


def _other(name: CellName, records: list[Record], model: str, engine: str | None) -> str | None:
    """Why a cell is not asked at all; None where it is."""
    if name[1] != model_label(model):
        return f"it is of {name[1]}."
    if engine is not None and name[0] != engine:
        return f"it is of {name[0]}."
    if records[0].subject["arrival"] == Arrival.CLOSED:
        return "a full engine hides what its host does."
    return None


def _refuse(
    measured: Study,
    model: str,
    fitted: list[FittedCell],
    left_out: list[str],
    machines: set[str],
) -> None:
    if not fitted:
        more = len(left_out) - SHOWN
        raise UsageError(
            f"{measured.path.name} holds no load of {model} from which the host's pace follows."
            + "".join(f" {one}" for one in left_out[:SHOWN])
            + (f" {more} more say nothing either." if more > 0 else ""),
            why="Steps beside whose launch nothing else takes longer tell how fast the host is.",
            hint="Measure some on two GPUs: linkbound serve MODEL --split tp2 --rate 4 -C FILE.",
        )
    if len(machines) > 1:
        raise UsageError(
            f"{measured.path.name} holds loads of {len(machines)} machines: "
            f"{', '.join(sorted(machines))}.",
            why="Each host has a pace of its own.",
            hint="Give a study of the loads of one.",
        )


def _fit(
    study: Study, machine: str, model: str, records: list[Record], sequences: int | None
) -> FittedCell | str:
    kept = [one for one in records if isinstance(one.outcome, Measured)]
    (row,) = rows_of(kept)
    if row.failed:
        return f"{row.failed:,} of its requests failed."
    figure = row.figures.get(FIGURE)
    if figure is None:
        return "too few of its requests have a time a token."
    try:
        engine, scenarios = scenarios_of(study, machine, model, asked_of(records[0], sequences))
        if not scenarios:
            return "it does not fit the machine that is simulated."
        share = fit_share(engine, scenarios[0], figure.median)
    except (NoForecast, UsageError) as error:
        return str(error)
    if isinstance(share, str):
        return share
    ids = tuple(one.id for one in kept)
    return FittedCell(contender=row.contender, cell=row.cell, share=share, record_ids=ids)
