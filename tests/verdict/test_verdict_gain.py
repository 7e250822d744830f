"""The gain of a plan over another: what both share is left out, what is its own stays in."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdict_cases import ONE, PP2, TP2, case_on, engine_on, excluded_on, load, made, spread

from linkbound.evidence.study import Study
from linkbound.links import Arm, Curve, CurveKey, CurvePoint, Operation, PairLatency, PairRate
from linkbound.predict.forecast import forecast, plan_on
from linkbound.predict.types import Estimate, TermKind
from linkbound.study.reading import read_curves, read_latencies, read_rates
from linkbound.verdict.gain import time_gain
from linkbound.verdict.link_gain import link_gain

PARTS = st.dictionaries(
    st.sampled_from(list(TermKind)),
    st.tuples(st.floats(0.01, 10), st.floats(0, 0.9)).map(lambda pair: spread(*pair)),
    min_size=1,
)


def test_a_constant_that_both_plans_share_cancels() -> None:
    """Weights known to 30 %: both plans are off by that, their ratio is not."""
    one = made(ONE, {TermKind.WEIGHTS: spread(2.0, 0.3)})
    two = made(TP2, {TermKind.WEIGHTS: spread(1.0, 0.3)}, arm=Arm.P2P)
    gain = time_gain(two, one, 0.0)
    assert (gain.value, gain.low, gain.high) == (2.0, 2.0, 2.0)


def test_crossings_are_a_plan_s_own() -> None:
    one = made(ONE, {TermKind.WEIGHTS: spread(2.0, 0.3)})
    two = made(
        TP2,
        {TermKind.WEIGHTS: spread(0.8, 0.3), TermKind.CROSSINGS: spread(0.2, 0.5)},
        arm=Arm.P2P,
    )
    gain = time_gain(two, one, 0.0)
    assert gain.value == 2.0
    # Crossings are a fifth of the plan; half of them is a tenth. Weights are 0.8 of one plan and
    # all of the other: 30 % of the difference remains.
    assert math.log(gain.high / gain.value) == pytest.approx(math.hypot(0.1, 0.3 * 0.2))
    assert math.log(gain.low / gain.value) == pytest.approx(-math.hypot(0.1, 0.3 * 0.2))


def test_the_error_of_gains_is_added_in_squares() -> None:
    one = made(ONE, {TermKind.WEIGHTS: spread(2.0)})
    two = made(TP2, {TermKind.WEIGHTS: spread(1.0)}, arm=Arm.P2P)
    assert math.log(time_gain(two, one, 0.07).high / 2) == pytest.approx(0.07)
    two = msgspec.structs.replace(two, unseen_gain_error=0.1)
    assert math.log(time_gain(two, one, 0.07).high / 2) == pytest.approx(math.hypot(0.07, 0.1))
    staged = made(TP2, {TermKind.WEIGHTS: spread(1.0)}, arm=Arm.STAGED)
    # Two arms of one split are equally new.
    assert time_gain(two, staged, 0.0).high == 1.0


@given(PARTS, PARTS, st.floats(0, 0.3))
def test_gains_are_inside_and_turn_around(
    mine: dict[TermKind, Estimate], other: dict[TermKind, Estimate], error: float
) -> None:
    two, one = made(TP2, mine, arm=Arm.P2P), made(ONE, other)
    gain, back = time_gain(two, one, error), time_gain(one, two, error)
    assert gain.low <= gain.value <= gain.high
    assert gain.value * back.value == pytest.approx(1)
    assert gain.low * back.high == pytest.approx(1)
    assert gain.high * back.low == pytest.approx(1)


def test_a_plan_gains_nothing_over_itself(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    one = forecast(engine, plan_on(engine.book.machine, TP2, Arm.NCCL), load(1024, 65, 8))
    gain = time_gain(one, one, 0.0)
    assert gain.value == 1


def test_gains_of_the_desktop_are_wide(desktop_study: Study) -> None:
    """Constants carried from another GPU and rooflines for curves: more than 15 % each way."""
    excluded = excluded_on(desktop_study, "5060ti-pair")
    assert tuple(excluded) == ("GPU0",)
    case = case_on(desktop_study, load(1024, 65, 8), "5060ti-pair", "qwen3-32b")
    assert case.forecasts == ()
    engine = engine_on(desktop_study, "5060ti-pair")
    asked = load(1024, 65, 8)
    forecasts = {
        (split, arm): forecast(engine, plan_on(engine.book.machine, split, arm, excluded), asked)
        for split, arm in ((ONE, None), (TP2, Arm.P2P), (TP2, Arm.STAGED), (PP2, Arm.P2P))
    }
    for found in forecasts.values():
        for estimate in (found.latency_s, found.ttft_s):
            assert (estimate.high - estimate.low) / 2 / estimate.value > 0.15
    gain = time_gain(forecasts[TP2, Arm.P2P], forecasts[ONE, None], engine.calibration.gain_error)
    assert (gain.high - gain.low) / 2 / gain.value > 0.15


def rate(src: str, dst: str, gigabytes: float, arm: Arm) -> PairRate:
    return PairRate(
        src=src,
        dst=dst,
        operation=Operation.COPY,
        implementation="copy_engine",
        method="hand-made",
        bytes_per_s=gigabytes * 1e9,
        arm=arm,
    )


def latency(src: str, dst: str, microseconds: float, arm: Arm) -> PairLatency:
    return PairLatency(
        src=src, dst=dst, method="issue interval", latency_s=microseconds * 1e-6, arm=arm
    )


@pytest.mark.parametrize(
    ("rates", "times", "code"),
    [
        ((40, 10), (1, 18), "link-gains-both"),
        ((40, 10), (18, 18), "link-gains-bandwidth"),
        ((10.5, 10), (1, 18), "link-gains-latency"),
        ((10.5, 10), (17.5, 18), "link-gains-nothing"),
        ((5, 10), (20, 10), "link-gains-nothing"),
    ],
)
def test_what_peer_access_gains(
    rates: tuple[float, float], times: tuple[float, float], code: str
) -> None:
    pairs = (("GPU0", "GPU1"), ("GPU1", "GPU0"))
    found = link_gain(
        ("GPU0", "GPU1"),
        [
            rate(*pair, value, arm)
            for pair in pairs
            for value, arm in zip(rates, (Arm.P2P, Arm.STAGED), strict=True)
        ],
        [
            latency(*pair, value, arm)
            for pair in pairs
            for value, arm in zip(times, (Arm.P2P, Arm.STAGED), strict=True)
        ],
        (),
        ("id",),
    )
    assert found is not None
    assert found.code == code
    assert found.record_ids == ("id",)
    assert [figure.value for figure in found.figures] == pytest.approx(
        [rates[0] * 1e9, rates[1] * 1e9, times[0] * 1e-6, times[1] * 1e-6]
    )


def test_the_worst_pair_counts_and_a_missing_arm_says_nothing() -> None:
    fast = [rate("GPU0", "GPU1", value, arm) for value, arm in ((40, Arm.P2P), (10, Arm.STAGED))]
    slow = [rate("GPU1", "GPU0", value, arm) for value, arm in ((10, Arm.P2P), (10, Arm.STAGED))]
    times = [latency("GPU0", "GPU1", value, arm) for value, arm in ((1, Arm.P2P), (9, Arm.STAGED))]
    found = link_gain(("GPU0", "GPU1"), [*fast, *slow], times, ())
    assert found is not None
    assert found.code == "link-gains-latency"
    assert link_gain(("GPU0", "GPU1"), fast[:1], times, ()) is None
    assert link_gain(("GPU0", "GPU1"), fast, (), ()) is None
    assert link_gain(("GPU0",), fast, times, ()) is None


def test_copy_curves_stand_for_rates() -> None:
    def copies(arm: Arm, small_s: float, large_s: float) -> Curve:
        return Curve(
            key=CurveKey(
                operation=Operation.COPY,
                implementation="copy_engine",
                group=("GPU0", "GPU1"),
                arm=arm,
            ),
            points=(
                CurvePoint(size_bytes=4096, time_s=small_s),
                CurvePoint(size_bytes=2**26, time_s=large_s),
            ),
        )

    curves = (copies(Arm.P2P, 5e-6, 2e-4), copies(Arm.STAGED, 12e-6, 2e-3))
    found = link_gain(("GPU0", "GPU1"), (), (), curves)
    assert found is not None
    assert found.code == "link-gains-both"
    assert found.text.endswith("small copies take 5.00 us and 12.0 us.")


def test_both_figures_are_of_one_pair_and_only_small_copies_are_small() -> None:
    """One pair gains 5 %, another tenfold: the worst of each arm by itself would say 10 and 5."""
    rates, times = [], []
    for src, dst, direct, staged in (
        ("GPU0", "GPU1", 10, 9.5),
        ("GPU1", "GPU0", 10, 9.5),
        ("GPU2", "GPU3", 50, 5),
        ("GPU3", "GPU2", 50, 5),
    ):
        rates += [rate(src, dst, direct, Arm.P2P), rate(src, dst, staged, Arm.STAGED)]
        times += [latency(src, dst, 2, Arm.P2P), latency(src, dst, 12, Arm.STAGED)]
    large = [
        Curve(
            key=CurveKey(
                operation=Operation.COPY, implementation="ce", group=("GPU0", "GPU1"), arm=arm
            ),
            points=(CurvePoint(size_bytes=2**28, time_s=2**28 / speed),),
        )
        for arm, speed in ((Arm.P2P, 10e9), (Arm.STAGED, 9.5e9))
    ]
    labels = ("GPU0", "GPU1", "GPU2", "GPU3")
    found = link_gain(labels, rates, times, large)
    assert found is not None
    assert found.code == "link-gains-latency"
    assert [figure.value for figure in found.figures] == pytest.approx([10e9, 9.5e9, 2e-6, 12e-6])
    assert found.text.endswith("the issue interval of small copies falls from 12.0 us to 2.00 us.")
    own = [msgspec.structs.replace(curve, record_ids=(f"c{n}",)) for n, curve in enumerate(large)]
    told = link_gain(labels[:2], (), times[:2], own, ("latencies",))
    assert told is not None
    assert told.record_ids == ("c0", "c1", "latencies")
    assert [one.record_ids for one in told.figures] == [("c0", "c1")] * 2 + [("latencies",)] * 2
    # A copy of 256 MiB is no small one.
    assert link_gain(labels, rates, (), large) is None


def test_links_of_the_recorded_machines(h200_study: Study, desktop_study: Study) -> None:
    for study, machine, labels, code in (
        (h200_study, "h200-pair", ("GPU0", "GPU1"), "link-gains-both"),
        (desktop_study, "5060ti-pair", ("GPU1", "GPU2"), "link-gains-latency"),
    ):
        found = link_gain(
            labels,
            read_rates(study, machine),
            read_latencies(study, machine),
            read_curves(study, machine),
        )
        assert found is not None
        assert found.code == code
