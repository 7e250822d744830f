"""The host's pace from a measured load: what is put in comes out, and what says nothing is told."""

import pytest
from predict_cases import engine_on
from test_predict_simulate_plans import ONE, TP2, cell, scenario

from linkbound.evidence.study import Study
from linkbound.predict.simulate import HostPace, simulate
from linkbound.predict.simulate.host_pace import FIGURE, MOST, fit_share, launching
from linkbound.predict.steptime import Engine


@pytest.fixture
def engine(h200_study: Study) -> Engine:
    return engine_on(h200_study)


def measured_s(engine: Engine, share: float) -> float:
    asked = scenario(engine, TP2, cell(20, prompt=600))
    return simulate(launching(engine, share), asked).figures[FIGURE].value


@pytest.mark.parametrize("share", [0.6, 1.0, 1.4])
def test_a_host_of_a_known_pace_is_found(engine: Engine, share: float) -> None:
    asked = scenario(engine, TP2, cell(20, prompt=600))
    assert fit_share(engine, asked, measured_s(engine, share)) == pytest.approx(share, rel=0.05)


def test_what_says_nothing_of_the_host_is_told(engine: Engine) -> None:
    asked = scenario(engine, TP2, cell(20, prompt=600))
    slow_s = 2 * measured_s(engine, MOST)
    assert (
        fit_share(engine, asked, slow_s)
        == "a host 2 times as slow as calibrated does not explain it."
    )
    # Prompts of 8,192 tokens keep a GPU busy for longer than any launch.
    alone = scenario(engine, ONE, cell(concurrency=1, requests=20, prompt=8192, output=8))
    assert fit_share(engine, alone, 0.01) == "its steps hardly wait for the host."


def test_a_simulation_goes_at_the_pace_and_its_interval_has_both_ends(engine: Engine) -> None:
    asked = scenario(engine, TP2, cell(20, prompt=600))
    found = simulate(engine, asked, HostPace(value=0.6, low=0.4, high=0.9)).figures[FIGURE]
    assert found.value == measured_s(engine, 0.6)
    assert found.steps.low <= measured_s(engine, 0.4)
    assert found.steps.high >= measured_s(engine, 0.9)
    assert found.apart.high >= measured_s(engine, 0.9)


def test_without_a_fit_nothing_is_launched_otherwise(engine: Engine) -> None:
    assert launching(engine, 1.0) is engine
    asked = scenario(engine, TP2, cell(30, prompt=600, requests=100))
    assert simulate(engine, asked) == simulate(engine, asked, HostPace())
