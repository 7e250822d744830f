"""A delay that was given on purpose, and what is found of it."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from profile_results import DECODE, calls, job, result

from linkbound.links.types import Arm, Launch, Operation
from linkbound.profile.control import AIMED_SHARE, Control, control_of, middle, sentence
from linkbound.profile.decompose import decompose
from linkbound.profile.summary import rows
from linkbound.profile.types import Delay, Interval, KernelClass, RankPoint, StepSpan, Timeline

CALLS = 8
SLOWED = replace(job("tp2", Arm.P2P), delay=Delay(rank=1, seconds=0.0001))


def _timeline(rank: int, parts: Sequence[tuple[str, float]]) -> Timeline:
    """A step of these kernels by name, one after another; a call is named `nccl`."""
    ran, at_s = [], 0.0
    for name, length_s in parts:
        called = name == "nccl"
        ran.append(
            Interval(
                kernel=KernelClass.NCCL if called else KernelClass.COMPUTE,
                start_s=at_s,
                end_s=at_s + length_s,
                name=name,
                operation="all_reduce" if called else None,
            )
        )
        at_s += length_s
    span = StepSpan(index=0, name="step", start_s=0.0, end_s=at_s)
    return Timeline(rank=rank, steps=(span,), intervals=tuple(ran))


def _ranks(own_s: float, slowed_s: float, spin_s: float) -> list[RankPoint]:
    """Both ranks leave their call together; the slowed one comes last, and it takes 1 ms."""
    spin = "at::cuda::(anonymous namespace)::spin_kernel(long)"
    waited_s = slowed_s + spin_s - own_s
    timelines = (
        _timeline(0, [("gemm", own_s), ("nccl", waited_s + 0.001)]),
        _timeline(1, [("gemm", slowed_s), (spin, spin_s), ("nccl", 0.001)]),
    )
    return [
        RankPoint(
            rank=one.rank,
            point=DECODE,
            launch=Launch.GRAPH,
            times_s=(one.steps[0].end_s,),
            calls=calls((0, 1)),
            timeline=one,
        )
        for one in timelines
    ]


def _control(ranks: Sequence[RankPoint]) -> Control:
    timelines = [one.timeline for one in ranks if one.timeline is not None]
    found = control_of(ranks, decompose(timelines), timelines, SLOWED)
    assert found is not None
    return found


def test_spins_are_what_is_known_and_the_ranks_own_work_is_left_out() -> None:
    # Asked for are 8 x 0.1 ms; the spins took 0.9 ms, and rank 0 computes 0.3 ms longer.
    found = _control(_ranks(0.0053, 0.005, 0.0009))
    assert found.calls == CALLS
    assert found.known_s == pytest.approx(0.0009)
    assert found.found_s == pytest.approx(0.0006)
    assert found.difference_s == pytest.approx(0.0003)
    assert found.error == pytest.approx(-1 / 3)
    assert not found.decides
    assert found.deciding_s == pytest.approx(0.001)
    assert sentence("tp2 p2p, prefill", found) == (
        "tp2 p2p, prefill: the slowed rank holds the others up for 900 us a step; 600 us are found "
        "as waiting (-33.3%). Without it the others' own work takes 300 us longer than that "
        "rank's, more than 10% of the delay: too much to decide by. Slow it by 1.00 ms a call."
    )


def test_a_long_delay_decides() -> None:
    found = _control(_ranks(0.0053, 0.005, 0.009))
    assert found.decides
    assert abs(found.error) < AIMED_SHARE
    assert sentence("x", found).endswith("300 us longer than that rank's.")


def test_a_row_has_the_middle_of_its_repeats() -> None:
    whole = result(SLOWED, [[0.01], [0.01]])
    repeats = [
        replace(whole, ranks=tuple(_ranks(0.005, 0.005, spin_s)))
        for spin_s in (0.001, 0.004, 0.002)
    ]
    (row,) = rows(repeats)
    assert row.control is not None
    assert row.control.known_s == pytest.approx(0.002)
    assert row.control.found_s == pytest.approx(0.002)
    assert middle(()) is None


def test_where_a_call_has_two_sides_nothing_is_known() -> None:
    ranks = _ranks(0.005, 0.005, 0.001)
    sends = tuple(replace(one, operation=Operation.SEND_RECV) for one in calls((0, 1)))
    timelines = [one.timeline for one in ranks if one.timeline is not None]
    steps = decompose(timelines)
    sending = [replace(one, calls=sends) for one in ranks]
    assert control_of(sending, steps, timelines, SLOWED) is None
    assert control_of(ranks, steps, timelines, replace(SLOWED, delay=None)) is None
    assert control_of(ranks, (), (), SLOWED) is None


@given(st.floats(1e-7, 1.0), st.integers(1, 500))
def test_the_delay_that_is_advised_would_decide(difference_s: float, count: int) -> None:
    one = Control(calls=count, known_s=1e-9, found_s=0.0, difference_s=difference_s)
    advised = replace(one, known_s=one.deciding_s * count)
    assert advised.decides
    assert one.deciding_s <= 10 * 2 * difference_s / (AIMED_SHARE * count)
    assert math.isfinite(one.deciding_s)
