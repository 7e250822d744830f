"""The map of batch and length: shares, frontiers, and how a slower link moves them."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
from predict_cases import PP2, TP2, engine_on, plan

from linkbound.evidence.study import Study
from linkbound.links import Arm, Operation
from linkbound.model.types import Load
from linkbound.predict.regimes import (
    BATCHES,
    LENGTHS,
    map_curve_ids,
    regime_map,
    regime_shares,
    steps_of,
)
from linkbound.predict.stated import StatedBook
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import Plan, Regime, RegimeCell, TermKind
from linkbound.report.page.regimes import maps
from linkbound.report.types import MapShown
from linkbound.serve import VLLM
from linkbound.splits.fit import fit_machine
from linkbound.splits.types import Phase, Split


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
        steps = steps_of(cell.phase, cell.batch, cell.length, engine.rules)
        seconds: Counter[TermKind] = Counter()
        one = 0.0
        for step in steps:
            for term in step_time(engine, plan(engine, TP2, Arm.STAGED), step).terms:
                seconds[term.kind] += step.count * term.time.value  # type: ignore[assignment]
            one += step.count * step_time(engine, plan(engine), step).time.value
        shares = regime_shares(seconds, cell.phase)
        assert sum(shares.values()) == pytest.approx(1, abs=1e-9)
        assert cell.step_s == pytest.approx(sum(seconds.values()), rel=1e-12)
        assert cell.link_share == pytest.approx(shares[Regime.LINK], rel=1e-12)
        assert shares[cell.regime] == pytest.approx(max(shares.values()), rel=1e-12)
        assert cell.faster_than_one is (cell.step_s < one)
        assert cell.fits


def test_a_prefill_beyond_the_token_budget_is_its_chunks() -> None:
    budget = VLLM.max_batched_tokens
    (small,) = steps_of(Phase.PREFILL, 1, budget, VLLM)
    assert (small.tokens, small.count, small.sampled) == (budget, 1, 1)
    steps = steps_of(Phase.PREFILL, 16, 4 * budget, VLLM)
    assert [[(one.tokens, one.cached) for one in step.chunks] for step in steps] == [
        [(budget, cached * budget)] for cached in range(4)
    ]
    # Four kinds of step, one for each quarter of a prompt, sixteen times each.
    assert [step.count for step in steps] == [16] * 4
    for batch in BATCHES:
        for length in LENGTHS:
            steps = steps_of(Phase.PREFILL, batch, length, VLLM)
            assert max(step.tokens for step in steps) <= budget
            assert sum(step.count * step.tokens for step in steps) == batch * length
            assert sum(step.count * step.sampled for step in steps) == batch


def test_cells_that_the_caches_of_the_pair_cannot_hold(h200_study: Study) -> None:
    """1.96 M tokens on a pair: 256 sequences of 32,768 tokens, 8.4 M, are no state to judge."""
    engine = engine_on(h200_study)
    load = Load(prompt_tokens=1024, output_tokens=65, concurrency=1)
    fit, one_fit = (
        fit_machine(engine.shape, split, engine.book.machine, load) for split in (TP2, Split())
    )
    assert fit.kv_tokens is not None
    assert one_fit.kv_tokens is not None
    assert 1.8e6 < fit.kv_tokens < 2.1e6
    cells = regime_map(engine, plan(engine, TP2, Arm.P2P), plan(engine), fit=fit, one_fit=one_fit)
    for cell in cells:
        assert cell.fits is (cell.batch * cell.length <= fit.kv_tokens)
        on_one = cell.batch * cell.length <= one_fit.kv_tokens
        assert (cell.faster_than_one is not None) is (cell.fits and on_one)
    not_held = {(cell.batch, cell.length) for cell in cells if not cell.fits}
    assert not_held == {(64, 32768), (256, 8192), (256, 32768)}
    # 1.05 M tokens: the pair holds them, one GPU does not.
    between = regime_map(
        engine, plan(engine, TP2, Arm.P2P), plan(engine), (32,), (32768,), fit=fit, one_fit=one_fit
    )
    assert [(cell.fits, cell.faster_than_one) for cell in between] == [(True, None)] * 2


def test_windows_keep_more_sequences_than_their_tokens_say(h200_study: Study) -> None:
    engine = engine_on(h200_study, model="gpt-oss-20b")
    load = Load(prompt_tokens=1024, output_tokens=65, concurrency=1)
    fit = fit_machine(engine.shape, TP2, engine.book.machine, load)
    assert fit.kv_tokens is not None
    length = 32768
    # Half of the layers keep 128 tokens and a block more.
    held = int(fit.kv_tokens / (length / 2 + 144 / 2))
    cells = regime_map(
        engine, plan(engine, TP2, Arm.P2P), None, (held, held + 1), (length,), fit=fit
    )
    assert [cell.fits for cell in cells] == [True, False] * 2


def test_a_map_names_every_curve_that_prices_it(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    mine = plan(engine, TP2, Arm.P2P)
    ids = map_curve_ids(engine, mine)
    # Small messages go over the engine's own kernel, large ones over NCCL.
    small, large = (
        engine.book.curve(Operation.ALL_REDUCE, ("GPU0", "GPU1"), Arm.P2P, size)
        for size in (8192, 64 * 1024**2)
    )
    assert small is not None
    assert large is not None
    assert small.key.implementation == "engine"
    assert set(ids) == {*small.record_ids, *large.record_ids}
    assert len(ids) == len(small.record_ids) + len(large.record_ids)
    assert map_curve_ids(engine, plan(engine)) == ()


def test_the_page_says_what_does_not_fit(h200_study: Study) -> None:
    cell = RegimeCell(
        phase=Phase.DECODE,
        batch=256,
        length=32768,
        step_s=1.0,
        link_share=0.9,
        regime=Regime.LINK,
        faster_than_one=None,
        fits=False,
    )
    engine = engine_on(h200_study)
    report = SimpleNamespace(
        maps=(MapShown(plan=plan(engine, TP2, Arm.P2P), cells=(cell,), record_ids=()),)
    )
    page = maps(report, "".join)  # type: ignore[arg-type]
    assert "does not fit" in page
    assert "<b>L</b>" not in page


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
    # Four chunks with 65 calls each: 45 us more a call are 11.7 ms of some 550 ms.
    assert 0.015 < gains[Phase.PREFILL, 16, 2048] < 0.025
    assert all(far[point] >= near[point] for point in near)


def test_where_one_gpu_cannot_hold_the_model_nothing_is_faster_than_it(h200_study: Study) -> None:
    engine = engine_on(h200_study, model="llama-3.1-70b")
    cells = regime_map(engine, plan(engine, TP2, Arm.P2P), None)
    assert {cell.faster_than_one for cell in cells} == {None}
