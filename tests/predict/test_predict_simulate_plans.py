"""Simulated plans: the closed form of a batch, intervals, capacity, who is better under load."""

import msgspec
import pytest
from predict_cases import changed, engine_on, plan

from linkbound.errors import UsageError
from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.model.types import Load
from linkbound.predict.forecast import call_cost, steps_cost
from linkbound.predict.schedule import Step, schedule
from linkbound.predict.simulate import Balance, Cache, Scenario, Simulation, simulate
from linkbound.predict.simulate.play import Tables, likely, longest, play
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate
from linkbound.serve import VLLM
from linkbound.serve.load_types import Arrival, Cell, Slo, TraceEntry
from linkbound.serve.rules import as_served, graph_sizes
from linkbound.splits import Split
from linkbound.splits.types import Placement
from linkbound.verdict.types import Answer
from linkbound.verdict.under_load import judge_under_load

AMPLE = Cache(blocks=60_000, block_tokens=16)
ONE, TP2, PP2, TWO = Split(), Split(tp=2), Split(pp=2), Split(replicas=2)
ALL_AT_ONCE = msgspec.structs.replace(VLLM, entered=None)


def cell(rate: float | None = None, requests: int = 400, **how: int) -> Cell:
    concurrency = how.pop("concurrency", None)
    return Cell(
        arrival=Arrival.CLOSED if rate is None else Arrival.POISSON,
        requests=requests,
        rate_per_s=rate,
        concurrency=concurrency,
        prompt_tokens=how.get("prompt", 1024),
        output_tokens=how.get("output", 64),
        seed=3,
    )


def scenario(engine: Engine, split: Split, load: Cell, **how: object) -> Scenario:
    crosses = split.tp * split.pp > 1
    return Scenario(
        **{
            "plan": plan(engine, split, Arm.P2P if crosses else None),
            "cell": load,
            "rules": as_served(VLLM),
            "cache": AMPLE,
            "step_spread": 0.04,
            **how,
        }
    )


@pytest.fixture
def engine(h200_study: Study) -> Engine:
    return engine_on(h200_study)


@pytest.mark.parametrize(
    ("split", "within"), [(ONE, 0.005), (TP2, 0.005), (PP2, 0.02)], ids=lambda one: str(one)[:9]
)
@pytest.mark.parametrize(
    ("batch", "prompt", "output"),
    [
        (1, 1024, 65),
        (8, 1024, 65),
        (32, 1024, 65),
        (128, 128, 65),
        (128, 1024, 65),
        (64, 2048, 257),
    ],
)
def test_a_batch_given_at_once_is_what_the_closed_form_says(
    engine: Engine, split: Split, within: float, batch: int, prompt: int, output: int
) -> None:
    # The closed form hides no launch behind the step before.
    engine.rules = rules = msgspec.structs.replace(ALL_AT_ONCE, steps_ahead=1)

    def ends_s(tokens: int) -> float:
        load = cell(requests=batch, concurrency=batch, prompt=prompt, output=tokens)
        asked = scenario(engine, split, load, rules=rules, step_spread=0.0)
        _, found = play(Tables(engine, asked, likely), 1)
        return max(one.end_s for one in found if one.end_s is not None)

    def closed_s(tokens: int) -> float:
        load = Load(prompt_tokens=prompt, output_tokens=tokens, concurrency=batch)
        one = plan(engine, split, Arm.P2P)
        if split.pp == 1 or batch * prompt > split.pp * rules.max_batched_tokens:
            return call_cost(engine, one, load).seconds
        # The prompts fill no more steps than there are stages: none is back when the last goes out.
        # The closed form lets the second step decode what the first began, and what its tokens
        # displace is one more small step, launched by itself: 2 % of 128 x 128.
        prompts = schedule(msgspec.structs.replace(load, output_tokens=1), rules)
        decodes = Step(
            chunks=(),
            decodes=batch,
            context_tokens=batch * (prompt + tokens / 2),
            sampled=batch,
            count=tokens - 1,
        )
        steps = (*prompts, decodes) if tokens > 1 else prompts
        return engine.calibration.call_s.value + steps_cost(engine, one, steps).seconds

    for tokens in (1, output):
        assert ends_s(tokens) == pytest.approx(closed_s(tokens), rel=within)


@pytest.mark.parametrize(("batch", "most"), [(1, 0.0), (8, 0.0), (32, 0.01), (128, 0.06)])
def test_hidden_launches_are_a_small_part_of_a_batch(
    engine: Engine, batch: int, most: float
) -> None:
    def end_s(steps_ahead: int) -> float:
        rules = msgspec.structs.replace(ALL_AT_ONCE, steps_ahead=steps_ahead)
        load = cell(requests=batch, concurrency=batch, prompt=128 if batch == 128 else 1024)
        asked = scenario(engine, TP2, load, rules=rules, step_spread=0.0)
        _, found = play(Tables(engine, asked, likely), 1)
        return max(one.end_s for one in found if one.end_s is not None)

    assert 0 <= 1 - end_s(2) / end_s(1) <= most


def test_prompts_beside_decodes_wait_less_for_their_launch(engine: Engine) -> None:
    # 512 tokens and the decodes beside them are more than the largest graph: launched one by one,
    # longer than the device works. A decode step of some ms hides as much of it.
    load = cell(5, requests=100, prompt=600)
    times = []
    for steps_ahead in (1, 2):
        rules = msgspec.structs.replace(as_served(VLLM), steps_ahead=steps_ahead)
        asked = scenario(engine, TP2, load, rules=rules, step_spread=0.0)
        times.append(simulate(engine, asked))
    waiting, hiding = times
    assert hiding.figures["tpot_p50_s"].value <= waiting.figures["tpot_p50_s"].value
    gap_s, decode_s = (waiting.figures[f"token_gap_p{share}_s"].value for share in (99, 50))
    # Gaps are counted in buckets of half a percent.
    saved_s = gap_s - hiding.figures["token_gap_p99_s"].value
    assert saved_s == pytest.approx(decode_s, abs=0.01 * gap_s)


def test_a_host_may_launch_quicker(engine: Engine) -> None:
    bound = simulate(engine, scenario(engine, TP2, cell(30, prompt=600))).figures["tpot_p50_s"]
    assert bound.steps.low < 0.8 * bound.value
    assert bound.apart.low < 0.8 * bound.value
    # So may one whose step takes long to launch, whatever its layers do.
    constants = engine.calibration
    engine.calibration = changed(constants, host_step_s=0.2)
    step = simulate(engine, scenario(engine, TP2, cell(1, prompt=600))).figures["ttft_p50_s"]
    assert 0.2 < step.value < 0.3
    assert step.steps.low < 0.7 * step.value
    engine.calibration = constants
    # Whole prompts of 8,192 tokens keep the device busy for longer than any launch.
    alone = cell(concurrency=1, requests=20, prompt=8192, output=1)
    busy = simulate(engine, scenario(engine, TP2, alone)).figures["ttft_p50_s"]
    assert busy.steps.low > 0.9 * busy.value


def test_figures_stand_inside_their_intervals(engine: Engine) -> None:
    found = simulate(engine, scenario(engine, TP2, cell(8), slo=Slo(ttft_s=0.1, tpot_s=0.01)))
    assert {"ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "e2e_p99_s", "goodput"} <= set(found.figures)
    for figure in found.figures.values():
        for part in (figure.steps, figure.apart, figure.draws, figure.whole):
            assert part.low <= part.value <= part.high
            assert part.value == figure.value
        assert figure.drawn[0] == figure.value
        assert len(figure.drawn) == 5
    tpot = found.figures["tpot_p50_s"]
    # Steps are known to some percent, and none of that is drawn away.
    assert 0.04 < (tpot.steps.high - tpot.steps.low) / 2 / tpot.value < 0.25
    assert found.figures["goodput"].whole.high <= 1
    assert found.record_ids
    assert found.curve_ids


def test_what_too_few_requests_have_is_absent(engine: Engine) -> None:
    found = simulate(engine, scenario(engine, ONE, cell(2, requests=60, output=1)))
    assert "ttft_p90_s" in found.figures
    assert "ttft_p99_s" not in found.figures
    # One token has no time between tokens, nor was a target stated.
    assert not [name for name in found.figures if name.startswith(("tpot", "token_gap"))]
    assert "goodput" not in found.figures


def test_capacity_is_what_a_full_engine_serves(engine: Engine) -> None:
    slow, fast = (
        simulate(engine, scenario(engine, ONE, cell(rate, requests=1500))) for rate in (10, 80)
    )
    assert slow.capacity_per_s == fast.capacity_per_s
    assert slow.capacity_per_s is not None
    assert not slow.overloaded
    assert fast.overloaded
    # What is asked beyond the capacity is served at the capacity.
    assert fast.outcome.requests_per_s == pytest.approx(slow.capacity_per_s.value, rel=0.1)
    assert slow.outcome.requests_per_s == pytest.approx(10, rel=0.1)
    assert simulate(engine, scenario(engine, ONE, cell(concurrency=8))).capacity_per_s is None


def test_a_short_cache_puts_sequences_back(engine: Engine) -> None:
    short = Cache(blocks=260, block_tokens=16)
    load = cell(concurrency=4, requests=12, prompt=1000, output=200)
    found = simulate(engine, scenario(engine, ONE, load, cache=short, step_spread=0.0))
    assert found.outcome.preemptions > 0
    assert found.outcome.cache_peak is not None
    assert 0.9 < found.outcome.cache_peak <= 1
    with pytest.raises(UsageError, match="1,200 tokens does not fit"):
        simulate(engine, scenario(engine, ONE, load, cache=Cache(blocks=70, block_tokens=16)))


def test_prefill_on_another_gpu(engine: Engine) -> None:
    load = cell(4)
    other = engine.book.machine.gpus[1].key
    apart = scenario(
        engine,
        ONE,
        load,
        prefill=msgspec.structs.replace(plan(engine), placement=Placement(gpus=(other,))),
        prefill_cache=AMPLE,
        handover_arm=Arm.P2P,
        step_spread=0.0,
    )
    one = scenario(engine, ONE, load, step_spread=0.0)
    split_off, alone = simulate(engine, apart), simulate(engine, one)
    # Nobody's prompt comes between the tokens of another.
    assert split_off.figures["token_gap_p99_s"].value < 0.5 * alone.figures["token_gap_p99_s"].value
    assert split_off.figures["ttft_p50_s"].value > 0


def test_experts_over_replicas_are_refused(engine: Engine) -> None:
    spread = Split(replicas=2, ep=2)
    with pytest.raises(UsageError, match="experts over replicas"):
        simulate(engine, scenario(engine, spread, cell(1)))


def test_the_longest_of_a_trace() -> None:
    entries = tuple(
        TraceEntry(at_s=at, prompt_tokens=prompt, output_tokens=output)
        for at, prompt, output in ((0.0, 10, 90), (1.0, 50, 60), (2.0, 900, 9))
    )
    load = Cell(
        arrival=Arrival.TRACE,
        requests=2,
        prompt_tokens=1,
        output_tokens=1,
        seed=1,
        entries=entries,
    )
    assert longest(load) == 110


def test_a_trace_offers_what_its_arrivals_are(engine: Engine) -> None:
    entries = tuple(
        TraceEntry(at_s=at / 100, prompt_tokens=1024, output_tokens=64) for at in range(1, 301)
    )
    load = Cell(
        arrival=Arrival.TRACE,
        requests=300,
        prompt_tokens=1,
        output_tokens=1,
        seed=1,
        entries=entries,
    )
    found = simulate(engine, scenario(engine, ONE, load))
    assert found.offered_per_s == pytest.approx(100)
    assert found.overloaded


def test_graphs_of_a_server() -> None:
    sizes = graph_sizes(256)
    assert (sizes[:5], sizes[-1], len(sizes)) == ((1, 2, 4, 8, 16), 512, 51)
    assert graph_sizes(8) == (1, 2, 4, 8, 16)
    assert as_served(VLLM, 64).max_sequences == 64
    assert as_served(VLLM, 64).graph_sizes[-1] == 128


def judged(engine: Engine, load: Cell, **how: object) -> dict[str, Answer]:
    found = [simulate(engine, scenario(engine, split, load, **how)) for split in (ONE, TWO, TP2)]
    (one,) = judge_under_load(found, 0.05)
    return {one.figure: one.answer}


def test_under_load_a_split_meets_replicas(engine: Engine) -> None:
    # Alone a request is faster on two GPUs; when many come, two copies take them apart.
    assert judged(engine, cell(40)) == {"e2e_p99_s": Answer.REJECT}
    # A host that launches prompts quicker could make up for it.
    assert judged(engine, cell(24)) == {"e2e_p99_s": Answer.UNDECIDED}
    goodput = judged(engine, cell(24), slo=Slo(tpot_s=0.009))
    assert goodput == {"goodput": Answer.REJECT}
    assert judged(engine, cell(0.05, output=256)) == {"e2e_p99_s": Answer.KEEP}


def test_a_plan_that_does_not_keep_up_is_no_match(engine: Engine) -> None:
    found = {split: simulate(engine, scenario(engine, split, cell(30))) for split in (ONE, TP2)}
    slow = Estimate(value=20, low=20, high=20)

    def with_capacity(simulation: Simulation) -> Simulation:
        return msgspec.structs.replace(simulation, capacity_per_s=slow)

    (kept,) = judge_under_load([with_capacity(found[ONE]), found[TP2]], 0.05)
    assert (kept.answer, kept.gain) == (Answer.KEEP, None)
    assert kept.text == "one GPU does not keep up with this load, tp2, p2p does."
    (rejected,) = judge_under_load([found[ONE], with_capacity(found[TP2])], 0.05)
    assert rejected.answer is Answer.REJECT
    (both,) = judge_under_load([with_capacity(one) for one in found.values()], 0.05)
    assert both.figure == "requests_per_s"


def test_every_balance_serves_all(engine: Engine) -> None:
    for balance in Balance:
        found = simulate(engine, scenario(engine, TWO, cell(10), balance=balance))
        assert found.outcome.requests == 400
