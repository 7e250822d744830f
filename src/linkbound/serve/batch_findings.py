"""What batches side by side say: slower with more GPUs, alike on every path (P1, D1, D2)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from linkbound.evidence.types import Derived, Finding, Level, Record, Severity
from linkbound.links.types import Arm
from linkbound.serve.alike import Alike, alike, copies_of_call_s, differs, ratios, told_apart
from linkbound.serve.batch_types import HandOver
from linkbound.serve.compare_batches import BatchRow, Beyond, Middle
from linkbound.serve.hand_over_rows import HandOverRow
from linkbound.serve.traffic_rows import TrafficRow
from linkbound.serve.twin import NOT_IN_IT
from linkbound.splits.parse_split import parse_split
from linkbound.units import format_time

_DIRECT = (Arm.P2P, Arm.NCCL)
_CROSSING = "Compute grew, and what crosses between the GPUs cost more than it saved."
_IN_TURN = (
    "The whole batch is computed stage after stage: one GPU works and the others wait. The split "
    "adds memory and no speed, and sending every layer its inputs is work of its own."
)
_NOTHING = "nothing that was seen here."
_NO_CALL = "no whole call by as much as 5 %."
_Handed = Mapping[tuple[str, tuple[int, int, int]], HandOverRow]
"""By contender and point."""


def batch_findings(
    rows: Sequence[BatchRow],
    handed: Sequence[HandOverRow],
    traffic: Sequence[TrafficRow],
    *,
    in_turn: bool,
) -> tuple[Finding, ...]:
    """All that is found. `in_turn`: this engine computes a split's stages one after the other."""
    return (
        *slower_batches(rows, in_turn=in_turn),
        *alike_on_every_path(rows, handed, traffic, in_turn=in_turn),
        *(_no_faster(rows, handed) if in_turn else ()),
    )


def slower_batches(rows: Sequence[BatchRow], *, in_turn: bool = False) -> tuple[Finding, ...]:
    """Where more GPUs took longer than fewer for the same batch, and no calls overlap (D2)."""
    return tuple(
        _slower(more, fewer, _IN_TURN if in_turn else _CROSSING)
        for more in rows
        for fewer in rows
        if more.point == fewer.point
        and more.gpus > fewer.gpus
        and not fewer.twin
        and more.whole_s is not None
        and fewer.whole_s is not None
        and more.whole_s.low > fewer.whole_s.high
    )


def _slower(more: BatchRow, fewer: BatchRow, why: str) -> Finding:
    assert more.whole_s is not None
    assert fewer.whole_s is not None
    ratio = more.whole_s.value / fewer.whole_s.value
    return Finding(
        code="more-gpus-slower",
        level=Level.SEEN,
        severity=Severity.WARNING,
        seen=f"{more.batch} x {more.prompt_tokens:,} + {more.output_tokens}: {more.contender} "
        f"takes {ratio:.2f} times as long as {fewer.contender}, with {more.gpus} GPUs instead of "
        f"{fewer.gpus}.",
        why=why,
        remedy=f"Run {fewer.contender}, or look for the crossing: linkbound splits MODEL.",
        record_ids=(*more.record_ids, *fewer.record_ids),
    )


def alike_on_every_path(
    rows: Sequence[BatchRow],
    handed: Sequence[HandOverRow],
    traffic: Sequence[TrafficRow],
    *,
    in_turn: bool = False,
) -> Iterator[Finding]:
    """Splits by layers that are as fast staged as direct, with what crosses as the reason (D1)."""
    found = _by_contender(handed)
    for staged in rows:
        if _arm(staged) is not Arm.STAGED or not _is_by_layers(staged):
            continue
        for direct in rows:
            same = (direct.split, direct.point) == (staged.split, staged.point)
            if same and _arm(direct) in _DIRECT:
                one, other = _found(found, direct), _found(found, staged)
                copies_s = (
                    copies_of_call_s(other) - copies_of_call_s(one) if one and other else None
                )
                shown = alike(direct, staged, copies_s)
                if shown and not _prefill_differs(staged, direct, found):
                    yield _does_not_matter(direct, staged, shown, found, traffic, in_turn)


def _by_contender(handed: Sequence[HandOverRow]) -> _Handed:
    return {(one.contender, one.point): one for one in handed}


def _found(handed: _Handed, row: BatchRow) -> HandOverRow | None:
    return handed.get((row.contender, row.point))


def _arm(row: BatchRow) -> Arm | None:
    name = row.contender.removeprefix(f"{row.split} ")
    return Arm(name) if name in list(Arm) else None


def _is_by_layers(row: BatchRow) -> bool:
    split = parse_split(row.split)
    return not row.twin and split.pp > 1 and split.tp == 1


def _does_not_matter(
    direct: BatchRow,
    staged: BatchRow,
    shown: Alike,
    handed: _Handed,
    traffic: Sequence[TrafficRow],
    in_turn: bool,
) -> Finding:
    pair = [one for row in (direct, staged) if (one := _found(handed, row))]
    apart = _prefill_words(staged, direct, handed)
    why = _handed_words(*pair) if len(pair) == 2 else _counted_words(direct, staged, traffic)
    if in_turn:
        why += (
            " One GPU computes while the other waits, so that a step is the stages' times and these"
            " copies one after the other."
        )
    return Finding(
        code="link-does-not-matter",
        level=Level.SEEN,
        severity=Severity.INFO,
        seen=f"{_point(staged)}: {staged.contender} takes "
        f"{_times_as_long(staged, direct)} as {direct.contender}.{apart}",
        why=f"{why} {shown.words}",
        remedy="For this split a faster link, or peer-to-peer where there is none, changes "
        + (_NO_CALL if apart else _NOTHING),
        record_ids=(
            *direct.record_ids,
            *staged.record_ids,
            *(one for row in pair for one in row.record_ids),
        ),
    )


def _point(row: BatchRow) -> str:
    return f"{row.batch} x {row.prompt_tokens:,} + {row.output_tokens}"


def _times_as_long(one: BatchRow, other: BatchRow) -> str:
    assert one.whole_s is not None
    assert other.whole_s is not None
    low, high = ratios(one.whole_s, other.whole_s)
    return f"{one.whole_s.value / other.whole_s.value:.2f} ({low:.2f} to {high:.2f}) times as long"


def _prefill_differs(staged: BatchRow, direct: BatchRow, handed: _Handed) -> bool:
    """Whether prefills alone are told apart by more than their copies: then the path matters."""
    mine, theirs = staged.prefill_s, direct.prefill_s
    if mine is None or theirs is None:
        return False
    return differs(mine, theirs, _prefill_copies_s(staged, direct, handed) or 0.0)


def _prefill_copies_s(one: BatchRow, other: BatchRow, handed: _Handed) -> float | None:
    """By how much the copies of a prefill differ, timed alone; None where they were not."""
    mine, theirs = _found(handed, one), _found(handed, other)
    if mine is None or (theirs is None and other.gpus > 1):
        return None
    return abs(mine.last.prefill.time_s - (theirs.last.prefill.time_s if theirs else 0.0))


def _prefill_words(one: BatchRow, other: BatchRow, handed: _Handed) -> str:
    """That prefills are told apart where whole calls are not, and what copies explain of it."""
    mine, theirs = one.prefill_s, other.prefill_s
    if mine is None or theirs is None or not told_apart(mine, theirs):
        return ""
    words = f" Prefill alone is told apart: {_range_words(mine)} against {_range_words(theirs)}"
    alone_s = _prefill_copies_s(one, other, handed)
    if alone_s is None:
        return f"{words}."
    return f"{words}; copies alone explain {format_time(alone_s)} of that."


def _range_words(time: Middle) -> str:
    return f"{time.value * 1e3:,.1f} ms ({time.low * 1e3:,.1f} to {time.high * 1e3:,.1f})"


def _handed_words(direct: HandOverRow, staged: HandOverRow) -> str:
    one, other = direct.last, staged.last
    words = _step_words((one.prefill, direct.prefill_share), (other.prefill, staged.prefill_share))
    found = f"A prefill hands over {words}"
    if direct.token_share is not None and staged.token_share is not None:
        words = _step_words((one.token, direct.token_share), (other.token, staged.token_share))
        found += f"; a token's step {words}"
    return f"{found}."


def _step_words(
    direct: tuple[HandOver, float | None], staged: tuple[HandOver, float | None]
) -> str:
    (one, share), (other, other_share) = direct, staged
    return (
        f"{one.size_bytes / 1e6:,.2f} MB in {one.tensors} copies, alone {one.time_s * 1e3:.2f} ms "
        f"direct and {other.time_s * 1e3:.2f} ms staged, {share or 0:.1%} and "
        f"{other_share or 0:.1%} of its time"
    )


def _counted_words(direct: BatchRow, staged: BatchRow, traffic: Sequence[TrafficRow]) -> str:
    cell = f"batch of {direct.batch}, {direct.prompt_tokens} in, {direct.output_tokens} out"
    seen = {row.contender: row for row in traffic if row.cell == cell}
    words = "Only what a layer gives to the next one crosses, once a boundary"
    over = seen.get(direct.contender), seen.get(staged.contender)
    if over[0] and over[1] and over[0].nvlink_bytes is not None and over[1].host_bytes is not None:
        words += (
            f": {over[0].nvlink_bytes / 1e9:,.3f} GB over NVLink in all calls of this point, "
            f"{over[1].host_bytes / 1e9:,.3f} GB to the host where it was staged"
        )
    return f"{words}."


def _no_faster(rows: Sequence[BatchRow], handed: Sequence[HandOverRow]) -> Iterator[Finding]:
    """Splits by layers that are alike one GPU; what is slower is said elsewhere."""
    found = _by_contender(handed)
    for more in rows:
        if more.whole_s is None or not _is_by_layers(more):
            continue
        copies = _found(found, more)
        for one in rows:
            if one.point != more.point or one.gpus > 1 or one.twin or one.whole_s is None:
                continue
            slower = more.whole_s.low > one.whole_s.high
            # One GPU copies nothing to another: all copies are the split's.
            shown = alike(one, more, copies_of_call_s(copies) if copies else None)
            if not slower and shown:
                yield _in_turn(more, one, shown, found)


def _in_turn(more: BatchRow, one: BatchRow, shown: Alike, handed: _Handed) -> Finding:
    copies = _found(handed, more)
    return Finding(
        code="stages-take-turns",
        level=Level.SEEN,
        severity=Severity.WARNING,
        seen=f"{_point(more)}: {more.contender} takes {_times_as_long(more, one)} as "
        f"{one.contender}, with {more.gpus} GPUs.{_prefill_words(more, one, handed)}",
        why=f"{_IN_TURN} {shown.words}",
        remedy=f"Where the model fits run {one.contender}, and replicas for more requests; or "
        "tensor parallelism, which an engine such as vLLM has.",
        record_ids=(*more.record_ids, *one.record_ids, *(copies.record_ids if copies else ())),
    )


def batches_record(
    rows: Sequence[BatchRow],
    beyond: Sequence[Beyond],
    findings: Sequence[Finding],
    traffic: Sequence[TrafficRow],
    handed: Sequence[HandOverRow],
    subject: Mapping[str, Any],
) -> Record:
    """The whole comparison, resting on the records of its batches."""
    parents = [one for row in rows for one in row.record_ids]
    parents += [one for row in handed for one in row.record_ids]
    parents += [one for row in traffic for one in row.record_ids]
    return Record(
        kind="serve.comparison",
        subject=subject,
        outcome=Derived(
            values={
                "rows": msgspec.to_builtins(tuple(rows)),
                "beyond_twins": msgspec.to_builtins(tuple(beyond)),
                "not_in_a_twin": list(NOT_IN_IT) if beyond else [],
                "findings": msgspec.to_builtins(tuple(findings)),
                "traffic": msgspec.to_builtins(tuple(traffic)),
                "hand_overs": msgspec.to_builtins(tuple(handed)),
            }
        ),
        method="linkbound.serve.compare_batches",
        parents=tuple(dict.fromkeys(parents)),
    )
