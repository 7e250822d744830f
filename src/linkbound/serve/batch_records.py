"""A measured batch as a record: the same `serve.run` that a recorded machine's runs become (E2)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Measured, Reason, Record, Samples
from linkbound.links.live.records import HOST_NAME
from linkbound.links.types import Arm
from linkbound.serve.batch_types import Batch, BatchTimes, HandOvers
from linkbound.serve.contenders import Contender, ServeRun, turns
from linkbound.serve.twin import twin_name
from linkbound.serve.types import EngineRun, RunSpec, RunTimes

KIND = "serve.run"
HAND_OVER_KIND = "serve.hand_over"
METHOD_VERSION = 1


def batch_subject(
    run: ServeRun, contender: Contender, batch: Batch, repeat: int
) -> Mapping[str, Any]:
    """The dimensions that name a batch among the records of its kind."""
    return {
        "machine": HOST_NAME,
        "fingerprint": run.machine,
        "engine": run.engine,
        "model": run.model,
        "contender": contender.name,
        "split": (contender.twin_of or contender.split).name,
        "gpus": contender.split.gpus,
        "arm": None if contender.arm is None else contender.arm.value,
        "twin": contender.twin_of is not None,
        "cell": f"batch of {batch.batch}",
        "batch": batch.batch,
        "prompt_tokens": batch.prompt_tokens,
        "output_tokens": batch.output_tokens,
        "calls": batch.calls,
        "seed": batch.seed,
        "side_by_side": run.side_by_side,
        "repeat": repeat,
        # What was merely measured moves no prediction: `linkbound calibrate` chooses.
        "calibrates": False,
    }


def run_record(
    subject: Mapping[str, Any],
    found: EngineRun | Reason,
    *,
    machine: str | None,
    parents: tuple[str, ...],
    log: str | None = None,
    started: str | None = None,
    duration_s: float | None = None,
) -> Record:
    """One batch, whatever came of it."""
    return Record(
        kind=KIND,
        subject=subject,
        outcome=Failed(reason=found, log=log)
        if isinstance(found, Reason)
        else Measured(values={"run": msgspec.to_builtins(found)}),
        method=f"linkbound.serve.{engine_label(subject['engine'])}_child",
        method_version=METHOD_VERSION,
        machine=machine,
        samples=None if isinstance(found, Reason) else _samples(found.times),
        parents=parents,
        started=started,
        duration_s=duration_s,
    )


def hand_over_record(
    subject: Mapping[str, Any],
    found: HandOvers | Reason,
    parents: tuple[str, ...],
    machine: str | None,
) -> Record:
    """What the steps of a batch hand from GPU to GPU, or why that is not known."""
    return Record(
        kind=HAND_OVER_KIND,
        subject=subject,
        outcome=Failed(reason=found)
        if isinstance(found, Reason)
        else Measured(values=msgspec.to_builtins(found)),
        method="linkbound.serve.stage_copies",
        parents=parents,
        machine=machine,
    )


def _samples(times: RunTimes) -> Samples:
    rows = [("prefill", time_s) for time_s in times.prefill_s]
    rows += [("total", time_s) for time_s in times.total_s]
    return Samples(columns=("call", "time_s"), rows=tuple(rows))


def engine_run(run: ServeRun, contender: Contender, batch: Batch, times: BatchTimes) -> EngineRun:
    """The batch as a row of a runs file."""
    model = model_label(run.model)
    if contender.twin_of is not None:
        model = twin_name(model, contender.twin_of)
    split, arm = contender.split, contender.arm
    return EngineRun(
        tag=f"{model}_{contender.name.replace(' ', '_')}",
        line=1 + run.contenders.index(contender) * len(run.batches) + run.batches.index(batch),
        spec=RunSpec(
            model=model,
            tp=split.tp,
            pp=split.pp,
            expert_parallel=split.ep > 1,
            custom_all_reduce=arm in (None, Arm.P2P),
            p2p_disabled=arm is Arm.STAGED,
            batch=batch.batch,
            prompt_tokens=batch.prompt_tokens,
            output_tokens=batch.output_tokens,
            engine=engine_label(run.engine),
        ),
        times=RunTimes(
            prefill_s=tuple(sorted(times.prefill_s)), total_s=tuple(sorted(times.total_s))
        ),
    )


def engine_label(engine: str) -> str:
    """One name for an engine with and without its server: the same kernels."""
    return engine.removesuffix("-offline")


def model_label(model: str) -> str:
    """A name of one word: of a path, what people call the model."""
    parts = [part for part in model.split("/") if part not in ("", ".", "..", "config.json")]
    return parts[-1] if parts else "model"


def held_batches(study: Study, run: ServeRun, kind: str = KIND) -> tuple[Record, ...]:
    """The last record of this kind of every batch of the run, in the order of its turns."""
    found: list[Record] = []
    for repeat, contender in turns(run.contenders, run.repeats):
        for batch in run.batches:
            found += study.find(kind, **batch_subject(run, contender, batch, repeat))[-1:]
    return tuple(found)
