"""What is predicted of a point and what was measured of it, metric by metric (E3)."""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

import msgspec

from linkbound.links.types import Arm
from linkbound.model.derive import shape_key
from linkbound.model.types import Load
from linkbound.predict.calibrate import load_of, split_of
from linkbound.predict.forecast import forecast, plan_on
from linkbound.predict.pricing import NoForecast
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate
from linkbound.serve.rules import VLLM
from linkbound.serve.types import EngineRun, RunSpec
from linkbound.splits.types import Split
from linkbound.values import Value


class Metric(StrEnum):
    """A time in seconds."""

    TPOT = "tpot_s"
    """(whole call - prefill) / (output - 1)."""
    PREFILL = "prefill_s"
    """From a batch given at once to the last sequence's first token."""
    PREFILL_STEP = "prefill_step_s"
    """All prompts of a batch through the reference runtime, on the device."""
    DECODE_STEP = "decode_step_s"
    """One token for every sequence of a batch after its prompt, on the device."""


class Measurement(Value, frozen=True, kw_only=True):
    """A metric over repeats: low <= middle <= high."""

    middle: float
    low: float
    high: float


class Prediction(Value, frozen=True, kw_only=True):
    """What is fixed before any measured field is read."""

    spec: RunSpec
    shape: str
    """`shape_key` of the model."""
    estimates: Mapping[Metric, Estimate]
    seen: bool = False
    """Whether the constants were calibrated with this point: then it proves nothing."""
    unseen: tuple[str, ...] = ()
    """What no calibrating run shows of the plan: names of `UnseenErrors`."""
    shards: Mapping[Metric, tuple[str, ...]] = {}
    """Steps whose compute is a shard's that was timed alone, with its records."""


class Observation(Value, frozen=True, kw_only=True):
    """What was measured of a point."""

    tag: str
    """Rows of one tag are from one start of the engine."""
    spec: RunSpec
    metrics: Mapping[Metric, Measurement]
    started: str | None = None
    """ISO 8601 with offset; None where nothing says when it was measured."""
    record_ids: tuple[str, ...] = ()


Seen = Callable[[RunSpec, str], bool]
"""Whether a point of a shape is one that calibrated."""


def spec_of(
    split: Split, arm: Arm | None, load: Load, *, model: str, engine: str = VLLM.engine
) -> RunSpec | None:
    """The point of a batch on a split; None where a row of a runs file could not say it."""
    plain = split.replicas == 1 and split.ep in (1, split.tp)
    if not plain or split != Split(tp=split.tp, pp=split.pp, ep=split.ep) or arm is Arm.NET:
        return None
    return RunSpec(
        model=model,
        tp=split.tp,
        pp=split.pp,
        expert_parallel=split.ep > 1,
        custom_all_reduce=arm in (None, Arm.P2P),
        p2p_disabled=arm is Arm.STAGED,
        batch=load.concurrency,
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        engine=engine,
    )


def point_of(spec: RunSpec) -> RunSpec:
    """The point without the model's name; on one GPU no arm means anything."""
    alone = spec.arm is None
    return msgspec.structs.replace(
        spec,
        model="",
        custom_all_reduce=alone or spec.custom_all_reduce,
        p2p_disabled=not alone and spec.p2p_disabled,
    )


def predict_specs(
    specs: tuple[RunSpec, ...],
    engine_of: Callable[[str], Engine],
    seen: Seen,
    excluded: Collection[str] = (),
) -> tuple[Prediction | NoForecast, ...]:
    """A prediction for each point, or why there is none; `engine_of` takes a model's name.

    GPUs with a label in `excluded` are not used.
    """
    return tuple(_predict(spec, engine_of(spec.model), seen, excluded) for spec in specs)


def _predict(
    spec: RunSpec, engine: Engine, seen: Seen, excluded: Collection[str]
) -> Prediction | NoForecast:
    plan = plan_on(engine.book.machine, split_of(spec), spec.arm, excluded)
    try:
        found = forecast(engine, plan, load_of(spec))
    except NoForecast as error:
        return error
    estimates = {Metric.PREFILL: found.ttft_s}
    if found.tpot_s is not None:
        estimates[Metric.TPOT] = found.tpot_s
    shape = shape_key(engine.shape)
    tokens = spec.prompt_tokens + spec.output_tokens
    return Prediction(
        spec=spec,
        shape=shape,
        estimates=estimates,
        seen=seen(spec, shape),
        unseen=engine.unseen(plan.split, tokens),
    )


def observation(run: EngineRun, record_ids: tuple[str, ...] = ()) -> Observation:
    """The metrics of a run; a median is the middle element of the sorted repeats."""
    metrics = {Metric.PREFILL: over(run.times.prefill_s)}
    token = _token(run)
    if token is not None:
        metrics[Metric.TPOT] = token
    return Observation(
        tag=run.tag, spec=run.spec, metrics=metrics, started=run.started, record_ids=record_ids
    )


def over(times_s: Collection[float]) -> Measurement:
    """Repeats of one time; of an even number the upper of the two in the middle."""
    found = sorted(times_s)
    return Measurement(middle=found[len(found) // 2], low=found[0], high=found[-1])


def _token(run: EngineRun) -> Measurement | None:
    """TPOT as the runs file defines it, and its range over all pairs of repeats."""
    if not run.times.total_s or run.spec.output_tokens < 2:
        return None
    count = run.spec.output_tokens - 1
    prefill, total = over(run.times.prefill_s), over(run.times.total_s)
    return Measurement(
        middle=(total.middle - prefill.middle) / count,
        low=(total.low - prefill.high) / count,
        high=(total.high - prefill.low) / count,
    )
