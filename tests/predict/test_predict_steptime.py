"""Steps as sums of terms: what each is, where it is from, and what sets the pace."""

import itertools
import math

import msgspec
import pytest
from predict_cases import PP2, TP2, changed, decode, engine_on, plan, prefill, shape_of

from linkbound.evidence.study import Study
from linkbound.evidence.types import Provenance
from linkbound.links import Arm, Curve, CurveKey, CurvePoint, Launch, Operation
from linkbound.model.types import Load
from linkbound.predict.book import CurveBook
from linkbound.predict.compute import LaunchMode, host_share, launch_mode, padded_tokens
from linkbound.predict.defaults import device_facts, prior_calibration
from linkbound.predict.forecast import call_cost, forecast
from linkbound.predict.pricing import NoForecast
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import Plan, StepTime, TermKind
from linkbound.serve import VLLM
from linkbound.splits.types import Placement, Split
from linkbound.topology.types import Gpu, Machine

STEPS = {
    "decode 1": decode(1, 1000),
    "decode 5": decode(5, 1000),
    "decode 200": decode(200, 500),
    "prefill 64": prefill(64),
    "prefill 1024": prefill(1024),
    "prefill 8 x 1024": prefill(*[1024] * 8),
}
PLANS: tuple[tuple[Split, Arm | None], ...] = (
    (Split(), None),
    *((TP2, arm) for arm in (Arm.P2P, Arm.NCCL, Arm.STAGED)),
    *((PP2, arm) for arm in (Arm.P2P, Arm.STAGED)),
)


def term(step: StepTime, kind: TermKind) -> float:
    return next((one.time.value for one in step.terms if one.kind is kind), 0.0)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "gpt-oss-20b"])
@pytest.mark.parametrize("machine", ["h200-pair", "5060ti-pair"])
def test_terms_add_up_and_stay_inside_their_intervals(
    model: str, machine: str, h200_study: Study, desktop_study: Study
) -> None:
    study = h200_study if machine == "h200-pair" else desktop_study
    engine = engine_on(study, machine, model)
    excluded = ("GPU0",) if machine == "5060ti-pair" else ()
    for (split, arm), step in itertools.product(PLANS, STEPS.values()):
        free = [gpu.key for gpu in engine.book.machine.gpus if gpu.label not in excluded]
        one = plan(engine, split, arm)
        placement = msgspec.structs.replace(one.placement, gpus=tuple(free[: split.gpus]))
        one = msgspec.structs.replace(one, placement=placement)
        found = step_time(engine, one, step)
        parts = [part.time for part in found.terms]
        assert math.fsum(part.value for part in parts) == pytest.approx(found.time.value, rel=1e-12)
        assert found.time.low < found.time.value < found.time.high
        assert all(part.low <= part.value <= part.high for part in parts)
        kinds = {part.kind for part in found.terms}
        assert (TermKind.CROSSINGS in kinds) is (split.gpus > 1)
        assert (TermKind.WAITING in kinds) is (split.tp > 1)
        assert (TermKind.ROUTING in kinds) is (model != "llama-3.1-8b")
        assert all(part.basis for part in found.terms)
        crossing = next((part for part in found.terms if part.kind is TermKind.CROSSINGS), None)
        assert crossing is None or all(map(study.has, crossing.record_ids))


def test_65_crossings_of_8_kib(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    for arm in (Arm.P2P, Arm.NCCL, Arm.STAGED):
        found = step_time(engine, plan(engine, TP2, arm), decode(1, 1000))
        read = engine.book.read(Operation.ALL_REDUCE, ("GPU0", "GPU1"), arm, 8192)
        assert read is not None
        timed, curve = read
        assert term(found, TermKind.CROSSINGS) == pytest.approx(65 * timed.time_s)
        crossing = next(one for one in found.terms if one.kind is TermKind.CROSSINGS)
        assert crossing.provenance is timed.provenance
        assert curve.source in crossing.basis
        assert crossing.record_ids == curve.record_ids
        wait = 65 * engine.calibration.wait_s.value
        assert term(found, TermKind.WAITING) == pytest.approx(wait)
    # The median of engine-reduce.jsonl for 8 KiB in a graph.
    p2p = step_time(engine, plan(engine, TP2, Arm.P2P), decode(1, 1000))
    assert term(p2p, TermKind.CROSSINGS) == pytest.approx(65 * 4.0944e-6, rel=1e-4)
    crossing = next(one for one in p2p.terms if one.kind is TermKind.CROSSINGS)
    assert crossing.provenance is Provenance.MEASURED
    assert crossing.basis.startswith("engine-reduce.jsonl")


def test_what_the_link_costs_is_what_the_recording_shows(h200_study: Study) -> None:
    """Staged minus NCCL for a decode step of 1, 32, 128: 65 times what the curves differ by."""
    engine = engine_on(h200_study)
    for batch, milliseconds in ((1, 0.2296), (32, 1.7456), (128, 3.1739)):
        staged, nccl = (
            step_time(engine, plan(engine, TP2, arm), decode(batch, 1000)).time.value
            for arm in (Arm.STAGED, Arm.NCCL)
        )
        assert (staged - nccl) * 1e3 == pytest.approx(milliseconds, rel=0.002)


def test_decode_is_weights_over_memory_rate(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    found = step_time(engine, plan(engine), decode(1, 1000))
    rate = engine.calibration.stream_bytes_per_s.value
    assert term(found, TermKind.WEIGHTS) == pytest.approx(15_009_841_152 / rate)
    assert term(found, TermKind.ATTENTION) == pytest.approx(131_072_000 / rate)
    # Beside the latency: 180,224 bytes a layer that small kernels move (test_predict_activations).
    small = 32 * engine.calibration.layer_s.value + 32 * 180_224 / rate
    assert term(found, TermKind.LAUNCH) == pytest.approx(small)
    assert term(found, TermKind.HOST) == 0
    assert not found.host_bound


def test_the_host_sets_the_pace_of_a_small_prefill_on_two_gpus(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    constants = engine.calibration
    for arm in (Arm.P2P, Arm.NCCL, Arm.STAGED):
        found = step_time(engine, plan(engine, TP2, arm), prefill(1024))
        launch = constants.host_step_s.value + 32 * constants.host_layer_split_s.value
        assert found.host_bound
        assert found.time.value == pytest.approx(launch + constants.sequence_s.value)
        host = next(one for one in found.terms if one.kind is TermKind.HOST)
        assert host.basis == constants.host_layer_split_s.basis
    large = step_time(engine, plan(engine, TP2, Arm.P2P), prefill(8192))
    assert not large.host_bound
    assert term(large, TermKind.HOST) == 0


def test_one_gpu_launches_at_its_own_pace(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    slow = changed(engine.calibration, host_layer_s=2e-3)
    engine.calibration = slow
    for split in (Split(), PP2):
        found = step_time(engine, plan(engine, split, Arm.P2P), prefill(1024))
        assert found.host_bound
        host = next(one for one in found.terms if one.kind is TermKind.HOST)
        assert host.basis == slow.host_layer_s.basis
    one = step_time(engine, plan(engine), prefill(1024))
    launch = slow.host_step_s.value + 32 * 2e-3
    assert one.time.value == pytest.approx(launch + slow.sequence_s.value)


def test_the_interval_of_the_host_is_that_of_its_launches(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    constants = changed(engine.calibration, host_layer_s=1e-3)
    engine.calibration = constants
    assert constants.host_layer_s.provenance is Provenance.PRIOR
    found = step_time(engine, plan(engine), prefill(1024))
    host = next(one for one in found.terms if one.kind is TermKind.HOST)
    device = found.time.value - host.time.value - constants.sequence_s.value
    layer, step = constants.host_layer_s.estimate, constants.host_step_s.estimate
    assert host.time.value == pytest.approx(step.value + 32 * layer.value - device)
    assert host.time.high == pytest.approx(step.high + 32 * layer.high - device)
    assert host.time.low == pytest.approx(max(0.0, step.low + 32 * layer.low - device))


def test_decode_attention_rests_on_the_memory_rate(h200_study: Study) -> None:
    held = engine_on(h200_study)
    facts = device_facts(held.book.machine.gpus[0], held.book.rates)
    engine = Engine(held.shape, held.book, VLLM, prior_calibration(facts))
    for step, constant in (
        (decode(8, 4000), engine.calibration.stream_bytes_per_s),
        (prefill(8192), engine.calibration.attention_flops_per_s),
    ):
        found = step_time(engine, plan(engine), step)
        part = next(one for one in found.terms if one.kind is TermKind.ATTENTION)
        assert part.basis == constant.basis
        assert part.provenance is constant.provenance
        assert part.time.low == pytest.approx(
            part.time.value * constant.value / constant.estimate.high
        )


def test_a_step_runs_at_the_size_of_its_graph(h200_study: Study) -> None:
    assert [padded_tokens(tokens, VLLM) for tokens in (1, 3, 5, 8, 100, 128, 129, 8192)] == [
        1, 4, 8, 8, 128, 128, 129, 8192,
    ]  # fmt: skip
    engine = engine_on(h200_study)
    five = step_time(engine, plan(engine, TP2, Arm.NCCL), decode(5, 1000))
    read = engine.book.read(Operation.ALL_REDUCE, ("GPU0", "GPU1"), Arm.NCCL, 8 * 8192)
    assert read is not None
    assert term(five, TermKind.CROSSINGS) == pytest.approx(65 * read[0].time_s)
    # Sampling is for the five alone.
    assert term(five, TermKind.OVERHEAD) == pytest.approx(5 * engine.calibration.sequence_s.value)


def test_launch_modes() -> None:
    assert launch_mode(128, prefill=False, rules=VLLM) is LaunchMode.GRAPH
    assert launch_mode(129, prefill=False, rules=VLLM) is LaunchMode.EAGER
    assert launch_mode(128, prefill=True, rules=VLLM) is LaunchMode.PIECEWISE
    assert launch_mode(129, prefill=True, rules=VLLM) is LaunchMode.EAGER
    shares = [
        host_share(mode) for mode in (LaunchMode.EAGER, LaunchMode.PIECEWISE, LaunchMode.GRAPH)
    ]
    assert shares == [1, 0.2, 0]


def test_a_small_prefill_is_launched_in_pieces(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    engine.calibration = changed(engine.calibration, host_layer_s=10e-3)
    found = step_time(engine, plan(engine), prefill(64))
    constants = engine.calibration
    launch = 0.2 * (constants.host_step_s.value + 32 * 10e-3)
    assert found.time.value == pytest.approx(launch + constants.sequence_s.value)


def test_no_curve_no_forecast(h200_study: Study) -> None:
    held = engine_on(h200_study)
    book = CurveBook(held.book.machine, (), direct_limit_bytes=8 * 1024**2)
    engine = Engine(held.shape, book, VLLM, held.calibration)
    with pytest.raises(NoForecast) as raised:
        step_time(engine, plan(engine, TP2, Arm.STAGED), decode(1, 1000))
    assert raised.value.seen == (
        "No time is known for all_reduce of 8,192 bytes over GPU0, GPU1 in arm staged."
    )
    assert raised.value.why
    assert raised.value.hint
    with pytest.raises(NoForecast, match="send_recv of 8,192 bytes over GPU0, GPU1 in arm p2p"):
        step_time(engine, plan(engine, PP2, Arm.P2P), decode(1, 1000))
    assert step_time(engine, plan(engine), decode(1, 1000)).time.value > 0


def test_a_split_without_an_arm_is_a_mistake_of_the_caller(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    silent = Plan(split=TP2, placement=plan(engine, TP2, Arm.P2P).placement, arm=None)
    with pytest.raises(AssertionError, match="tp2 crosses GPUs"):
        step_time(engine, silent, decode(1, 1000))


def test_what_no_run_has_shown_widens_the_interval(h200_study: Study) -> None:
    dense, mixture = engine_on(h200_study), engine_on(h200_study, model="mixtral-8x7b")
    own = dense.calibration.model_error
    assert dense.model_error(TP2) == own
    assert dense.model_error(PP2) == pytest.approx(math.hypot(own, 0.13))
    # 47 GB a rank: the runs read 7.5 to 70 GB.
    assert mixture.model_error(TP2) == pytest.approx(math.hypot(own, 0.2))
    larger, smaller = 0.08, 0.08
    scout = engine_on(h200_study, model="meta-llama--Llama-4-Scout-17B-16E-Instruct")
    assert scout.model_error(Split()) == pytest.approx(math.hypot(own, 0.2, larger))
    assert scout.model_error(TP2) == pytest.approx(math.hypot(own, 0.2))
    tiny = engine_on(h200_study, model="Qwen--Qwen3-0.6B")
    assert tiny.model_error(Split()) == pytest.approx(math.hypot(own, smaller))
    quantised = engine_on(h200_study, model="gpt-oss-20b")
    assert quantised.model_error(PP2) == pytest.approx(math.hypot(own, 0.2, 0.2, 0.13))


def test_a_sequence_longer_than_any_run_widens_the_interval(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    own = engine.calibration.model_error
    seen = engine.calibration.seen
    assert seen is not None
    assert engine.model_error(TP2, 2 * seen.longest_tokens) == own
    longer = engine.model_error(TP2, 2 * seen.longest_tokens + 1)
    assert longer == pytest.approx(math.hypot(own, 0.1))


LOAD = Load(prompt_tokens=1024, output_tokens=65, concurrency=8)


@pytest.mark.parametrize(("split", "arm"), PLANS)
def test_a_call_is_its_parts(split: Split, arm: Arm | None, h200_study: Study) -> None:
    engine = engine_on(h200_study)
    found = forecast(engine, plan(engine, split, arm), LOAD)
    whole = found.latency_s
    assert math.fsum(one.value for one in found.parts.values()) == pytest.approx(whole.value)
    assert found.tpot_s is not None
    assert found.ttft_s.value + 64 * found.tpot_s.value == pytest.approx(whole.value)
    assert found.tokens_per_s.value == pytest.approx(8 * 65 / whole.value)
    for one in (found.ttft_s, found.tpot_s, found.tokens_per_s, whole):
        assert one.low < one.value < one.high
    assert whole.high / whole.value - 1 >= engine.calibration.model_error * 0.999


def test_one_output_token_is_prefill_alone(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    load = msgspec.structs.replace(LOAD, output_tokens=1)
    found = forecast(engine, plan(engine), load)
    assert found.tpot_s is None
    assert found.decode is None
    assert found.ttft_s == found.latency_s


def test_replicas_share_the_load_and_cross_nothing(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    two = forecast(engine, plan(engine, Split(replicas=2)), LOAD)
    half = forecast(engine, plan(engine), msgspec.structs.replace(LOAD, concurrency=4))
    assert two.latency_s == half.latency_s
    assert two.tokens_per_s.value == pytest.approx(2 * half.tokens_per_s.value)
    assert TermKind.CROSSINGS not in two.parts
    one = forecast(engine, plan(engine), msgspec.structs.replace(LOAD, concurrency=1))
    lonely = msgspec.structs.replace(LOAD, concurrency=1)
    assert forecast(engine, plan(engine, Split(replicas=2)), lonely).latency_s == one.latency_s


def test_replicas_are_as_slow_as_their_slowest_link(h200_study: Study) -> None:
    """Two pairs of one machine, the second joined ten times as slowly: wherever it stands."""
    shape, constants = engine_on(h200_study).shape, engine_on(h200_study).calibration
    machine = Machine(
        sources=("hand-made",),
        gpus=tuple(Gpu(key=f"k{index}", label=f"GPU{index}") for index in range(4)),
    )
    pairs = (("GPU0", "GPU1"), 8e-6, 2e10), (("GPU2", "GPU3"), 60e-6, 2e9)
    curves = tuple(
        Curve(
            key=CurveKey(
                operation=operation,
                implementation="nccl",
                group=group,
                arm=Arm.P2P,
                launch=Launch.GRAPH,
            ),
            points=tuple(
                CurvePoint(size_bytes=size, time_s=latency_s + size / rate)
                for size in (1024 * 4**power for power in range(11))
            ),
            record_ids=(f"{operation.value} {group[0]}",),
        )
        for group, latency_s, rate in pairs
        for operation in (Operation.ALL_REDUCE, Operation.SEND_RECV)
    )
    engine = Engine(shape, CurveBook(machine, curves, direct_limit_bytes=0), VLLM, constants)
    fast, slow = ("k0", "k1"), ("k2", "k3")
    for split in (TP2, PP2):

        def on(gpus: tuple[str, ...], replicas: int, split: Split = split) -> Plan:
            several = msgspec.structs.replace(split, replicas=replicas)
            return Plan(split=several, placement=Placement(gpus=gpus), arm=Arm.P2P)

        half = msgspec.structs.replace(LOAD, concurrency=4)
        alone = forecast(engine, on(slow, 1), half)
        assert forecast(engine, on(fast, 1), half).latency_s.high < alone.latency_s.value or (
            split == PP2
        )
        for gpus in ((*fast, *slow), (*slow, *fast)):
            both = forecast(engine, on(gpus, 2), LOAD)
            assert both.latency_s == alone.latency_s
            assert both.tpot_s == alone.tpot_s
            assert both.decode == alone.decode
            assert call_cost(engine, on(gpus, 2), half).seconds == alone.latency_s.value
            one = step_time(engine, on(gpus, 2), decode(4, 1000))
            assert one == step_time(engine, on(slow, 1), decode(4, 1000))
            operation = "all_reduce" if split == TP2 else "send_recv"
            assert set(both.curve_ids) == {f"{operation} GPU0", f"{operation} GPU2"}


def test_one_request_walks_both_stages(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    load = Load(prompt_tokens=1024, output_tokens=65, concurrency=1)
    one = call_cost(engine, plan(engine), load).seconds
    two = call_cost(engine, plan(engine, PP2, Arm.P2P), load).seconds
    # Half the layers each, one after the other: the sends are all that differs.
    assert one < two < 1.02 * one


def test_chunks_of_many_prompts_overlap_in_a_pipeline(h200_study: Study) -> None:
    engine = engine_on(h200_study)
    load = Load(prompt_tokens=1024, output_tokens=1, concurrency=64)
    one = call_cost(engine, plan(engine), load).seconds
    two = call_cost(engine, plan(engine, PP2, Arm.P2P), load).seconds
    # Eight steps of work: the longest through both stages, the rest one stage each: 9 halves of 16.
    assert two / one == pytest.approx(9 / 16, rel=0.05)


def test_shapes_of_other_families_are_priced(h200_study: Study) -> None:
    for name in (
        "deepseek-ai--DeepSeek-V3",
        "nvidia--Nemotron-H-56B-Base-8K",
        "google--gemma-4-26B-A4B",
    ):
        engine = Engine(
            shape_of(name),
            engine_on(h200_study).book,
            VLLM,
            engine_on(h200_study).calibration,
        )
        for split, arm in PLANS:
            assert forecast(engine, plan(engine, split, arm), LOAD).latency_s.value > 0
