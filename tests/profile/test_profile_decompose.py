"""Parts of steps from hand-made timelines, with every number known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.profile.decompose import align, decompose, mean_parts, wire_times
from linkbound.profile.types import Interval, KernelClass, StepSpan, Timeline

Row = tuple[str, float, float]


def _interval(
    kind: str, start_s: float, end_s: float, ranks: tuple[int, ...], size: int
) -> Interval:
    call = kind not in ("compute", "host_copy")
    return Interval(
        kernel=KernelClass(kind),
        start_s=start_s,
        end_s=end_s,
        operation="all_reduce" if call else None,
        ranks=ranks if call else (),
        size_bytes=size if call else None,
    )


def _timeline(
    rank: int,
    end_s: float,
    *rows: Row,
    ahead_s: float = 0.0,
    ranks: tuple[int, ...] = (),
    size: int = 1024,
) -> Timeline:
    return Timeline(
        rank=rank,
        steps=(StepSpan(index=0, name="step", start_s=ahead_s, end_s=end_s + ahead_s),),
        intervals=tuple(
            _interval(kind, start_s + ahead_s, to_s + ahead_s, ranks, size)
            for kind, start_s, to_s in rows
        ),
    )


EARLY = _timeline(0, 10.0, ("compute", 0, 3), ("nccl", 3, 7), ("compute", 8, 10))
LATE = _timeline(1, 10.0, ("compute", 0, 6), ("nccl", 6, 7), ("compute", 7, 9.5))


def test_the_early_rank_waits_and_the_wire_is_the_shortest_duration() -> None:
    early, late = (row.parts for row in decompose([EARLY, LATE]))
    assert (early.compute_s, early.communication_s, early.waiting_s) == (5, 1, 3)
    assert early.gap_s == 1
    assert (late.compute_s, late.communication_s, late.waiting_s) == (8.5, 1, 0)
    assert late.gap_s == 0.5
    for parts in (early, late):
        assert parts.unmatched_s == parts.hidden_s == parts.host_copy_s == 0


def test_one_rank_alone_cannot_tell_wire_from_waiting() -> None:
    (row,) = decompose([EARLY])
    assert row.parts.unmatched_s == 4
    assert row.parts.communication_s == row.parts.waiting_s == 0


def test_calls_that_differ_in_number_are_unmatched() -> None:
    more = _timeline(1, 10.0, ("nccl", 0, 1), ("nccl", 2, 3))
    first, second = (row.parts for row in decompose([EARLY, more]))
    assert (first.unmatched_s, second.unmatched_s) == (4, 2)


def test_groups_match_within_themselves() -> None:
    rows = [
        _timeline(0, 4.0, ("nccl", 0, 4), ranks=(0, 1)),
        _timeline(1, 4.0, ("nccl", 2, 4), ranks=(0, 1)),
        _timeline(2, 4.0, ("nccl", 0, 1), ranks=(2, 3)),
        _timeline(3, 4.0, ("nccl", 0, 3), ranks=(2, 3)),
    ]
    wires = [row.parts.communication_s for row in decompose(rows)]
    assert wires == [2, 2, 1, 1]


def test_communication_under_compute_is_hidden() -> None:
    one = _timeline(0, 10.0, ("compute", 0, 6), ("nccl", 4, 8), ("host_copy", 7, 9))
    other = _timeline(1, 10.0, ("nccl", 6, 8))
    parts = decompose([one, other])[0].parts
    assert (parts.compute_s, parts.communication_s, parts.waiting_s) == (6, 2, 0)
    assert (parts.hidden_s, parts.host_copy_s, parts.gap_s) == (2, 1, 1)


def test_two_communication_streams_are_not_counted_twice() -> None:
    one = _timeline(0, 6.0, ("nccl", 0, 4), ("custom", 2, 6))
    parts = decompose([one])[0].parts
    assert parts.unmatched_s == 6
    assert parts.gap_s == 0


def test_mean_parts_add_up() -> None:
    mean = mean_parts(decompose([EARLY, LATE]))
    assert mean is not None
    assert mean.compute_s == 6.75
    assert mean.waiting_s == 1.5
    assert mean.step_s == 10
    assert mean_parts([]) is None


def test_wire_times_by_operation_and_size() -> None:
    (wire,) = wire_times([EARLY, LATE])
    assert (wire.operation, wire.size_bytes, wire.count, wire.wire_s) == ("all_reduce", 1024, 1, 1)


def test_clock_offsets_are_bounded_by_the_calls() -> None:
    first = _timeline(0, 10.0, ("nccl", 3, 7), ("nccl", 8, 8.25))
    other = _timeline(1, 10.0, ("nccl", 6, 7), ("nccl", 8, 8.25), ahead_s=100.0)
    offsets = align([first, other])
    assert offsets is not None
    assert offsets[0].offset_s == 0
    assert offsets[1].offset_s == pytest.approx(100.0)
    assert offsets[1].error_s == pytest.approx(0.25)


def test_contradicting_clocks_have_no_offset() -> None:
    first = _timeline(0, 10.0, ("nccl", 0, 1), ("nccl", 2, 3))
    other = _timeline(1, 30.0, ("nccl", 0, 1), ("nccl", 22, 23))
    assert align([first, other]) is None
    assert align([]) is None
    assert align([first, _timeline(1, 3.0, ("compute", 0, 1))]) is None


_KINDS = st.sampled_from([kind.value for kind in KernelClass])
_ROWS = st.lists(
    st.tuples(_KINDS, st.integers(0, 50), st.integers(0, 20)).map(
        lambda row: (row[0], float(row[1]), float(row[1] + row[2]))
    ),
    max_size=12,
)


@given(st.lists(_ROWS, min_size=1, max_size=3))
def test_parts_add_up_to_the_step(ranks: list[list[Row]]) -> None:
    rows = decompose([_timeline(at, 50.0, *some) for at, some in enumerate(ranks)])
    assert len(rows) == len(ranks)
    for row in rows:
        parts = row.parts
        total = (
            parts.compute_s
            + parts.communication_s
            + parts.waiting_s
            + parts.unmatched_s
            + parts.host_copy_s
            + parts.gap_s
        )
        assert total == pytest.approx(50.0)
        assert min(parts.waiting_s, parts.hidden_s, parts.gap_s) >= 0
