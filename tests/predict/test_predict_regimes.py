"""The map of batch and length: shares, frontiers, and how a slower link moves them."""

import itertools

import pytest
from predict_cases import PP2, TP2, engine_on, plan

from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.predict.regimes import BATCHES, LENGTHS, regime_map, regime_shares, step_of
from linkbound.predict.stated import StatedBook
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import Plan, Regime, RegimeCell
from linkbound.splits.types import Phase


def stated(engine: Engine, bytes_per_s: float, latency_s: float = 10e-6) -> Engine:
    book = StatedBook(engine.book, latency_s=latency_s, bytes_per_s=bytes_per_s)
    return Engine(engine.shape, book, engine.rules, engine.calibration)


def cells_at(engine: Engine, split: Plan, bytes_per_s: float) -> tuple[RegimeCell, ...]:
    return regime_map(stated(engine, bytes_per_s), split, plan(engine))


def test_a_cell_for_every_point(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    cells = regime_map(engine, plan(engine, TP2, Arm.STAGED), plan(engine))
    assert [(cell.phase, cell.batch, cell.length) for cell in cells] == [
        (phase, batch, length) for phase in Phase for batch in BATCHES for length in LENGTHS
    ]
    for cell in cells:
        step = step_of(cell.phase, cell.batch, cell.length)
        found = step_time(engine, plan(engine, TP2, Arm.STAGED), step)
        shares = regime_shares(found, cell.phase)
        assert sum(shares.values()) == pytest.approx(1, abs=1e-9)
        assert cell.step_s == found.time.value
        assert cell.link_share == shares[Regime.LINK]
        assert shares[cell.regime] == max(shares.values())
        one = step_time(engine, plan(engine), step).time.value
        assert cell.faster_than_one is (cell.step_s < one)


def test_regimes_of_the_recorded_pair(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    cells = {
        (arm, cell.phase, cell.batch, cell.length): cell
        for arm in (Arm.P2P, Arm.STAGED)
        for cell in regime_map(engine, plan(engine, TP2, arm), plan(engine))
    }
    small = cells[Arm.P2P, Phase.DECODE, 1, 512]
    assert (small.regime, small.faster_than_one) == (Regime.MEMORY, True)
    large = cells[Arm.P2P, Phase.PREFILL, 16, 2048]
    assert (large.regime, large.faster_than_one) == (Regime.COMPUTE, True)
    staged = cells[Arm.STAGED, Phase.PREFILL, 16, 2048]
    assert (staged.regime, staged.faster_than_one) == (Regime.LINK, False)
    host = cells[Arm.P2P, Phase.PREFILL, 1, 512]
    assert (host.regime, host.faster_than_one) == (Regime.LATENCY, False)


@pytest.mark.parametrize("split", [TP2, PP2], ids=["tp2", "pp2"])
def test_half_the_bandwidth_moves_the_frontier_outwards(split: object, h200_study: Study) -> None:
    engine = engine_on(h200_study)
    mine = plan(engine, split, Arm.P2P)  # type: ignore[arg-type]
    rates = [400e9 / 2**power for power in range(8)]
    maps = [cells_at(engine, mine, rate) for rate in rates]
    bound = [sum(cell.regime is Regime.LINK for cell in cells) for cells in maps]
    assert bound == sorted(bound)
    if split == TP2:
        assert bound[0] < bound[-1]
    for faster, slower in itertools.pairwise(maps):
        for before, after in zip(faster, slower, strict=True):
            assert after.link_share > before.link_share
            assert after.step_s >= before.step_s
            # A split that did not help over the faster link does not help over the slower one.
            assert before.faster_than_one or not after.faster_than_one


def test_a_latency_moves_small_batches_first(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    mine = plan(engine, TP2, Arm.P2P)
    near, far = (
        {
            (cell.phase, cell.batch, cell.length): cell.link_share
            for cell in regime_map(stated(engine, 300e9, latency_s), mine, plan(engine))
        }
        for latency_s in (5e-6, 50e-6)
    )
    gains = {point: far[point] - near[point] for point in near}
    assert gains[Phase.DECODE, 1, 512] > 0.2 > gains[Phase.DECODE, 256, 512] > 0.05
    assert gains[Phase.PREFILL, 16, 2048] < 0.01
    assert all(far[point] >= near[point] for point in near)


def test_where_one_gpu_cannot_hold_the_model_nothing_is_faster_than_it(h200_study: Study) -> None:
    engine = engine_on(h200_study, model="llama-3.1-70b")
    cells = regime_map(engine, plan(engine, TP2, Arm.P2P), None)
    assert {cell.faster_than_one for cell in cells} == {None}
