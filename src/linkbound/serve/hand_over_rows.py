"""What stages hand to each other, beside the times of their steps (P1)."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from linkbound.evidence.types import Measured, Record
from linkbound.serve.batch_types import HandOvers
from linkbound.serve.compare_batches import BatchRow, Middle
from linkbound.values import Value


class HandOverRow(Value, frozen=True, kw_only=True):
    """What the steps of one contender at one point hand from GPU to GPU."""

    contender: str
    batch: int
    prompt_tokens: int
    output_tokens: int
    last: HandOvers
    """Of the last repeat."""
    prefill_share: float | None
    token_share: float | None
    """Of the step's own time, if nothing else ran meanwhile; None where the step has none."""
    record_ids: tuple[str, ...]

    @property
    def point(self) -> tuple[int, int, int]:
        return self.batch, self.prompt_tokens, self.output_tokens


def hand_over_rows(records: Iterable[Record], rows: Sequence[BatchRow]) -> tuple[HandOverRow, ...]:
    """A row for each contender and point among `serve.hand_over` records."""
    found: dict[str, tuple[HandOvers, list[str]]] = {}
    for record in records:
        match record.outcome:
            case Measured(values=values):
                _, ids = found.get(_key(record.subject), (None, []))
                last = msgspec.convert(values, HandOvers)
                found[_key(record.subject)] = last, [*ids, record.id]
            case _:
                pass
    return tuple(
        _hand_over_row(row, *found[key])
        for row in rows
        if (key := _key(msgspec.structs.asdict(row))) in found
    )


def _key(subject: Mapping[str, object]) -> str:
    names = ("contender", "batch", "prompt_tokens", "output_tokens")
    return " ".join(str(subject[name]) for name in names)


def _hand_over_row(row: BatchRow, last: HandOvers, ids: Sequence[str]) -> HandOverRow:
    return HandOverRow(
        contender=row.contender,
        batch=row.batch,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        last=last,
        prefill_share=_share(last.prefill.time_s, row.prefill_s),
        token_share=_share(last.token.time_s, row.token_s),
        record_ids=tuple(ids),
    )


def _share(time_s: float, whole: Middle | None) -> float | None:
    return None if whole is None or whole.value <= 0 else time_s / whole.value
