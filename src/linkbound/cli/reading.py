"""A study file back to a report, for verbs that only show (E2)."""

from pathlib import Path
from typing import TYPE_CHECKING

from linkbound.errors import StudyError

if TYPE_CHECKING:
    from linkbound.report.types import Report


def read_report(path: Path) -> "Report":
    """The report of the last study in the file. Raises StudyError where no verdict is in it."""
    import msgspec

    from linkbound.evidence.study import Study
    from linkbound.model.types import Load
    from linkbound.study.gather import gather

    with Study.open(path) as study:
        verdicts = study.find("verdict.load")
        if not verdicts:
            raise StudyError(
                f"{path} holds no verdict.",
                why="Its stages were stopped before.",
                hint="Go on with: linkbound study MODEL -C " + str(path),
            )
        last = verdicts[-1].subject
        loads = [
            msgspec.convert({name: record.subject[name] for name in Load.__struct_fields__}, Load)
            for record in verdicts
            if record.subject["machine"] == last["machine"]
            and record.subject["model"] == last["model"]
        ]
        return gather(study, str(last["machine"]), str(last["model"]), tuple(dict.fromkeys(loads)))
