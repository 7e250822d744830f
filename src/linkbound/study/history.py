"""What scores of frozen predictions taught a study about its own errors (E3)."""

from linkbound.evidence.study import Study
from linkbound.predict.calibration import Calibration
from linkbound.predict.history import learn, starts_of
from linkbound.predict.points import Prediction
from linkbound.predict.score_types import Score
from linkbound.study.reading import convert
from linkbound.values import Value


class FrozenScore(Value, frozen=True, kw_only=True):
    """A score of a frozen set, as the study holds it."""

    record_id: str
    score: Score
    predictions: tuple[Prediction, ...]


def frozen_scores(study: Study, machine: str) -> tuple[FrozenScore, ...]:
    """Scores of frozen sets in which a row counts; of one file's measurements, the last."""
    found = {}
    for record in study.find("predict.score", machine=machine):
        score = convert(record, "score", Score)
        if score.frozen is not None and any(row.counts for row in score.rows):
            # The bytes of a runs file, whatever it is called; a study by its name.
            file = record.blobs[0] if record.blobs else str(record.subject["file"])
            found[file] = FrozenScore(
                record_id=record.id,
                score=score,
                predictions=convert(record, "predictions", tuple[Prediction, ...]),
            )
    return tuple(found.values())


def teachers(study: Study, machine: str) -> tuple[str, ...]:
    """Records of the scores that the stated errors rest on."""
    return tuple(one.record_id for one in frozen_scores(study, machine))


def learned(study: Study, machine: str, stated: Calibration) -> Calibration:
    """The calibration as scores have moved its errors."""
    scores = frozen_scores(study, machine)
    return learn(stated, [start for one in scores for start in starts_of(one.score.rows)])
