"""What a study holds of a comparison: the last record of every cell, in the order of its turns."""

from linkbound.evidence.study import Study
from linkbound.evidence.types import Record
from linkbound.serve.contenders import ServeRun, cell_subject, reseeded, turns


def held_records(study: Study, run: ServeRun, kind: str = "serve.load") -> tuple[Record, ...]:
    """The last record of this kind of every cell of the run; cells without one are left out."""
    found: list[Record] = []
    for repeat, contender in turns(run.contenders, run.repeats):
        for number, cell in enumerate(run.cells):
            subject = cell_subject(run, contender, reseeded(cell, number, repeat), repeat)
            found += study.find(kind, **subject)[-1:]
    return tuple(found)
