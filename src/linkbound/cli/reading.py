"""A study file back to a report, for verbs that only show (E2)."""

from pathlib import Path
from typing import TYPE_CHECKING, overload

from linkbound.errors import StudyError

if TYPE_CHECKING:
    from linkbound.report.types import RateVerdict, Report


@overload
def read_report(path: Path) -> "Report": ...


@overload
def read_report(path: Path, *, needed: bool) -> "Report | None": ...


def read_report(path: Path, *, needed: bool = True) -> "Report | None":
    """The report of the last study in the file.

    None where no verdict is in it, or StudyError where one is `needed`.
    """
    import msgspec

    from linkbound.evidence.study import Study
    from linkbound.model.types import Load
    from linkbound.study.gather import gather

    with Study.open(path) as study:
        verdicts = study.find("verdict.load")
        if not verdicts and not needed:
            return None
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


def read_rate_verdicts(path: Path) -> "tuple[RateVerdict, ...]":
    """The last verdict of each simulated load in the file."""
    from linkbound.evidence.study import Study
    from linkbound.report.types import RateVerdict
    from linkbound.study.latest import latest
    from linkbound.study.reading import convert
    from linkbound.verdict.under_load import LoadComparison

    with Study.open(path) as study:
        return tuple(
            RateVerdict(
                subject=record.subject,
                comparisons=convert(record, "comparisons", tuple[LoadComparison, ...]),
                record_id=record.id,
            )
            for record in latest(study, "verdict.rate")
        )
