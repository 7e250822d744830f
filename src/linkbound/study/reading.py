"""What earlier stages left in a study, read back as values: stages meet only here (E1)."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from linkbound.errors import StudyError
from linkbound.evidence.study import Study
from linkbound.evidence.types import (
    Derived,
    Fingerprint,
    Measured,
    Predicted,
    Provenance,
    Record,
    Stated,
)
from linkbound.links import Curve, CurveKey, CurvePoint, PairLatency, PairRate, PeerAccess
from linkbound.links.types import CurveFit
from linkbound.model.types import ModelShape
from linkbound.predict.calibration import Calibration
from linkbound.predict.types import Forecast, Plan, RegimeCell
from linkbound.serve import EngineRun
from linkbound.splits.types import Fit
from linkbound.topology.types import Machine
from linkbound.values import Value
from linkbound.verdict.types import Verdict

T = TypeVar("T")


class MachineRead(Value, frozen=True, kw_only=True):
    """A machine as the study holds it."""

    name: str
    note: str
    recorded: bool
    machine: Machine
    fingerprint: Fingerprint
    record_id: str


class MapRead(Value, frozen=True, kw_only=True):
    """A map of regimes."""

    plan: Plan
    cells: tuple[RegimeCell, ...]


def values_of(record: Record) -> Any:
    """The values of a record that has some. Raises StudyError for one that failed."""
    match record.outcome:
        case Measured(values=values) | Stated(values=values) | Derived(values=values):
            return values
        case Predicted(values=values):
            return values
        case _:
            raise StudyError(
                f"Record {record.id[:12]} ({record.kind}) holds no values.",
                why="A later stage rests on it.",
                hint="Run the study anew in another file.",
            )


def convert(record: Record, key: str, kind: type[T]) -> T:
    """One value of a record. Raises StudyError where another version wrote it differently."""
    return convert_picked(record, kind, lambda values: values[key])


def convert_whole(record: Record, kind: type[T], *beside: str) -> T:
    """All values of a record but those named in `beside`. Raises StudyError like `convert`."""
    return convert_picked(
        record,
        kind,
        lambda values: {name: one for name, one in values.items() if name not in beside},
    )


def convert_picked(record: Record, kind: type[T], pick: Callable[[Any], object]) -> T:
    """What `pick` makes of the values of a record. Raises StudyError like `convert`."""
    try:
        return msgspec.convert(pick(values_of(record)), kind)
    except (msgspec.ValidationError, KeyError) as error:
        raise StudyError(
            f"Record {record.id[:12]} ({record.kind}) is not of this version: {error}.",
            why="Its values cannot be read back.",
            hint="Run the study anew in another file.",
        ) from None


def read_machine_record(study: Study, name: str) -> MachineRead:
    """The merged machine of this name."""
    return _machine(_last(study, "topology.machine", machine=name))


def read_machines(study: Study) -> tuple[MachineRead, ...]:
    """Every machine that the study holds."""
    return tuple(_machine(record) for record in study.find("topology.machine"))


def _machine(record: Record) -> MachineRead:
    values = values_of(record)
    return MachineRead(
        name=str(record.subject["machine"]),
        note=str(values["note"]),
        recorded=bool(values["recorded"]),
        machine=convert(record, "machine", Machine),
        fingerprint=convert(record, "fingerprint", Fingerprint),
        record_id=record.id,
    )


def read_curves(study: Study, machine: str) -> tuple[Curve, ...]:
    """All curves of a machine, each with its record."""
    return tuple(_curve(record) for record in study.find("links.curve", machine=machine))


def _curve(record: Record) -> Curve:
    key = {name: value for name, value in record.subject.items() if name != "machine"}
    samples = record.samples
    assert samples is not None
    return Curve(
        key=msgspec.convert(key, CurveKey),
        points=tuple(
            msgspec.convert(dict(zip(samples.columns, row, strict=True)), CurvePoint)
            for row in samples.rows
        ),
        provenance=Provenance(values_of(record).get("provenance", Provenance.MEASURED)),
        source=str(values_of(record)["source"]),
        record_ids=(record.id,),
    )


def read_priced_curves(study: Study, machine: str) -> tuple[Curve, ...]:
    """Curves that price plans here and that nobody measured here, each with its record."""
    return tuple(_curve(record) for record in study.find("predict.curve", machine=machine))


def read_fit(study: Study, curve: Curve) -> CurveFit:
    """The fit that rests on a curve's record."""
    for record in study.find("links.fit"):
        if record.parents == curve.record_ids:
            return msgspec.convert(values_of(record), CurveFit)
    raise StudyError(
        f"The curve {curve.record_ids[0][:12]} has no fit.",
        why="The links stage was cut short.",
        hint="Run the study again.",
    )


def read_rates(study: Study, machine: str) -> tuple[PairRate, ...]:
    return _all(study, "links.rates", machine, "rates", tuple[PairRate, ...])


def read_latencies(study: Study, machine: str) -> tuple[PairLatency, ...]:
    return _all(study, "links.latencies", machine, "latencies", tuple[PairLatency, ...])


def read_access(study: Study, machine: str) -> tuple[PeerAccess, ...]:
    return _all(study, "links.access", machine, "access", tuple[PeerAccess, ...])


def _all(study: Study, kind: str, machine: str, key: str, of: type[tuple[T, ...]]) -> tuple[T, ...]:
    records = study.find(kind, machine=machine)
    return tuple(one for record in records for one in convert(record, key, of))


def read_runs(study: Study, machine: str) -> tuple[tuple[Record, EngineRun], ...]:
    """Engine runs with their records, in the order of the file."""
    return tuple(
        (record, convert(record, "run", EngineRun))
        for record in study.find("serve.run", machine=machine)
        if isinstance(record.outcome, Measured)
    )


def read_run_shapes(study: Study, machine: str) -> dict[str, ModelShape]:
    """Shapes of the models that the machine's runs name."""
    return {
        str(record.subject["model"]): convert(record, "shape", ModelShape)
        for record in study.find("serve.shape", machine=machine)
    }


def read_shape(study: Study, name: str) -> tuple[Record, ModelShape]:
    record = _last(study, "model.shape", model=name)
    return record, convert(record, "shape", ModelShape)


def read_calibration(study: Study, machine: str) -> tuple[Record, Calibration]:
    record = _last(study, "predict.calibration", machine=machine)
    return record, convert(record, "calibration", Calibration)


def read_fits(study: Study, **subject: Any) -> tuple[tuple[Record, Fit], ...]:
    records = study.find("splits.fit", **subject)
    return tuple((record, convert(record, "fit", Fit)) for record in records)


def read_forecasts(study: Study, **subject: Any) -> tuple[tuple[Record, Forecast], ...]:
    records = study.find("predict.call", **subject)
    return tuple(
        (record, convert(record, "forecast", Forecast))
        for record in records
        if isinstance(record.outcome, Predicted)
    )


def read_verdicts(study: Study, **subject: Any) -> tuple[tuple[Record, Verdict], ...]:
    records = study.find("verdict.load", **subject)
    return tuple((record, convert(record, "verdict", Verdict)) for record in records)


def _last(study: Study, kind: str, **subject: Any) -> Record:
    records = study.find(kind, **subject)
    if not records:
        what = ", ".join(str(value) for value in subject.values())
        raise StudyError(
            f"The study holds no {kind} of {what}.",
            why="An earlier stage has not run.",
            hint="Run `linkbound study` first.",
        )
    return records[-1]
