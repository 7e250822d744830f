"""Cells that were measured, simulated again and compared (E3).

A cell is simulated from what was asked of it; what was measured is read after.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from linkbound.errors import UsageError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Measured, Record, canonical_json
from linkbound.links import Arm
from linkbound.predict.frozen import Frozen, not_yet, timing
from linkbound.predict.score_types import FrozenSet
from linkbound.predict.simulate import CALIBRATED, HostPace
from linkbound.predict.simulate.score import (
    LoadScore,
    LoadScoreRow,
    comparable,
    score_cell,
    summaries,
)
from linkbound.serve.batch_records import model_label
from linkbound.serve.compare_runs import rows_of
from linkbound.serve.contenders import CELL_NAMES, cell_dimensions, cell_key
from linkbound.serve.engines import ENGINES
from linkbound.serve.load_types import Arrival, Cell
from linkbound.serve.rules import as_served
from linkbound.splits.parse_split import parse_split
from linkbound.study.freezing import append_frozen
from linkbound.study.places import Places
from linkbound.study.simulating import Asked, simulate_all

CellName = tuple[str, str, str, bytes]
"""Engine, model, contender and dimensions, as `LoadPrediction` names a cell."""


def score_loads(
    study: Study,
    measured: Study,
    machine: str,
    model: str,
    sequences: int | None,
    host: HostPace = CALIBRATED,
) -> LoadScore:
    """Every measured cell of `measured` beside its simulation, which `study` keeps.

    Where cells of several models were measured, those of `model` alone. `host` is from other loads
    than these, else what is compared was seen.
    """
    groups = cells_of(measured)
    models = {name[1] for name, _ in groups}
    rows: list[LoadScoreRow] = []
    skipped = []
    for name, records in groups:
        problem = problem_of(records)
        if problem is None and len(models) > 1 and name[1] != model_label(model):
            problem = f"it is of {name[1]}."
        if problem is not None:
            skipped.append(f"{cell_words(records[0])}: {problem}")
            continue
        (shown,) = simulate_all(study, machine, model, asked_of(records[0], sequences, host))
        skipped += shown.skipped
        # Only now what was measured is read.
        found = rows_of(records)
        for simulation in shown.simulations:
            rows += score_cell(found[0], comparable(simulation))
    score = LoadScore(rows=tuple(rows), summaries=summaries(rows), skipped=tuple(skipped))
    study.append(
        Record(
            kind="predict.load_score",
            subject={"machine": machine, "model": model},
            outcome=Derived(values={"score": msgspec.to_builtins(score)}),
            method="linkbound.predict.simulate.score",
            parents=tuple(record.id for record in study.find("predict.simulation", model=model)),
        )
    )
    return score


def cells_of(
    measured: Study, why: str = "Simulations are compared with its cells."
) -> list[tuple[CellName, list[Record]]]:
    """Measured cells with their repeats: of one engine, model, seed and machine.

    Raises UsageError where there is none; `why` they are wanted.
    """
    groups: dict[tuple[CellName, str | None], list[Record]] = {}
    for record in measured.find("serve.load"):
        groups.setdefault((_named(record), record.machine), []).append(record)
    if not groups:
        raise UsageError(
            f"{measured.path.name} holds no load that `serve` measured.",
            why=why,
            hint="Measure some: linkbound serve MODEL --rate 4 -C FILE.",
        )
    return [(name, records) for (name, _), records in groups.items()]


def cell_words(record: Record) -> str:
    return f"{record.subject['contender']}, {cell_key(record.subject)}"


def score_frozen_loads(study: Study, measured: Study, frozen: Frozen) -> LoadScore:
    """Every measured cell beside what was frozen of it; `study` keeps the score."""
    content, now = frozen.content, datetime.now(UTC)
    fixed = {
        (one.engine, one.model, one.contender, canonical_json(cell_dimensions(one.cell))): one
        for one in content.loads
    }
    rows: list[LoadScoreRow] = []
    skipped = []
    places = Places(measured, content.fingerprint)
    for name, records in cells_of(measured):
        kept = [record for record in records if isinstance(record.outcome, Measured)]
        found = fixed.get(name)
        if not kept:
            skipped.append(f"{cell_words(records[0])}: it was not measured.")
        elif found is None:
            skipped.append(f"{cell_words(records[0])}: no prediction of it was frozen.")
        elif not places.holds(kept[0].machine, kept[0].subject["gpus"]):
            skipped.append(f"{cell_words(records[0])}: measured on machine {kept[0].machine}.")
        else:
            started = [record.started for record in kept]
            first = None if None in started else min(one for one in started if one is not None)
            # One repeat whose time lies ahead leaves all of them without one.
            ahead = [(one, reason) for one in started if (reason := not_yet(one, now)) is not None]
            skipped += [f"{cell_words(records[0])}: {reason}" for _, reason in ahead[:1]]
            when = timing(content.frozen, ahead[0][0] if ahead else first, now)
            rows += score_cell(rows_of(kept)[0], found.figures, when)
    score = LoadScore(
        rows=tuple(rows),
        summaries=summaries(rows),
        skipped=tuple(skipped),
        frozen=FrozenSet(id=frozen.id, frozen=content.frozen),
    )
    ids = dict.fromkeys(one for row in rows for one in row.record_ids)
    study.append(
        Record(
            kind="predict.load_score",
            subject={"machine": content.machine, "frozen": frozen.id},
            outcome=Derived(values={"score": msgspec.to_builtins(score)}),
            method="linkbound.predict.simulate.score",
            machine=content.fingerprint.id,
            parents=(append_frozen(study, frozen), *(one for one in ids if study.has(one))),
        )
    )
    return score


def _named(record: Record) -> CellName:
    subject = record.subject
    dimensions = {name: subject[name] for name in CELL_NAMES}
    return (
        str(subject["engine"]),
        model_label(str(subject["model"])),
        str(subject["contender"]),
        canonical_json(dimensions),
    )


def problem_of(records: Iterable[Record]) -> str | None:
    """Why a cell cannot be simulated again; None where it can."""
    kept = list(records)
    subject = kept[0].subject
    engine = ENGINES.get(str(subject["engine"]))
    if not any(isinstance(record.outcome, Measured) for record in kept):
        return "it was not measured."
    if engine is None or engine.rules is None:
        return f"no scheduler rules of {subject['engine']} are known."
    if subject["arrival"] == Arrival.TRACE:
        return "a record does not hold the arrivals of its trace."
    if subject["gpus"] is None:
        return "somebody else started the server, so that its split is not known."
    return None


def asked_of(record: Record, sequences: int | None, host: HostPace = CALIBRATED) -> Asked:
    """The cell of a record as it was asked, on a host of this pace."""
    subject = record.subject
    rules = ENGINES[str(subject["engine"])].rules
    assert rules is not None
    arm = subject["arm"]
    return Asked(
        engine=str(subject["engine"]),
        rules=as_served(rules, sequences),
        splits=(parse_split(str(subject["split"])),),
        arms=(Arm.P2P if arm is None else Arm(arm),),
        host=host,
        cells=(
            Cell(
                arrival=Arrival(subject["arrival"]),
                requests=subject["requests"],
                prompt_tokens=subject["prompt_tokens"],
                output_tokens=subject["output_tokens"],
                seed=subject["seed"],
                rate_per_s=subject["rate_per_s"],
                concurrency=subject["concurrency"],
                burstiness=subject["burstiness"],
            ),
        ),
    )
