"""What a study holds as tables for other programs: curves, calls, verdicts, scores (E2)."""

from collections.abc import Callable, Mapping
from typing import Any

from linkbound.errors import StudyError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Predicted, Record
from linkbound.predict.calibrate import split_of
from linkbound.predict.score_types import Score
from linkbound.predict.types import Estimate, Forecast
from linkbound.report.tables import Label, Number, Table
from linkbound.report.words import short_id
from linkbound.study.latest import latest
from linkbound.study.reading import convert, read_curves, read_priced_curves
from linkbound.verdict.types import Comparison, Verdict

_LOAD = ("prompt_tokens", "output_tokens", "concurrency")
_Row = tuple[tuple[Label, ...], tuple[Number, ...]]


def export_table(study: Study, name: str) -> Table:
    """One table. Raises StudyError where the study has no row for it."""
    table = TABLES[name](study)
    if not table.rows:
        raise StudyError(
            f"{study.path} has nothing for the table {name}.",
            why="An earlier stage has not run.",
            hint="Run `linkbound study MODEL -C` with this file first.",
        )
    return table


def export_tables(study: Study) -> tuple[Table, ...]:
    """Every table that has a row. Raises StudyError where none has."""
    found = tuple(table for make in TABLES.values() if (table := make(study)).rows)
    return found or (export_table(study, "curves"),)


def machines_of(study: Study) -> tuple[str, ...]:
    """Names of the machines in a study, the first one first. Raises StudyError where none is."""
    records = study.find("topology.machine")
    if not records:
        raise StudyError(
            f"{study.path} holds no machine.",
            why="Its figures are of one.",
            hint="Run `linkbound study MODEL -C` with this file first.",
        )
    return tuple(dict.fromkeys(str(record.subject["machine"]) for record in records))


def _curves(study: Study) -> Table:
    rows: list[_Row] = []
    for machine in machines_of(study):
        for curve in (*read_curves(study, machine), *read_priced_curves(study, machine)):
            key = curve.key
            labels = (
                machine,
                key.operation.value,
                key.implementation,
                " ".join(key.group),
                None if key.arm is None else key.arm.value,
                key.launch.value,
                key.concurrency,
                key.method,
                curve.provenance.value,
                short_id(curve.record_ids[0]),
            )
            rows += [
                ((*labels, point.size_bytes), (point.time_s, point.low_s, point.high_s, point.n))
                for point in curve.points
            ]
    return Table(
        name="curve",
        about="Time of one call of a transfer or collective by the bytes of one rank.",
        labels=(
            *("machine", "operation", "implementation", "group", "arm", "launch", "concurrency"),
            *("method", "provenance", "record", "size_bytes"),
        ),
        figures=("time_s", "low_s", "high_s", "n"),
        rows=tuple(rows),
    )


def _calls(study: Study) -> Table:
    rows = [
        ((*_named(record), short_id(record.id)), _times(convert(record, "forecast", Forecast)))
        for record in latest(study, "predict.call")
        if isinstance(record.outcome, Predicted)
    ]
    names = ("ttft", "tpot", "latency")
    return Table(
        name="predicted",
        about="Predicted times of a batch given at once, with the interval of each.",
        labels=("machine", "model", *_LOAD, "split", "arm", "record"),
        figures=(
            *(f"{name}{end}_s" for name in names for end in ("", "_low", "_high")),
            *(f"tokens{end}_per_s" for end in ("", "_low", "_high")),
        ),
        rows=tuple(rows),
    )


def _named(record: Record) -> tuple[Label, ...]:
    subject: Mapping[str, Any] = record.subject
    return tuple(subject[name] for name in ("machine", "model", *_LOAD, "split", "arm"))


def _times(found: Forecast) -> tuple[Number, ...]:
    estimates = (found.ttft_s, found.tpot_s, found.latency_s, found.tokens_per_s)
    return tuple(part for one in estimates for part in _parts(one))


def _parts(estimate: Estimate | None) -> tuple[Number, ...]:
    return (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)


def _verdicts(study: Study) -> Table:
    rows: list[_Row] = []
    for record in latest(study, "verdict.load"):
        verdict = convert(record, "verdict", Verdict)
        load = tuple(record.subject[name] for name in ("machine", "model", *_LOAD))
        rows += [
            ((*load, *_compared(one), short_id(record.id)), _parts(one.gain))
            for plan in verdict.plans
            for one in plan.comparisons
        ]
    return Table(
        name="verdict",
        about="Gain of a plan over a baseline: 1.1 is ten percent better; the answer is a label.",
        labels=(
            *("machine", "model", *_LOAD),
            *("aim", "split", "arm", "baseline", "baseline_arm", "answer", "record"),
        ),
        figures=("gain", "gain_low", "gain_high"),
        rows=tuple(rows),
    )


def _compared(one: Comparison) -> tuple[Label, ...]:
    plans = (
        part
        for plan in (one.plan, one.baseline)
        for part in (plan.split.name, None if plan.arm is None else plan.arm.value)
    )
    return (one.aim.value, *plans, one.answer.value)


def _scores(study: Study) -> Table:
    rows: list[_Row] = []
    for record in latest(study, "predict.score"):
        for row in convert(record, "score", Score).rows:
            arm = row.spec.arm
            labels = (
                *(record.subject["machine"], record.subject["file"], row.tag, row.spec.model),
                *(split_of(row.spec).name, None if arm is None else arm.value),
                *(row.batch, row.input, row.spec.output_tokens, row.metric.value),
                "yes" if row.seen else "no",
                None if row.timing is None else row.timing.value,
                short_id(record.id),
            )
            measured = (row.measured, row.measured_low, row.measured_high)
            rows.append((labels, (*measured, row.predicted, row.low, row.high, row.error)))
    return Table(
        name="score",
        about="A prediction beside its measurement; error is relative to the nearer repeat.",
        labels=(
            *("machine", "file", "tag", "model", "split", "arm", "batch", "input", "output"),
            *("metric", "seen", "frozen_before", "record"),
        ),
        figures=(
            *("measured_s", "measured_low_s", "measured_high_s"),
            *("predicted_s", "low_s", "high_s", "error"),
        ),
        rows=tuple(rows),
    )


TABLES: Mapping[str, Callable[[Study], Table]] = {
    "curves": _curves,
    "calls": _calls,
    "verdicts": _verdicts,
    "score": _scores,
}
