"""The host's pace from loads that were measured on it, as evidence (E3)."""

import msgspec

from linkbound.errors import UsageError
from linkbound.evidence.stats import median
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Measured, Record
from linkbound.predict.pricing import NoForecast
from linkbound.predict.simulate import FittedCell, HostPace
from linkbound.predict.simulate.host_pace import FIGURE, fit_share
from linkbound.serve.batch_records import model_label
from linkbound.serve.compare_runs import rows_of
from linkbound.serve.load_types import Arrival
from linkbound.study.simulating import scenarios_of
from linkbound.study.simulation_score import asked_of, cell_words, cells_of, problem_of

SHOWN = 3
"""Cells that an error names with why they say nothing."""
LEAST_FACTOR = 1.25
"""Either way, whatever the cells say: between neighbouring cells of one run it differed by so much
in the median (docs/simulation.md)."""


def fit_host_pace(
    study: Study, measured: Study, machine: str, model: str, sequences: int | None
) -> HostPace:
    """The pace that explains the open loads of `model` in `measured`; `study` keeps it.

    `study` must hold the machine, its constants and the model. Raises UsageError where no cell
    says anything.
    """
    fitted: list[FittedCell] = []
    left_out: list[str] = []
    used: list[str] = []
    for name, records in cells_of(measured, "The host's pace follows from its cells."):
        if name[1] != model_label(model) or records[0].subject["arrival"] == Arrival.CLOSED:
            # A full engine hides what its host does.
            continue
        found = problem_of(records) or _fit(study, machine, model, records, sequences)
        if isinstance(found, str):
            left_out.append(f"{cell_words(records[0])}: {found}")
        else:
            fitted.append(found)
            used += [one.id for one in records if isinstance(one.outcome, Measured)]
    value = median([one.share for one in fitted])
    if value is None:
        raise UsageError(
            f"{measured.path.name} holds no load of {model} from which the host's pace follows."
            + "".join(f" {one}" for one in left_out[:SHOWN])
            + (f" So are {len(left_out) - SHOWN} more." if len(left_out) > SHOWN else ""),
            why="Steps beside whose launch nothing else takes longer tell how fast the host is.",
            hint="Measure some on two GPUs: linkbound serve MODEL --split tp2 --rate 4 -C FILE.",
        )
    shares = [one.share for one in fitted]
    pace = HostPace(
        value=value,
        low=min(*shares, value / LEAST_FACTOR),
        high=max(*shares, value * LEAST_FACTOR),
        cells=tuple(fitted),
        left_out=tuple(left_out),
    )
    record_id = study.append(
        Record(
            kind="predict.host_pace",
            subject={"machine": machine, "model": model, "file": measured.path.name},
            outcome=Derived(values={"pace": msgspec.to_builtins(pace)}),
            method="linkbound.predict.simulate.host_pace",
            parents=tuple(one for one in dict.fromkeys(used) if study.has(one)),
        )
    )
    return msgspec.structs.replace(pace, record_ids=(record_id,))


def _fit(
    study: Study, machine: str, model: str, records: list[Record], sequences: int | None
) -> FittedCell | str:
    (row,) = rows_of([one for one in records if isinstance(one.outcome, Measured)])
    figure = row.figures.get(FIGURE)
    if figure is None:
        return "too few of its requests have a time a token."
    engine, scenarios = scenarios_of(study, machine, model, asked_of(records[0], sequences))
    if not scenarios:
        return "it does not fit the machine that is simulated."
    try:
        share = fit_share(engine, scenarios[0], figure.median)
    except (NoForecast, UsageError) as error:
        return str(error)
    if isinstance(share, str):
        return share
    return FittedCell(contender=row.contender, cell=row.cell, share=share)
