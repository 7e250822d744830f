"""`--host-pace`: simulate on a host that launches as fast as measured loads say (E3)."""

from pathlib import Path
from typing import TYPE_CHECKING

from linkbound.cli.studies import existing
from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.evidence.study import Study
    from linkbound.predict.simulate import HostPace
    from linkbound.study.sources import Sources


def refuse_same(measured: Path | None, pace_file: Path | None) -> None:
    """Raises UsageError where a load would be compared with what was fitted to it."""
    if measured is not None and pace_file is not None and measured.resolve() == pace_file.resolve():
        raise UsageError(
            f"--score and --host-pace both name {measured}.",
            why="The pace would be fitted to the loads that it is then compared with.",
            hint="Measure other rates into a file of their own, and give that to --host-pace.",
        )


def fitted_host(
    study: "Study",
    sources: "Sources",
    model: str,
    pace_file: Path | None,
    sequences: int | None,
) -> "HostPace":
    """The pace of the loads in `pace_file`; as the constants say where none is given.

    Raises UsageError where no load there tells it.
    """
    from linkbound.evidence.study import Study
    from linkbound.predict.simulate import CALIBRATED
    from linkbound.study.host_pace import fit_host_pace

    if pace_file is None:
        return CALIBRATED
    if study.path.resolve() == existing(pace_file).resolve():
        return fit_host_pace(study, study, sources.name, model, sequences)
    with Study.open(pace_file) as other:
        return fit_host_pace(study, other, sources.name, model, sequences)
