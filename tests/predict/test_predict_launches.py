"""What the host launches eagerly: a step, its layers, and what routing adds to them."""

import pytest
from predict_cases import PP2, TP2, changed, decode, engine_on, plan, prefill

from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.predict.schedule import Step
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import TermKind
from linkbound.splits.types import Split

DENSE, MIXTURE = "llama-3.1-8b", "qwen3-30b-a3b"


def launched_s(engine: Engine, step: Step, split: Split = Split()) -> float:  # noqa: B008
    """Seconds of a step that the host bounds, less the engine's own."""
    arm = Arm.P2P if split.gpus > 1 else None
    found = step_time(engine, plan(engine, split, arm), step)
    assert found.host_bound
    sends_s = sum(one.time.value for one in found.terms if one.kind is TermKind.CROSSINGS)
    engine_s = step.sampled * engine.calibration.sequence_s.value
    return found.time.value - engine_s - (sends_s if split.pp > 1 else 0.0)


def slow_host(study: Study, model: str) -> Engine:
    """Launches far longer than anything on the device, each part another size."""
    engine = engine_on(study, model=model)
    engine.calibration = changed(
        engine.calibration,
        host_step_s=3.0,
        host_layer_s=0.1,
        host_layer_split_s=0.2,
        host_mixture_s=0.01,
    )
    return engine


def test_an_eager_step_is_launched_once_and_layer_by_layer(h200_study: Study) -> None:
    engine = slow_host(h200_study, DENSE)
    assert launched_s(engine, prefill(1024)) == pytest.approx(3 + 32 * 0.1)
    assert launched_s(engine, prefill(1024), TP2) == pytest.approx(3 + 32 * 0.2)
    # Each stage launches a step of its own.
    assert launched_s(engine, prefill(1024), PP2) == pytest.approx(2 * 3 + 32 * 0.1)
    # A decode step that no graph covers is launched as well.
    assert launched_s(engine, decode(129, 10)) == pytest.approx(3 + 32 * 0.1)


def test_routing_is_launched_in_every_mixture_layer(h200_study: Study) -> None:
    engine = slow_host(h200_study, MIXTURE)
    assert launched_s(engine, prefill(1024)) == pytest.approx(3 + 48 * (0.1 + 0.01))
    assert launched_s(engine, prefill(1024), TP2) == pytest.approx(3 + 48 * (0.2 + 0.01))
    assert launched_s(engine, prefill(1024), Split(tp=2, ep=2)) == pytest.approx(
        3 + 48 * (0.2 + 0.01)
    )


def test_graphs_in_pieces_keep_a_share_and_whole_ones_nothing(h200_study: Study) -> None:
    for model, launch in ((DENSE, 3 + 32 * 0.1), (MIXTURE, 3 + 48 * 0.11)):
        engine, plain = slow_host(h200_study, model), engine_on(h200_study, model=model)
        assert launched_s(engine, prefill(64)) == pytest.approx(0.2 * launch)
        for step in (decode(1, 1000), decode(128, 1000)):
            found = step_time(engine, plan(engine), step)
            assert found == step_time(plain, plan(plain), step)
            assert not found.host_bound
            assert TermKind.HOST not in {one.kind for one in found.terms}
