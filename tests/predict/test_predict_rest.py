"""A GPU that rests multiplies faster: where data crosses the host, and where others compute."""

import itertools

import pytest
from predict_cases import PP2, TP2, changed, decode, engine_on, plan, prefill

from linkbound.evidence.study import Study
from linkbound.links import Arm, Curve, CurveKey, CurvePoint, Launch, Operation
from linkbound.model.types import Load
from linkbound.predict.book import CurveBook
from linkbound.predict.calibration import FULL_REST, LONG_REST_SHARE
from linkbound.predict.forecast import forecast
from linkbound.predict.pace import fastest, slowest
from linkbound.predict.schedule import Step
from linkbound.predict.stage import rested_in_row
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import Estimate, TermKind
from linkbound.serve import VLLM
from linkbound.splits.types import Split

NOT_OF_LINKS = (TermKind.WEIGHTS, TermKind.ATTENTION, TermKind.LAUNCH, TermKind.OVERHEAD)


def parts(
    engine: Engine, split: Split, arm: Arm | None, step: Step, in_row: int = 1
) -> dict[TermKind, Estimate]:
    found = step_time(engine, plan(engine, split, arm), step, in_row)
    return {one.kind: one.time for one in found.terms}


def with_gain(stream_s: float, matrix_s: float, gain: float) -> float:
    """Seconds that products at so much more than their rate add to the weights' own time."""
    alone_s = ((stream_s + matrix_s) ** 3 - stream_s**3) ** (1 / 3) / (1 + gain)
    return float((stream_s**3 + alone_s**3) ** (1 / 3) - stream_s)


def test_a_staged_prefill_multiplies_faster(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    gain = engine.calibration.rest_gain.estimate
    p2p, nccl, staged = (
        parts(engine, TP2, arm, prefill(8192)) for arm in (Arm.P2P, Arm.NCCL, Arm.STAGED)
    )
    # A direct link is driven by the GPU itself.
    assert p2p[TermKind.MATRIX] == nccl[TermKind.MATRIX]
    for kind in NOT_OF_LINKS:
        assert staged[kind] == nccl[kind]
    device_s = sum(nccl[one].value for one in (*NOT_OF_LINKS[:3], TermKind.MATRIX))
    link_s = staged[TermKind.CROSSINGS].value + staged[TermKind.WAITING].value
    # It rests far longer than a quarter of the time: the whole gain.
    assert link_s / (link_s + device_s) > FULL_REST
    plain = nccl[TermKind.WEIGHTS].value, nccl[TermKind.MATRIX].value
    found = staged[TermKind.MATRIX]
    assert found.value == pytest.approx(with_gain(*plain, gain.value))
    # The interval of the gain is the part's, turned round; the rate itself is calibrated.
    assert found.low == pytest.approx(with_gain(*plain, gain.high))
    assert found.high == pytest.approx(with_gain(*plain, gain.low))
    assert found.low < found.value < found.high < nccl[TermKind.MATRIX].value


def test_a_short_rest_gains_in_proportion(h200_study: Study) -> None:
    held = engine_on(h200_study)
    for link_share in (0.05, 0.2):
        device_s = sum(
            parts(held, TP2, Arm.NCCL, prefill(8192))[one].value
            for one in (*NOT_OF_LINKS[:3], TermKind.MATRIX)
        )
        # 65 calls wait by the calibrated constant; the rest of this share they cross.
        wait_s = 65 * held.calibration.wait_s.value
        call_s = (link_share / (1 - link_share) * device_s - wait_s) / 65
        engine = over(held, {Arm.NCCL: call_s, Arm.STAGED: call_s})
        nccl, staged = (parts(engine, TP2, arm, prefill(8192)) for arm in (Arm.NCCL, Arm.STAGED))
        plain = nccl[TermKind.WEIGHTS].value, nccl[TermKind.MATRIX].value
        gain = engine.calibration.rest_gain.value * link_share / FULL_REST
        assert staged[TermKind.MATRIX].value == pytest.approx(with_gain(*plain, gain))


def test_no_slower_link_makes_a_step_faster(h200_study: Study) -> None:
    """What a longer rest gains is less than what it takes: bounds of a search rest on it.

    So it is up to a gain of `FULL_REST`; 0.2 is the most that was measured.
    """
    held = engine_on(h200_study)
    assert held.calibration.rest_gain.value < 0.2 < FULL_REST
    held.calibration = changed(held.calibration, rest_gain=0.2)
    times = [
        step_time(engine, plan(engine, TP2, Arm.STAGED), prefill(8192)).time.value
        for power in range(40)
        for engine in (over(held, {Arm.STAGED: 1e-6 * 1.3**power}),)
    ]
    assert all(one < other for one, other in itertools.pairwise(times))


def over(engine: Engine, calls_s: dict[Arm, float]) -> Engine:
    """The engine over links on which every call takes as long, whatever its size."""
    curves = tuple(
        Curve(
            key=CurveKey(
                operation=Operation.ALL_REDUCE,
                implementation="nccl",
                group=("GPU0", "GPU1"),
                arm=arm,
                launch=Launch.GRAPH,
            ),
            points=tuple(
                CurvePoint(size_bytes=size, time_s=seconds) for size in (1024, 1024 * 4**10)
            ),
            record_ids=(arm.value,),
        )
        for arm, seconds in calls_s.items()
    )
    book = CurveBook(engine.book.machine, curves, direct_limit_bytes=0)
    return Engine(engine.shape, book, VLLM, engine.calibration)


def test_decoding_is_bound_by_memory_and_gains_nothing(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    for step in (decode(1, 1000), decode(128, 1000)):
        nccl, staged = (parts(engine, TP2, arm, step) for arm in (Arm.NCCL, Arm.STAGED))
        for kind in (*NOT_OF_LINKS, TermKind.MATRIX):
            assert staged[kind] == nccl[kind]
        lone, one_of_many = (parts(engine, PP2, Arm.P2P, step, number) for number in (1, 1000))
        assert lone == one_of_many


def test_one_gpu_rests_for_nobody(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    before = step_time(engine, plan(engine), prefill(8192))
    engine.calibration = changed(engine.calibration, rest_gain=1.0)
    assert step_time(engine, plan(engine), prefill(8192)) == before


def test_how_far_stages_rest() -> None:
    assert [rested_in_row(1, steps) for steps in (1, 9)] == [0, 0]
    # Of two stages each waits half of a lone step's time, a quarter of three steps'.
    assert [rested_in_row(2, steps) for steps in (1, 3)] == [1, 1]
    assert rested_in_row(2, 4) == pytest.approx(0.8)
    assert rested_in_row(4, 21) == pytest.approx(0.5)


def test_a_stage_computes_faster_where_it_waits_for_others(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    long_gain = LONG_REST_SHARE * engine.calibration.rest_gain.value
    whole = parts(engine, Split(), None, prefill(8192))
    plain = whole[TermKind.WEIGHTS].value, whole[TermKind.MATRIX].value
    for in_row, share in ((1, 1.0), (3, 1.0), (16, 4 / 17)):
        found = parts(engine, PP2, Arm.P2P, prefill(8192), in_row)[TermKind.MATRIX].value
        # The last stage has the head beside its sixteen layers; its product is one token's.
        assert found == pytest.approx(with_gain(*plain, share * long_gain), rel=5e-3)


def test_a_call_shows_the_step_that_it_is_made_of(h200_study: Study) -> None:
    """One chunk through a pipeline is the call, less what the engine does once."""
    engine = engine_on(h200_study)
    load = Load(prompt_tokens=8192, output_tokens=1, concurrency=1)
    found = forecast(engine, plan(engine, PP2, Arm.P2P), load)
    once = engine.calibration.call_s.value
    assert found.prefill.time.value + once == pytest.approx(found.latency_s.value)


def test_the_slowest_of_several_gpus_gains_least(h200_study: Study) -> None:
    known = engine_on(h200_study).calibration
    other = changed(known, rest_gain=0.05)
    assert slowest((known, other)).rest_gain.value == 0.05
    assert fastest((other, known)).rest_gain.value == known.rest_gain.value
