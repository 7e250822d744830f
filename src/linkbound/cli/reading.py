"""A study file back to a report, for verbs that only show (E2)."""

from pathlib import Path
from typing import TYPE_CHECKING

from linkbound.errors import StudyError

if TYPE_CHECKING:
    from linkbound.evidence.study import Study
    from linkbound.model.types import Load
    from linkbound.report.types import RateVerdict, Report

_Judged = dict[tuple[str, str], tuple["Load", ...]]
"""Machine and model to the loads of their verdicts; what was judged last comes last."""


def read_report(path: Path) -> "tuple[Report, tuple[str, ...]]":
    """The report of what was judged last, and `MODEL on MACHINE` of what else the file holds.

    Raises StudyError where no verdict is in it.
    """
    from linkbound.evidence.study import Study
    from linkbound.study.gather import gather

    with Study.open(path) as study:
        judged = _judged(study)
        if not judged:
            raise no_verdict(path)
        (*others, (machine, model)) = judged
        report = gather(study, machine, model, judged[machine, model])
    return report, tuple(f"{name} on {where}" for where, name in others)


def read_reports(path: Path) -> "tuple[Report, ...]":
    """A report of each machine and model that the file holds verdicts of; the last is last."""
    from linkbound.evidence.study import Study
    from linkbound.study.gather import gather

    with Study.open(path) as study:
        return tuple(
            gather(study, machine, model, loads)
            for (machine, model), loads in _judged(study).items()
        )


def last_judged(study: "Study", path: Path) -> "tuple[str, str, tuple[Load, ...]]":
    """Machine, model and loads of what was judged last. Raises StudyError where nothing was."""
    judged = _judged(study)
    if not judged:
        raise no_verdict(path)
    (machine, model), loads = list(judged.items())[-1]
    return machine, model, loads


def no_verdict(path: Path) -> StudyError:
    """What is wrong with a study that was stopped before its verdict."""
    return StudyError(
        f"{path} holds no verdict.",
        why="Its stages were stopped before.",
        hint="Go on with: linkbound study MODEL -C " + str(path),
    )


def _judged(study: "Study") -> _Judged:
    import msgspec

    from linkbound.model.types import Load

    found: dict[tuple[str, str], dict[Load, None]] = {}
    for record in study.find("verdict.load"):
        key = str(record.subject["machine"]), str(record.subject["model"])
        load = {name: record.subject[name] for name in Load.__struct_fields__}
        # Taken out and put back: order is by the last verdict.
        loads = found.pop(key, {})
        loads[msgspec.convert(load, Load)] = None
        found[key] = loads
    return {key: tuple(loads) for key, loads in found.items()}


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
