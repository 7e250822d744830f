"""A step as a picture has it: what ran when, from timelines that are chosen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.profile.decompose import decompose
from linkbound.profile.pieces import PieceKind, last_step
from linkbound.profile.types import Interval, KernelClass, StepSpan, Timeline

COMPUTE, CALL, COPY = KernelClass.COMPUTE, KernelClass.NCCL, KernelClass.HOST_COPY


def timeline(rank: int, *ran: tuple[KernelClass, float, float], ahead_s: float = 0.0) -> Timeline:
    """A step of 10 s on a clock that is ahead; calls are all-reduces."""
    return Timeline(
        rank=rank,
        steps=(StepSpan(index=0, name="step", start_s=ahead_s, end_s=ahead_s + 10.0),),
        intervals=tuple(
            Interval(
                kernel=kernel,
                start_s=ahead_s + start_s,
                end_s=ahead_s + end_s,
                operation="all_reduce" if kernel is CALL else None,
            )
            for kernel, start_s, end_s in ran
        ),
    )


def shown(*timelines: Timeline) -> list[list[tuple[str, float, float]]]:
    found = last_step(timelines)
    assert found is not None
    return [
        [(one.kind.value, one.start_s, one.end_s) for one in rank.pieces] for rank in found.ranks
    ]


def test_who_comes_first_waits_and_the_wire_ends_together() -> None:
    # A short call at the end says how far the clocks are apart: not at all.
    short = (CALL, 9.0, 9.5)
    first, late = shown(
        timeline(0, (COMPUTE, 0.0, 4.0), (CALL, 4.0, 8.0), short),
        timeline(1, (COMPUTE, 0.0, 7.0), (CALL, 7.0, 8.0), short),
    )
    assert first[:3] == [("compute", 0.0, 4.0), ("waiting", 4.0, 7.0), ("wire", 7.0, 8.0)]
    assert late[:2] == [("compute", 0.0, 7.0), ("wire", 7.0, 8.0)]


def test_compute_hides_the_call_below_it() -> None:
    one = timeline(0, (CALL, 0.0, 6.0), (COMPUTE, 2.0, 4.0))
    other = timeline(1, (CALL, 0.0, 6.0))
    assert shown(one, other)[0] == [("wire", 0.0, 2.0), ("compute", 2.0, 4.0), ("wire", 4.0, 6.0)]


def test_a_call_that_one_rank_shows_is_not_divided() -> None:
    assert shown(timeline(0, (CALL, 1.0, 2.0), (COPY, 3.0, 4.0))) == [
        [("wire and waiting", 1.0, 2.0), ("copy with the host", 3.0, 4.0)]
    ]


def test_clocks_are_brought_together_by_the_calls() -> None:
    found = last_step(
        [
            timeline(0, (COMPUTE, 0.0, 4.0), (CALL, 4.0, 4.5)),
            timeline(1, (COMPUTE, 0.0, 4.0), (CALL, 4.0, 4.5), ahead_s=100.0),
        ]
    )
    assert found is not None
    assert found.aligned
    assert [one.pieces[-1].end_s for one in found.ranks] == pytest.approx([4.5, 4.5])


def test_without_a_collective_each_row_begins_with_its_own_step() -> None:
    found = last_step(
        [timeline(0, (COMPUTE, 1.0, 2.0)), timeline(1, (COMPUTE, 3.0, 4.0), ahead_s=100.0)]
    )
    assert found is not None
    assert not found.aligned
    assert [one.pieces[0].start_s for one in found.ranks] == pytest.approx([1.0, 3.0])


def test_no_step_has_no_pieces() -> None:
    assert last_step([]) is None
    assert last_step([Timeline(rank=0, steps=(), intervals=())]) is None


TIMES = st.floats(0.0, 10.0)
RAN = st.lists(
    st.tuples(st.sampled_from([COMPUTE, CALL, COPY]), TIMES, TIMES).map(
        lambda one: (one[0], min(one[1:]), max(one[1:]))
    ),
    max_size=8,
)


@given(RAN, RAN)
def test_pieces_add_up_to_the_parts(
    one: list[tuple[KernelClass, float, float]], other: list[tuple[KernelClass, float, float]]
) -> None:
    timelines = [timeline(0, *one), timeline(1, *other)]
    found = last_step(timelines)
    assert found is not None
    for rank, step in zip(found.ranks, decompose(timelines), strict=True):
        ordered = [edge for piece in rank.pieces for edge in (piece.start_s, piece.end_s)]
        assert ordered == sorted(ordered)
        taken = {
            kind: sum(each.end_s - each.start_s for each in rank.pieces if each.kind is kind)
            for kind in PieceKind
        }
        parts = step.parts
        assert taken[PieceKind.COMPUTE] == pytest.approx(parts.compute_s, abs=1e-9)
        assert taken[PieceKind.HOST_COPY] == pytest.approx(parts.host_copy_s, abs=1e-9)
        calls = taken[PieceKind.WIRE] + taken[PieceKind.WAITING] + taken[PieceKind.UNDIVIDED]
        known = parts.communication_s + parts.waiting_s + parts.unmatched_s
        assert calls == pytest.approx(known, abs=1e-9)
