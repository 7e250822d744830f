"""Cells that were measured, simulated again and compared (E3).

A cell is simulated from what was asked of it; what was measured is read after.
"""

from collections.abc import Iterable

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Measured, Record
from linkbound.links import Arm
from linkbound.predict.simulate.score import LoadScore, LoadScoreRow, score_cell, summaries
from linkbound.serve.compare_runs import rows_of
from linkbound.serve.contenders import cell_key
from linkbound.serve.engines import ENGINES
from linkbound.serve.load_types import Arrival, Cell
from linkbound.serve.rules import as_served
from linkbound.splits.parse_split import parse_split
from linkbound.study.simulating import Asked, simulate_all

Group = tuple[str, str]


def score_loads(
    study: Study, measured: Study, machine: str, model: str, sequences: int | None
) -> LoadScore:
    """Every measured cell of `measured` beside its simulation, which `study` keeps."""
    groups: dict[Group, list[Record]] = {}
    for record in measured.find("serve.load"):
        key = (str(record.subject["contender"]), cell_key(record.subject))
        groups.setdefault(key, []).append(record)
    rows: list[LoadScoreRow] = []
    skipped = []
    for (contender, cell), records in groups.items():
        problem = _problem(records)
        if problem is not None:
            skipped.append(f"{contender}, {cell}: {problem}")
            continue
        (shown,) = simulate_all(study, machine, model, _asked(records[0], sequences))
        skipped += shown.skipped
        # Only now what was measured is read.
        found = rows_of(records)
        for simulation in shown.simulations:
            rows += score_cell(found[0], simulation)
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


def _problem(records: Iterable[Record]) -> str | None:
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


def _asked(record: Record, sequences: int | None) -> Asked:
    """The cell of a record as it was asked."""
    subject = record.subject
    rules = ENGINES[str(subject["engine"])].rules
    assert rules is not None
    arm = subject["arm"]
    return Asked(
        engine=str(subject["engine"]),
        rules=as_served(rules, sequences),
        splits=(parse_split(str(subject["split"])),),
        arms=(Arm.P2P if arm is None else Arm(arm),),
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
