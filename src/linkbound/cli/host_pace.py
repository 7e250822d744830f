"""`--host-pace`: simulate on a host that launches as fast as measured loads say (E3)."""

from pathlib import Path
from typing import TYPE_CHECKING

from linkbound.cli.studies import existing
from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.evidence.study import Study
    from linkbound.predict.simulate import HostPace


def fitted_host(
    study: "Study",
    machine: str,
    model: str,
    pace_file: Path | None,
    *,
    engine: str | None,
    measured: Path | None,
    sequences: int | None,
) -> "HostPace":
    """The pace of the loads in `pace_file`; as the constants say where none is given.

    `engine` is whose loads count, None all; `measured` holds loads that are compared with it, by
    servers that held `sequences` at once. Raises UsageError where no load tells the pace, and where
    one of `measured` does.
    """
    from linkbound.evidence.study import Study
    from linkbound.predict.simulate import CALIBRATED
    from linkbound.study.host_pace import fit_host_pace

    if pace_file is None:
        return CALIBRATED

    def fit(loads: "Study") -> "HostPace":
        return fit_host_pace(study, loads, machine, model, engine=engine, sequences=sequences)

    if study.path.resolve() == existing(pace_file).resolve():
        host = fit(study)
    else:
        with Study.open(pace_file) as other:
            host = fit(other)
    if measured is not None:
        _refuse_same(host, measured, pace_file)
    return host


def _refuse_same(host: "HostPace", measured: Path, pace_file: Path) -> None:
    """Raises UsageError where a load would be compared with what was fitted to it."""
    from linkbound.evidence.study import Study

    with Study.open(existing(measured)) as compared:
        if any(compared.has(one) for cell in host.cells for one in cell.record_ids):
            raise UsageError(
                f"--score {measured} holds loads that --host-pace {pace_file} rests on.",
                why="The pace would be fitted to the loads that it is then compared with.",
                hint="Measure other rates into a file of their own, and give that to --host-pace.",
            )
