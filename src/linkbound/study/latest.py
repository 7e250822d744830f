"""What holds of records that were made again under one name: the last of each (E1).

Until links are measured, predictions and verdicts are made with what there is, and again after.
"""

from typing import Any

from linkbound.evidence.study import Study
from linkbound.evidence.types import Predicted, Record, canonical_json
from linkbound.predict.types import Forecast
from linkbound.study.reading import convert


def latest(study: Study, kind: str, **subject: Any) -> tuple[Record, ...]:
    """The last record of each subject of this kind, in the order of the first."""
    found = {canonical_json(one.subject): one for one in study.find(kind, **subject)}
    return tuple(found.values())


def latest_forecasts(study: Study, **subject: Any) -> tuple[tuple[Record, Forecast], ...]:
    """Forecasts that hold, each with its record."""
    return tuple(
        (record, convert(record, "forecast", Forecast))
        for record in latest(study, "predict.call", **subject)
        if isinstance(record.outcome, Predicted)
    )
