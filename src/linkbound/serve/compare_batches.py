"""Batches side by side: prefill, time of a token, and what a split takes beyond its twin (P1, P2).

Figures are those of a runs file: of all calls of a point the middle one, element n // 2 of the
sorted list, and the range over all pairs of calls.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from linkbound.evidence.types import Measured, Record
from linkbound.serve.types import EngineRun
from linkbound.values import Value


class Middle(Value, frozen=True, kw_only=True):
    """A time in seconds over all calls of a point."""

    value: float
    low: float
    high: float
    n: int


class BatchRow(Value, frozen=True, kw_only=True):
    """One contender at one point."""

    contender: str
    split: str
    """Of a twin, the split that it is the twin of."""
    twin: bool
    gpus: int
    batch: int
    prompt_tokens: int
    output_tokens: int
    prefill_s: Middle | None
    """None where no repeat has figures."""
    token_s: Middle | None
    """Of one further token; None where one was asked for."""
    whole_s: Middle | None
    """The call with all tokens."""
    problems: tuple[str, ...]
    record_ids: tuple[str, ...]

    @property
    def point(self) -> tuple[int, int, int]:
        """What contenders are compared at."""
        return self.batch, self.prompt_tokens, self.output_tokens


class Beyond(Value, frozen=True, kw_only=True):
    """What a split takes beyond its twin: sending, waiting, and the work of several workers."""

    contender: str
    split: str
    batch: int
    prompt_tokens: int
    output_tokens: int
    prefill: Middle | None
    token: Middle | None
    prefill_share: float | None
    token_share: float | None
    """Of the split's own time."""
    record_ids: tuple[str, ...]


def batch_rows(records: Iterable[Record]) -> tuple[BatchRow, ...]:
    """A row for each contender and point among `serve.run` records, in order of points."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        names = ("batch", "prompt_tokens", "output_tokens", "contender")
        groups.setdefault(tuple(record.subject[name] for name in names), []).append(record)
    order = list(dict.fromkeys(key[:3] for key in groups))
    return tuple(_row(groups[key]) for key in sorted(groups, key=lambda key: order.index(key[:3])))


def _row(records: Sequence[Record]) -> BatchRow:
    runs, problems = [], []
    for record in records:
        match record.outcome:
            case Measured(values=values):
                runs.append(msgspec.convert(values["run"], EngineRun))
            case other:
                reason = getattr(other, "reason", None)
                problems.append(reason.code if reason is not None else "no-figures")
    prefill = sorted(time_s for run in runs for time_s in run.times.prefill_s)
    total = sorted(time_s for run in runs for time_s in run.times.total_s)
    subject = records[0].subject
    return BatchRow(
        contender=str(subject["contender"]),
        split=str(subject["split"]),
        twin=bool(subject["twin"]),
        gpus=int(subject["gpus"]),
        batch=int(subject["batch"]),
        prompt_tokens=int(subject["prompt_tokens"]),
        output_tokens=int(subject["output_tokens"]),
        prefill_s=_middle(prefill),
        token_s=_token(prefill, total, int(subject["output_tokens"])),
        whole_s=_middle(total or prefill),
        problems=tuple(problems),
        record_ids=tuple(record.id for record in records),
    )


def _middle(times: Sequence[float]) -> Middle | None:
    if not times:
        return None
    return Middle(value=times[len(times) // 2], low=times[0], high=times[-1], n=len(times))


def _token(prefill: Sequence[float], total: Sequence[float], output_tokens: int) -> Middle | None:
    if not prefill or not total or output_tokens < 2:
        return None
    count = output_tokens - 1
    return Middle(
        value=(total[len(total) // 2] - prefill[len(prefill) // 2]) / count,
        low=(total[0] - prefill[-1]) / count,
        high=(total[-1] - prefill[0]) / count,
        n=len(total),
    )


def beyond_twins(rows: Sequence[BatchRow]) -> tuple[Beyond, ...]:
    """Every row of a split at a point where its twin was run too."""
    twins = {(row.split, row.point): row for row in rows if row.twin}
    return tuple(
        _beyond(row, twins[row.split, row.point])
        for row in rows
        if not row.twin and (row.split, row.point) in twins
    )


def _beyond(row: BatchRow, twin: BatchRow) -> Beyond:
    prefill = _difference(row.prefill_s, twin.prefill_s)
    token = _difference(row.token_s, twin.token_s)
    return Beyond(
        contender=row.contender,
        split=row.split,
        batch=row.batch,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        prefill=prefill,
        token=token,
        prefill_share=_share(prefill, row.prefill_s),
        token_share=_share(token, row.token_s),
        record_ids=(*row.record_ids, *twin.record_ids),
    )


def _difference(one: Middle | None, other: Middle | None) -> Middle | None:
    if one is None or other is None:
        return None
    return Middle(
        value=one.value - other.value,
        low=one.low - other.high,
        high=one.high - other.low,
        n=min(one.n, other.n),
    )


def _share(part: Middle | None, whole: Middle | None) -> float | None:
    return None if part is None or whole is None or whole.value <= 0 else part.value / whole.value
