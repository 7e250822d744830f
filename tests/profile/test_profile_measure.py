"""How often a point is run, and what is kept of its trace."""

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

from msgspec.structs import replace
from profile_results import DECODE, job

from linkbound.profile.measure import Counts, counts_of, settling, within
from linkbound.profile.types import Interval, KernelClass, Point, StepSpan, Timeline
from linkbound.splits.types import Phase

PREFILL = Point(phase=Phase.PREFILL, batch=8, tokens=1024)


@pytest.mark.parametrize(
    ("length_s", "plain", "traced"),
    [(0.0001, 20, 3), (0.15, 6, 3), (0.24, 4, 2), (0.4, 2, 1), (0.96, 2, 1), (30.0, 2, 1)],
)
def test_a_long_prefill_is_run_less_often(length_s: float, plain: int, traced: int) -> None:
    assert counts_of(job("tp2"), PREFILL, length_s) == Counts(plain, traced, 1)


def test_decode_steps_are_as_many_as_asked_for() -> None:
    assert counts_of(job("tp2"), DECODE, 2.0) == Counts(20, 3, 20)


def test_every_point_settles_before_its_steps_count() -> None:
    lengths_s = (0.001, 0.024, 0.19, 0.74, 30.0)
    assert [settling(PREFILL, one) for one in lengths_s] == [200, 8, 1, 1, 1]
    assert [settling(DECODE, one) for one in lengths_s] == [100, 4, 1, 1, 1]


def test_without_a_trace_none_is_made() -> None:
    assert counts_of(replace(job("tp2"), traced_steps=0), PREFILL, 0.1).traced == 0


def test_what_ran_outside_the_steps_is_not_kept() -> None:
    spans = tuple(StepSpan(index=at, name="step", start_s=at, end_s=at + 1.0) for at in range(1, 4))
    ran = tuple(
        Interval(kernel=KernelClass.COMPUTE, start_s=at / 2, end_s=at / 2 + 0.1) for at in range(10)
    )
    kept = within(Timeline(rank=0, steps=spans, intervals=ran), 2)
    assert [one.start_s for one in kept.steps] == [1, 2]
    assert [one.start_s for one in kept.intervals] == [1, 1.5, 2, 2.5]
