"""Shard tables against whole runs: a shard's time and the calls alone make a step (P1, E3).

Both were measured without the run that they predict: the shard without peers, the calls behind
products of the layers. What the sum misses is what only a step makes: ranks that are late by more,
and clocks under load.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from linkbound.evidence.stats import median
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record
from linkbound.model.types import ModelShape
from linkbound.profile.subjects import is_of
from linkbound.profile.types import Point
from linkbound.splits.types import Phase
from linkbound.values import Value

_SAME = ("split", "dispatch", "device", "phase", "batch", "tokens", "context")
"""What a run's record and a shard's must share."""


class ShardCheck(Value, frozen=True, kw_only=True):
    """A step put together from two measurements, beside the step as it ran. Seconds."""

    split: str
    arm: str
    point: Point
    shard_s: float
    calls_s: float
    measured_s: float
    record_ids: tuple[str, ...]
    """The shards, then the runs."""

    @property
    def predicted_s(self) -> float:
        return self.shard_s + self.calls_s

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.measured_s


def shard_checks(study: Study, shape: ModelShape, machine: str | None) -> tuple[ShardCheck, ...]:
    """Every point of a split without stages that the study has as a run and as a shard."""
    shards = _grouped(study, "profile.shard", shape, machine)
    runs = _grouped(study, "profile.run", shape, machine)
    return tuple(_checks(shards, runs))


_Groups = dict[tuple[Any, ...], list[Record]]


def _grouped(study: Study, kind: str, shape: ModelShape, machine: str | None) -> _Groups:
    found: _Groups = {}
    for record in study.find(kind, model=shape.name):
        subject = record.subject
        plain = subject["delay_s"] is None and subject["alone"] in (None, 0)
        if (
            plain
            and is_of(subject, shape)
            and record.machine == machine
            and isinstance(record.outcome, Measured)
        ):
            # Times of two methods are not compared.
            key = (record.method_version, *(subject[name] for name in _SAME), subject["arm"])
            found.setdefault(key, []).append(record)
    return found


def _checks(shards: _Groups, runs: _Groups) -> Iterator[ShardCheck]:
    for key, records in runs.items():
        alone = shards.get((*key[:-1], None))
        calls_s = [one for record in records for one in (_calls_s(record),) if one is not None]
        if alone is None or key[-1] is None or not calls_s:
            continue
        subject = records[0].subject
        yield ShardCheck(
            split=subject["split"],
            arm=subject["arm"],
            point=_point(subject),
            shard_s=middle_step_s(alone),
            calls_s=_middle(calls_s),
            measured_s=middle_step_s(records),
            record_ids=tuple(record.id for record in (*alone, *records)),
        )


def _point(subject: Mapping[str, Any]) -> Point:
    names = ("batch", "tokens", "context")
    return Point(phase=Phase(subject["phase"]), **{name: subject[name] for name in names})


def _calls_s(record: Record) -> float | None:
    assert isinstance(record.outcome, Measured)
    values = record.outcome.values
    return calls_alone_s(values.get("with_calls_s", ()), values.get("products_s", ()))


def calls_alone_s(
    with_calls_s: Sequence[Sequence[float]], products_s: Sequence[Sequence[float]]
) -> float | None:
    """What the calls add to the products of the slowest rank; each has a row of times a rank.

    None where they were not timed.
    """
    with_calls = median([max(each) for each in zip(*with_calls_s, strict=True)])
    products = [one for one in map(median, products_s) if one is not None]
    return None if with_calls is None or not products else with_calls - max(products)


def middle_step_s(records: list[Record]) -> float:
    """The median step over all records, each as long as its slowest rank."""
    times_s: list[float] = []
    for record in records:
        assert record.samples is not None
        steps: dict[Any, float] = {}
        for _, step, time_s in record.samples.rows:
            assert isinstance(time_s, float)
            steps[step] = max(steps.get(step, 0.0), time_s)
        times_s += steps.values()
    return _middle(times_s)


def _middle(times_s: list[float]) -> float:
    found = median(times_s)
    assert found is not None
    return found
