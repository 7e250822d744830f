"""Constants from runs: known ones come back, untold ones stay where they started."""

import msgspec
import pytest
from predict_cases import changed, engine_on, plan

from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Provenance
from linkbound.links import Arm, Operation, PairRate
from linkbound.model.types import Load
from linkbound.predict.calibrate import calibrate, predict_run
from linkbound.predict.calibration import Calibration, Constant
from linkbound.predict.defaults import (
    CARRIED_GAIN_ERROR,
    CARRIED_MODEL_ERROR,
    carried,
    device_facts,
    prior_calibration,
)
from linkbound.predict.devices import CEILINGS, find_ceiling
from linkbound.predict.forecast import call_cost
from linkbound.predict.steptime import Engine
from linkbound.serve import VLLM
from linkbound.serve.types import EngineRun, RunSpec, RunTimes
from linkbound.splits.types import Split
from linkbound.topology.types import Gpu

POINTS = ((1, 1024), (8, 1024), (32, 1024), (128, 128), (1, 8192))


def spec(tp: int, batch: int, prompt: int, output: int = 65) -> RunSpec:
    return RunSpec(
        model="llama",
        tp=tp,
        pp=1,
        expert_parallel=False,
        custom_all_reduce=False,
        p2p_disabled=False,
        batch=batch,
        prompt_tokens=prompt,
        output_tokens=output,
    )


def made(engine: Engine, tps: tuple[int, ...]) -> tuple[EngineRun, ...]:
    """Runs as an engine with exactly these constants would have given them."""
    runs = []
    for tp in tps:
        for batch, prompt in POINTS:
            point = spec(tp, batch, prompt)
            prefill_s, token_s = predict_run(engine, point)
            assert token_s is not None
            times = RunTimes(prefill_s=(prefill_s,), total_s=(prefill_s + 64 * token_s,))
            runs.append(EngineRun(tag="made", line=1, spec=point, times=times))
    return tuple(runs)


@pytest.fixture
def prior(h200_study: Study) -> Calibration:
    book = engine_on(h200_study).book
    return prior_calibration(device_facts(book.machine.gpus[0], book.rates))


def test_known_constants_come_back(prior: Calibration, h200_study: Study) -> None:
    engine = engine_on(h200_study)
    truth = changed(
        prior,
        stream_bytes_per_s=prior.stream_bytes_per_s.value * 0.92,
        matrix_flops_per_s=prior.matrix_flops_per_s.value * 1.15,
        host_layer_split_s=1.3e-3,
        sequence_s=8e-6,
    )
    engine.calibration = truth
    runs = made(engine, (1, 2))
    found = calibrate(prior, runs, {"llama": engine.shape}, engine.book, VLLM)
    for name, within in (
        ("stream_bytes_per_s", 0.06),
        ("matrix_flops_per_s", 0.02),
        ("host_layer_split_s", 0.02),
        ("sequence_s", 0.1),
    ):
        constant: Constant = getattr(found, name)
        assert constant.value == pytest.approx(getattr(truth, name).value, rel=within)
        assert constant.provenance is Provenance.CALIBRATED
        assert constant.basis == "calibrated from engine runs"
        assert constant.estimate.low < constant.value < constant.estimate.high
    # What no run shows stays: nothing here has experts.
    assert found.mixture_layer_s.value == pytest.approx(prior.mixture_layer_s.value, rel=1e-9)
    assert found.mixture_layer_s.provenance is Provenance.PRIOR
    assert found.mixture_layer_s.basis == prior.mixture_layer_s.basis
    # Points in between are predicted as the true constants would.
    for batch, prompt, tp in ((16, 512, 1), (16, 512, 2), (64, 256, 2), (2, 4096, 1)):
        point = spec(tp, batch, prompt)
        engine.calibration = truth
        expected = predict_run(engine, point)
        engine.calibration = found
        assert predict_run(engine, point) == pytest.approx(expected, rel=0.03)
    assert found.model_error == 0.05
    assert found.gain_error == 0.06


def test_one_gpu_tells_nothing_of_crossings(prior: Calibration, h200_study: Study) -> None:
    engine = engine_on(h200_study)
    engine.calibration = changed(prior, wait_s=9e-6, host_layer_split_s=1.8e-3, layer_s=40e-6)
    runs = made(engine, (1,))
    found = calibrate(prior, runs, {"llama": engine.shape}, engine.book, VLLM)
    for name in ("wait_s", "host_layer_split_s"):
        assert getattr(found, name).value == pytest.approx(getattr(prior, name).value, rel=1e-6)
        assert getattr(found, name).provenance is Provenance.PRIOR
    assert found.gain_error == prior.gain_error


def test_without_runs_the_prior_stands(prior: Calibration, h200_study: Study) -> None:
    engine = engine_on(h200_study)
    assert calibrate(prior, (), {}, engine.book, VLLM) == prior


def test_the_gain_of_every_arm_counts(prior: Calibration, h200_study: Study) -> None:
    """One arm of three misses: the same error wherever its runs stand, and not hidden by others."""
    engine = engine_on(h200_study)
    engine.calibration = prior
    runs = list(made(engine, (1,)))
    for arm, slower in ((Arm.P2P, 1.0), (Arm.NCCL, 1.3), (Arm.STAGED, 1.0)):
        for run in made(engine, (2,)):
            point = msgspec.structs.replace(
                run.spec, custom_all_reduce=arm is Arm.P2P, p2p_disabled=arm is Arm.STAGED
            )
            assert point.arm is arm
            prefill_s, token_s = predict_run(engine, point)
            assert token_s is not None
            times = RunTimes(
                prefill_s=(prefill_s * slower,), total_s=((prefill_s + 64 * token_s) * slower,)
            )
            runs.append(EngineRun(tag="made", line=1, spec=point, times=times))
    tail = runs[len(POINTS) :]
    found = [
        calibrate(prior, tuple(order), {"llama": engine.shape}, engine.book, VLLM).gain_error
        for order in (runs, [*runs[: len(POINTS)], *reversed(tail)], list(reversed(runs)))
    ]
    assert found == pytest.approx([found[0]] * 3, rel=1e-3)
    assert found[0] > 0.1


def test_the_error_is_what_the_constants_leave(prior: Calibration, h200_study: Study) -> None:
    engine = engine_on(h200_study)
    engine.calibration = prior
    runs = [
        msgspec.structs.replace(
            run,
            times=RunTimes(
                prefill_s=tuple(one * factor for one in run.times.prefill_s),
                total_s=tuple(one * factor for one in run.times.total_s),
            ),
        )
        for run, factor in zip(made(engine, (1, 2)), (0.8, 1.2, 0.8, 1.2, 0.8) * 2, strict=True)
    ]
    found = calibrate(prior, tuple(runs), {"llama": engine.shape}, engine.book, VLLM)
    assert 0.1 < found.model_error < 0.6


def test_recorded_constants_are_physical(h200_study: Study) -> None:
    found = engine_on(h200_study).calibration
    # 4.8 TB/s and 989 TFLOP/s are published of an H200.
    assert 3.2e12 < found.stream_bytes_per_s.value < 4.8e12
    assert 450e12 < found.matrix_flops_per_s.value < 800e12
    # 1 x 1,024 on two H200, which the host launches, takes 35 to 38 ms less what the engine adds.
    launch = found.host_step_s.value + 32 * found.host_layer_split_s.value
    assert launch == pytest.approx(36.5e-3, rel=0.05)
    assert found.host_layer_split_s.value == pytest.approx(0.93e-3, rel=0.1)
    assert found.model_error < 0.12
    assert found.gain_error < 0.1
    (record_id,) = found.record_ids
    record = h200_study.get(record_id)
    kinds = {h200_study.get(parent).kind for parent in record.parents}
    assert kinds == {"topology.machine", "links.rates", "serve.run"}
    tags = {
        h200_study.get(parent).subject["tag"]
        for parent in record.parents
        if h200_study.get(parent).kind == "serve.run"
    }
    assert tags == {
        *("llama8b_tp1", "llama8b_tp2_nccl"),
        *("qwen3-32b_one_GPU", "qwen3-32b-shard-of-tp2", "llama-3.1-70b-shard-of-tp2"),
    }


def test_constants_are_carried_by_the_facts_of_both_gpus(
    h200_study: Study, desktop_study: Study
) -> None:
    home, away = engine_on(h200_study), engine_on(desktop_study, "5060ti-pair")
    source = device_facts(home.book.machine.gpus[0], home.book.rates)
    target = device_facts(away.book.machine.gpu("GPU1"), away.book.rates)
    found = carried(home.calibration, source, target)
    ratio = target.matrix_flops_per_s / source.matrix_flops_per_s
    assert ratio == pytest.approx(47.4 / 989.4)
    assert found.matrix_flops_per_s.value == pytest.approx(
        home.calibration.matrix_flops_per_s.value * ratio
    )
    assert found.host_layer_s.value == home.calibration.host_layer_s.value
    assert (found.model_error, found.gain_error) == (CARRIED_MODEL_ERROR, CARRIED_GAIN_ERROR)
    for name in found.__struct_fields__:
        constant = getattr(found, name)
        if isinstance(constant, Constant):
            assert constant.provenance is Provenance.PRIOR
            assert constant.basis.startswith("carried from engine runs on H200 to RTX 5060 Ti")
            assert constant.estimate.high / constant.value > 1.6
    # The study of that machine did just this.
    assert away.calibration.matrix_flops_per_s == found.matrix_flops_per_s
    load = Load(prompt_tokens=1024, output_tokens=65, concurrency=1)
    whole = call_cost(away, plan(away), load).estimate(away.calibration.model_error)
    assert whole.high / whole.value > 1.3
    assert whole.low / whole.value < 0.75


def test_facts_of_a_gpu() -> None:
    gpu = Gpu(key="a", label="GPU0", model="NVIDIA H200")
    published = device_facts(gpu, ())
    assert published.stream.value == pytest.approx(0.8 * 4.8e12)
    assert published.stream.provenance is Provenance.PRIOR
    copy = PairRate(
        src="GPU0",
        dst="GPU0",
        operation=Operation.LOCAL_COPY,
        implementation="copy_engine",
        method="hand-made",
        bytes_per_s=2e12,
    )
    timed = device_facts(gpu, (copy,))
    assert timed.stream.value == pytest.approx(0.97 * 4e12)
    assert timed.stream.provenance is Provenance.ROOFLINE
    other = msgspec.structs.replace(copy, src="GPU1", dst="GPU1")
    assert device_facts(gpu, (other,)).stream == published.stream


@pytest.mark.parametrize("model", [None, "NVIDIA TITAN Z"])
def test_a_gpu_of_which_nothing_is_known_is_one_error(model: str | None) -> None:
    with pytest.raises(InputError) as raised:
        device_facts(Gpu(key="a", label="GPU3", model=model), ())
    assert raised.value.seen == f"GPU3 is {model or 'a GPU of unknown model'}."
    assert "engine run" in raised.value.why


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 5070 Ti", "RTX 5070 Ti"),
        ("NVIDIA GeForce RTX 5070", "RTX 5070"),
        ("nvidia a100-sxm4-80gb", "A100"),
    ],
)
def test_the_longest_name_wins(name: str, model: str) -> None:
    found = find_ceiling(name)
    assert found is not None
    assert found.model == model
    assert all(one.source for one in CEILINGS)


def test_arms_of_a_run_spec() -> None:
    assert spec(1, 1, 1).arm is None
    assert spec(2, 1, 1).arm is Arm.NCCL
    assert Split(tp=2).gpus == 2
