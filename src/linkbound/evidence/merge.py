"""Two studies into one: records keep their ids, so that references to them stay true (E2)."""

from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Record


def merge(study_from: Study, study_into: Study) -> list[str]:
    """Add the records and their blobs to `study_into`; return the ids that were new there.

    All records or none: an edited record in `study_from` raises StudyError and nothing is added.
    """
    known = {record.id for record in study_into.records()}
    # Blobs first, and each by itself: one that no record names does no harm.
    for record in study_from.records():
        for blob_id in _blobs_of(record):
            study_into.add_blob(study_from.blob(blob_id))
    ids = study_into.append_many(study_from.records())
    return [record_id for record_id in dict.fromkeys(ids) if record_id not in known]


def _blobs_of(record: Record) -> tuple[str, ...]:
    match record.outcome:
        case Failed(log=str(log)):
            return (*record.blobs, log)
    return record.blobs
