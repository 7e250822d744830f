"""The link at which the answer flips: at it, the gain is at the line."""

import pytest
from verdict_cases import ONE, PP2, TP2, TWO, engine_on, load

from linkbound.evidence.study import Study
from linkbound.links import Arm, Curve, CurveKey, CurvePoint
from linkbound.links.types import Launch, Operation
from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.predict.book import CurveBook
from linkbound.predict.defaults import device_facts, prior_calibration
from linkbound.predict.forecast import forecast, plan_on
from linkbound.predict.stated import StatedBook
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan
from linkbound.serve import VLLM
from linkbound.splits.types import Placement, Split
from linkbound.topology.types import Gpu, Machine
from linkbound.verdict.break_even import break_even, fitted_link

LOAD = load(1024, 65, 8)


def plan(engine: Engine, split: Split, arm: Arm | None = None) -> Plan:
    return plan_on(engine.book.machine, split, arm)


def gain_at(engine: Engine, asked: Load, latency_s: float, bytes_per_s: float) -> float:
    """Speed of tp2 over one GPU with a stated link."""
    book = StatedBook(engine.book, latency_s=latency_s, bytes_per_s=bytes_per_s)
    stated = Engine(engine.shape, book, engine.rules, engine.calibration)
    one = forecast(engine, plan(engine, ONE), asked).latency_s.value
    return one / forecast(stated, plan(engine, TP2, Arm.P2P), asked).latency_s.value


@pytest.mark.parametrize("concurrency", [8, 32])
@pytest.mark.parametrize("min_gain", [0.05, 0.2])
def test_at_the_break_even_link_the_gain_is_at_the_line(
    concurrency: int, min_gain: float, h200_study: Study
) -> None:
    engine = engine_on(h200_study)
    asked = load(1024, 65, concurrency)
    one = forecast(engine, plan(engine, ONE), asked)
    mine = plan(engine, TP2, Arm.P2P)
    found = break_even(engine, mine, asked, one, min_gain)
    link = fitted_link(engine, mine)
    assert found is not None
    assert link is not None
    assert found.bytes_per_s is not None
    assert found.latency_s is not None
    latency_s, bytes_per_s = link
    assert gain_at(engine, asked, latency_s, found.bytes_per_s) == pytest.approx(
        1 + min_gain, rel=0.02
    )
    assert gain_at(engine, asked, found.latency_s, bytes_per_s) == pytest.approx(
        1 + min_gain, rel=0.02
    )
    # Faster than the break-even keeps, slower does not.
    assert gain_at(engine, asked, latency_s, 2 * found.bytes_per_s) > 1 + min_gain
    assert gain_at(engine, asked, latency_s, found.bytes_per_s / 2) < 1 + min_gain
    assert gain_at(engine, asked, found.latency_s / 2, bytes_per_s) > 1 + min_gain
    assert gain_at(engine, asked, found.latency_s * 2, bytes_per_s) < 1 + min_gain
    assert f"{latency_s * 1e6:.1f} us" in found.basis


def test_the_fit_of_the_recorded_link(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    direct = fitted_link(engine, plan(engine, TP2, Arm.P2P))
    staged = fitted_link(engine, plan(engine, TP2, Arm.STAGED))
    assert direct is not None
    assert staged is not None
    # Messages of 8 to 64 KiB take 4.09 to 4.23 us.
    assert 4.0e-6 < direct[0] < 4.3e-6
    assert direct[1] > 250e9
    assert 20e9 < staged[1] < 35e9
    assert staged[0] > direct[0]


def test_a_line_that_no_link_reaches_has_no_break_even(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    one = forecast(engine, plan(engine, ONE), LOAD)
    found = break_even(engine, plan(engine, TP2, Arm.P2P), LOAD, one, 1.5)
    assert found is not None
    assert (found.bytes_per_s, found.latency_s) == (None, None)


def test_a_plan_over_which_nothing_crosses_has_none(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    one = forecast(engine, plan(engine, ONE), LOAD)
    for split in (ONE, TWO):
        assert break_even(engine, plan(engine, split), LOAD, one, 0.05) is None


def test_it_names_its_baseline_and_a_split_one_lives_with_the_same_link(
    h200_study: Study,
) -> None:
    engine = engine_on(h200_study)
    pipeline = forecast(engine, plan(engine, PP2, Arm.P2P), LOAD)
    mine = plan(engine, TP2, Arm.P2P)
    found = break_even(engine, mine, LOAD, pipeline, 0.05)
    assert found is not None
    assert found.baseline == pipeline.plan
    assert found.latency_s is not None
    link = fitted_link(engine, mine)
    assert link is not None
    book = StatedBook(engine.book, latency_s=found.latency_s, bytes_per_s=link[1])
    stated = engine.with_book(book)
    both = [forecast(stated, one, LOAD).latency_s.value for one in (pipeline.plan, mine)]
    assert both[0] / both[1] == pytest.approx(1.05, rel=0.02)


def test_the_slowest_group_of_replicas_is_fitted() -> None:
    def curve(group: tuple[str, str], latency_s: float, bytes_per_s: float) -> Curve:
        return Curve(
            key=CurveKey(
                operation=Operation.ALL_REDUCE,
                implementation="nccl",
                group=group,
                arm=Arm.P2P,
                launch=Launch.GRAPH,
            ),
            points=tuple(
                CurvePoint(size_bytes=size, time_s=latency_s + size / bytes_per_s)
                for size in (1024 * 4**power for power in range(11))
            ),
        )

    machine = Machine(
        sources=("x",),
        gpus=tuple(
            Gpu(
                key=f"k{number}",
                label=f"GPU{number}",
                model="NVIDIA GeForce RTX 4090",
                memory_bytes=24 << 30,
            )
            for number in range(4)
        ),
    )
    curves = (curve(("GPU0", "GPU1"), 8e-6, 2e10), curve(("GPU2", "GPU3"), 60e-6, 2e9))
    engine = Engine(
        read_model("llama-3.1-8b"),
        CurveBook(machine, curves, direct_limit_bytes=0),
        VLLM,
        prior_calibration(device_facts(machine.gpus[0], ())),
    )
    for keys in (("k0", "k1", "k2", "k3"), ("k2", "k3", "k0", "k1")):
        both = Plan(split=Split(tp=2, replicas=2), placement=Placement(gpus=keys), arm=Arm.P2P)
        assert fitted_link(engine, both) == pytest.approx((60e-6, 2e9), rel=0.05)
    unknown = Plan(
        split=Split(tp=2, replicas=2),
        placement=Placement(gpus=("k0", "k1", "k0", "k2")),
        arm=Arm.P2P,
    )
    assert fitted_link(engine, unknown) is None


def test_a_pipeline_is_priced_by_its_sends(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    asked = load(1024, 65, 32)
    one = forecast(engine, plan(engine, ONE), asked)
    found = break_even(engine, plan(engine, PP2, Arm.P2P), asked, one, 0.05)
    assert found is not None
    assert found.bytes_per_s is not None
    # A boundary carries a fraction of what 64 all-reduces do.
    all_reduce = break_even(engine, plan(engine, TP2, Arm.P2P), asked, one, 0.05)
    assert all_reduce is not None
    assert all_reduce.bytes_per_s is not None
    assert found.bytes_per_s < all_reduce.bytes_per_s / 5
