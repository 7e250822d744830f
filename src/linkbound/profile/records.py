"""What children measured as records of a study, and what is derived from them (E2, P1).

`profile.run` holds every step's time and every call; `profile.parts` rests on runs alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from linkbound.evidence import (
    Derived,
    Failed,
    Measured,
    Outcome,
    Reason,
    Record,
    Samples,
    Study,
)
from linkbound.links.types import Arm
from linkbound.model.types import ModelShape
from linkbound.profile.effects import Against, Effect, sentence
from linkbound.profile.launch import JobResult
from linkbound.profile.shards import ShardCheck
from linkbound.profile.subjects import model_of, subject_of
from linkbound.profile.summary import Row, bf16_because, ranks_of
from linkbound.profile.types import Point, RankPoint
from linkbound.splits.types import Split

METHOD = "linkbound reference runtime"
METHOD_VERSION = 6
CONTRADICTED = frozenset({"arm-contradicted", "counters-contradict-arm"})
"""Findings after which a time is not of the arm that it was asked for."""


def append_result(
    study: Study, result: JobResult, repeat: int, machine: str | None, started: str
) -> list[str]:
    """Append a run record for each point of the job; a point not finished is Failed."""
    log = study.add_blob(result.log.encode()) if result.log else None
    return [
        study.append(
            Record(
                kind="profile.shard" if result.job.alone is not None else "profile.run",
                subject=subject_of(result.job, point, repeat),
                outcome=_outcome(result, point, log),
                method=METHOD,
                method_version=METHOD_VERSION,
                machine=machine,
                command=result.command,
                environment=result.environment,
                started=started,
                duration_s=result.duration_s,
                samples=_samples(ranks_of(result, point)),
                blobs=_blobs(study, ranks_of(result, point), log),
            )
        )
        for point in result.job.points
    ]


def _outcome(result: JobResult, point: Point, log: str | None) -> Outcome:
    ranks = ranks_of(result, point)
    if not ranks:
        return Failed(reason=_unfinished(result), log=log)
    wrong = next((one for one in result.findings if one.code in CONTRADICTED), None)
    if wrong is not None:
        return Failed(reason=Reason(code=wrong.code, text=wrong.seen), log=log)
    return Measured(
        values={
            "launch": ranks[0].launch.value,
            "eager_because": ranks[0].eager_because,
            "bf16_because": bf16_because(ranks),
            "path": result.path,
            "calls": msgspec.to_builtins(ranks[0].calls),
            "with_calls_s": [one.with_calls_s for one in ranks],
            "products_s": [one.products_s for one in ranks],
            "under_profiler_s": [one.under_profiler_s for one in ranks],
            "traffic": msgspec.to_builtins(ranks[0].traffic),
            "traffic_steps": ranks[0].traffic_steps,
            "parameters": [one.parameters for one in ranks],
            "float8_parameters": [one.float8_parameters for one in ranks],
            "memory_bytes": [one.memory_bytes for one in ranks],
        }
    )


def _unfinished(result: JobResult) -> Reason:
    """Why not every rank has the point."""
    if result.interrupted:
        return Reason(code="interrupted", text="The user ended the child before it was finished.")
    if result.findings:
        return Reason(code=result.findings[0].code, text=result.findings[0].seen)
    return Reason(code="not-finished", text="Not every rank finished it.")


def _blobs(study: Study, ranks: Sequence[RankPoint], log: str | None) -> tuple[str, ...]:
    """The log, and the timelines of all ranks: parts are computed from them again at will."""
    timelines = [one.timeline for one in ranks if one.timeline is not None]
    kept = () if log is None else (log,)
    return (*kept, study.add_blob(msgspec.json.encode(timelines))) if timelines else kept


def _samples(ranks: Sequence[RankPoint]) -> Samples | None:
    if not ranks:
        return None
    return Samples(
        columns=("rank", "step", "time_s"),
        rows=tuple(
            (one.rank, step, time_s) for one in ranks for step, time_s in enumerate(one.times_s)
        ),
    )


RunIds = Mapping[str, Sequence[str]]
"""Runs by `row_key`."""


def append_rows(
    study: Study, rows: Iterable[Row], run_ids: RunIds, shape: ModelShape, machine: str | None
) -> list[str]:
    """Append a parts record for each row; resting on its runs."""
    return [
        study.append(
            Record(
                kind="profile.parts",
                subject={
                    **model_of(shape),
                    "split": row.split.name,
                    "arm": None if row.arm is None else row.arm.value,
                    "alone": row.alone,
                    "delay_s": None if row.delay is None else row.delay.seconds,
                    "phase": row.point.phase.value,
                    "batch": row.point.batch,
                    "tokens": row.point.tokens,
                    "context": row.point.context,
                },
                outcome=Derived(values=document_of(row)),
                method="parts of a step",
                method_version=METHOD_VERSION,
                machine=machine,
                parents=tuple(run_ids.get(row_key(row.split, row.arm, row.alone, row.point), ())),
            )
        )
        for row in rows
    ]


def append_effects(
    study: Study, found: Iterable[Effect], run_ids: RunIds, shape: ModelShape, machine: str | None
) -> list[str]:
    """Append what the profile shows by itself, each resting on the runs that it compares."""
    return [
        study.append(
            Record(
                kind="profile.effect",
                subject={
                    **model_of(shape),
                    "split": one.split.name,
                    "arm": None if one.arm is None else one.arm.value,
                    "code": one.code,
                },
                outcome=Derived(values={"text": sentence(one), **msgspec.to_builtins(one)}),
                method="profile rows compared",
                method_version=METHOD_VERSION,
                machine=machine,
                parents=effect_runs(one, run_ids),
            )
        )
        for one in found
    ]


def effect_runs(one: Effect, run_ids: RunIds) -> tuple[str, ...]:
    """Runs behind both sides of every point of an effect."""
    other = (Split(), None) if one.against is Against.ONE_GPU else (one.split, Arm.STAGED)
    sides = ((one.split, one.arm), other)
    return tuple(
        dict.fromkeys(
            run
            for pair in one.pairs
            for split, arm in sides
            for run in run_ids.get(row_key(split, arm, None, pair.point), ())
        )
    )


def append_checks(
    study: Study, checks: Iterable[ShardCheck], shape: ModelShape, machine: str | None
) -> list[str]:
    """Append each step that was put together from a shard and its calls, with its parents."""
    return [
        study.append(
            Record(
                kind="profile.check",
                subject={
                    **model_of(shape),
                    "split": one.split,
                    "arm": one.arm,
                    **msgspec.to_builtins(one.point),
                },
                outcome=Derived(
                    values={
                        "shard_s": one.shard_s,
                        "calls_s": one.calls_s,
                        "predicted_s": one.predicted_s,
                        "measured_s": one.measured_s,
                        "ratio": one.ratio,
                    }
                ),
                method="shard alone + calls alone",
                method_version=METHOD_VERSION,
                machine=machine,
                parents=one.record_ids,
            )
        )
        for one in checks
    ]


def row_key(split: Split, arm: Arm | None, alone: int | None, point: Point) -> str:
    """The key that joins a row and its runs."""
    dispatch = split.dispatch.value if split.ep > 1 else ""
    return f"{split.name}/{dispatch}/{arm}/{alone}/{point.name}"


def document_of(row: Row) -> dict[str, Any]:
    """A row as JSON: seconds, bytes a second, tokens a second; null where not known."""
    plain: dict[str, Any] = msgspec.to_builtins(row)
    split, point = plain.pop("split"), plain.pop("point")
    return {
        "split": row.split.name,
        "gpus": row.split.gpus,
        "degrees": split,
        **point,
        **plain,
        "compute_per_layer_s": row.compute_per_layer_s,
        "communication_per_layer_s": row.communication_per_layer_s,
    }
