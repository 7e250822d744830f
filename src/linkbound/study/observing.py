"""What a study measured of points that can be predicted: engine runs, loads, profiled steps (E3).

Only records of kinds that one batch explains are read. A closed loop is one where everything is
sent at once, or one request at a time; other loads queue, which needs a simulation.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from linkbound.evidence.stats import median
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record
from linkbound.links import Arm
from linkbound.model.derive import shape_key
from linkbound.model.types import Load
from linkbound.predict.points import (
    Measurement,
    Metric,
    Observation,
    observation,
    over,
    spec_of,
)
from linkbound.predict.reference import RUNTIME
from linkbound.serve import VLLM, EngineRun, RunSpec, merged
from linkbound.serve.batch_records import model_label
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Phase
from linkbound.study.reading import convert, read_run_shapes
from linkbound.values import Value


class Observed(Value, frozen=True, kw_only=True):
    """A measurement with what it was made on."""

    observation: Observation
    shape: str | None
    """`shape_key`; None where the record does not say it: models meet by name then."""
    machine: str | None
    """Fingerprint id; None where the record does not say."""


def observe(study: Study) -> tuple[Observed, ...]:
    """Everything that the study measured and that a batch explains."""
    return (*_runs(study), *_loads(study), *_profiles(study))


def _runs(study: Study) -> Iterable[Observed]:
    groups: dict[tuple[str, str, RunSpec], list[tuple[Record, EngineRun]]] = {}
    for record in study.find("serve.run"):
        if isinstance(record.outcome, Measured):
            run = convert(record, "run", EngineRun)
            run = msgspec.structs.replace(run, started=run.started or record.started)
            key = (str(record.subject["machine"]), run.tag, run.spec)
            groups.setdefault(key, []).append((record, run))
    for (machine, _, spec), found in groups.items():
        (run,) = merged(run for _, run in found)
        shape = read_run_shapes(study, machine).get(spec.model)
        yield Observed(
            observation=observation(run, tuple(record.id for record, _ in found)),
            shape=None if shape is None else shape_key(shape),
            machine=found[0][0].machine,
        )


def _loads(study: Study) -> Iterable[Observed]:
    """Repeats of a closed loop of one engine; each start of it is a repeat."""
    for subject, records in _repeats(study.find("serve.load")):
        spec = _load_spec(subject)
        if spec is None:
            continue
        waves = [found for record in records if (found := _wave(record, spec)) is not None]
        if not waves:
            continue
        metrics = {Metric.PREFILL: over([first for first, _ in waves])}
        tokens = [token for _, token in waves if token is not None]
        if tokens:
            metrics[Metric.TPOT] = over(tokens)
        yield _observed(f"{subject['contender']}, {subject['cell']}", spec, metrics, records)


def _load_spec(subject: Mapping[str, Any]) -> RunSpec | None:
    """The batch that a cell of load is; None for other engines and for loads that queue."""
    concurrency = subject.get("concurrency")
    alone = concurrency == 1 or concurrency == subject.get("requests")
    if subject.get("engine") != VLLM.engine or concurrency is None or not alone:
        return None
    return _spec(
        str(subject["model"]),
        str(subject["split"]),
        subject["arm"],
        Load(
            prompt_tokens=subject["prompt_tokens"],
            output_tokens=subject["output_tokens"],
            concurrency=concurrency,
        ),
    )


def _wave(record: Record, spec: RunSpec) -> tuple[float, float | None] | None:
    """Seconds to the last first token and of a further token, over the requests of a cell.

    One request at a time: the medians of all. None where one request failed.
    """
    assert record.samples is not None
    names = record.samples.columns
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in record.samples.rows]
    rows = [row for row in rows if not row["warm_up"]]
    if any(row["error"] is not None or row["first_text_s"] is None for row in rows):
        return None
    later = spec.output_tokens - 1
    if spec.batch == 1:
        first = median([row["first_text_s"] - row["sent_s"] for row in rows])
        token = median([(row["end_s"] - row["first_text_s"]) / max(later, 1) for row in rows])
    else:
        start = min(row["sent_s"] for row in rows)
        last = max(row["first_text_s"] for row in rows)
        first = last - start
        token = (max(row["end_s"] for row in rows) - last) / max(later, 1)
    assert first is not None
    return first, token if later else None


def _profiles(study: Study) -> Iterable[Observed]:
    """Steps of the reference runtime on GPUs, all ranks together, undisturbed."""
    for subject, records in _repeats(study.find("profile.run")):
        plain = (subject["device"], subject["micro_batches"]) == ("cuda", 1)
        if not plain or subject["alone"] is not None or subject["delay_s"] is not None:
            continue
        decode = subject["phase"] == Phase.DECODE.value
        if not decode and subject["context"]:
            continue
        spec = _spec(
            str(subject["model"]),
            str(subject["split"]),
            subject["arm"],
            Load(
                prompt_tokens=subject["context"] if decode else subject["tokens"],
                output_tokens=1,
                concurrency=subject["batch"],
            ),
            RUNTIME,
        )
        if spec is not None:
            metric = Metric.DECODE_STEP if decode else Metric.PREFILL_STEP
            metrics = {metric: _steps(records)}
            yield _observed(
                f"profile {subject['split']}", spec, metrics, records, subject.get("shape")
            )


def _steps(records: list[Record]) -> Measurement:
    """Over the medians of the repeats, or over the steps where there is one repeat."""
    found = [_slowest(record) for record in records]
    if len(found) == 1:
        return over(found[0])
    return over([middle for steps in found if (middle := median(steps)) is not None])


def _slowest(record: Record) -> list[float]:
    """Each step's time on the rank that took longest."""
    assert record.samples is not None
    steps: dict[Any, float] = {}
    for _, step, time_s in record.samples.rows:
        assert isinstance(time_s, int | float)
        steps[step] = max(steps.get(step, 0.0), float(time_s))
    return list(steps.values())


def _repeats(records: Iterable[Record]) -> list[tuple[Mapping[str, Any], list[Record]]]:
    """Measured records by what they are of, whatever the repeat."""
    groups: dict[tuple[tuple[str, object], ...], list[Record]] = {}
    for record in records:
        if isinstance(record.outcome, Measured):
            key = tuple(
                (name, value)
                for name, value in record.subject.items()
                if name not in ("repeat", "seed")
            )
            groups.setdefault(key, []).append(record)
    return [(dict(key), found) for key, found in groups.items()]


def _spec(
    model: str, split_name: str, arm: str | None, load: Load, engine: str = VLLM.engine
) -> RunSpec | None:
    """A point by the names of its split and arm; None where a runs file could not say it."""
    return spec_of(
        parse_split(split_name),
        None if arm is None else Arm(arm),
        load,
        model=model_label(model),
        engine=engine,
    )


def _observed(
    tag: str,
    spec: RunSpec,
    metrics: Mapping[Metric, Measurement],
    records: list[Record],
    shape: str | None = None,
) -> Observed:
    starts = [record.started for record in records]
    return Observed(
        observation=Observation(
            tag=tag,
            spec=spec,
            metrics=metrics,
            # The first repeat decides: what follows it could have been seen.
            started=None if None in starts else min(one for one in starts if one is not None),
            record_ids=tuple(record.id for record in records),
        ),
        shape=shape,
        machine=records[0].machine,
    )
