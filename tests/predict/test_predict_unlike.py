"""Plans over unlike GPUs and unlike links: the slowest sets the pace, and each stage its own."""

from itertools import permutations

import msgspec
import pytest
from predict_cases import changed, decode

from linkbound.evidence.types import Provenance
from linkbound.links import Arm, Operation
from linkbound.links.types import Curve, CurveKey, CurvePoint, Timed
from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.predict.book import CurveBook
from linkbound.predict.calibration import Calibration
from linkbound.predict.defaults import device_facts, prior_calibration
from linkbound.predict.forecast import call_cost
from linkbound.predict.pace import slowest
from linkbound.predict.pricing import ModelWork, PlanPrices
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import Plan, TermKind
from linkbound.serve import VLLM
from linkbound.splits.ranks import same_time
from linkbound.splits.types import Phase, Placement, Split
from linkbound.topology.types import Gpu, Machine, Pair, PairPath, PathKind

FAST, SLOW = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
SHAPE = read_model("llama-3.1-8b")
LOAD = Load(prompt_tokens=512, output_tokens=32, concurrency=4)


def calibration(model: str) -> Calibration:
    return prior_calibration(device_facts(Gpu(key="x", label="x", model=model), ()))


def machine(*models: str) -> Machine:
    return Machine(
        sources=("made",),
        gpus=tuple(
            Gpu(key=f"k{at}", label=f"GPU{at}", model=model) for at, model in enumerate(models)
        ),
        pairs=tuple(
            PairPath(pair=Pair(src=f"k{src}", dst=f"k{dst}"), kind=PathKind.PHB)
            for src, dst in permutations(range(len(models)), 2)
        ),
    )


class PairBook(CurveBook):
    """A call takes the time of its slowest pair."""

    def __init__(self, of: Machine, times: dict[tuple[str, str], float]) -> None:
        super().__init__(of, (), direct_limit_bytes=0)
        self.times = times

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve]:
        time_s = max(self.times.get(pair, 1e-6) for pair in permutations(group, 2))
        timed = Timed(time_s=time_s, low_s=time_s, high_s=time_s, provenance=Provenance.STATED)
        key = CurveKey(operation=operation, implementation="made", group=group, arm=arm)
        point = CurvePoint(size_bytes=size_bytes, time_s=time_s)
        return timed, Curve(key=key, points=(point,), source="made")


def engine(of: Machine, others: dict[str, Calibration] | None = None) -> Engine:
    return Engine(SHAPE, PairBook(of, {}), VLLM, calibration(FAST), others=others or {})


def plan(split: Split, *numbers: int, arm: Arm | None = Arm.P2P) -> Plan:
    keys = tuple(f"k{number}" for number in numbers)
    return Plan(split=split, placement=Placement(gpus=keys), arm=arm)


def seconds(engine: Engine, found: Plan) -> float:
    return call_cost(engine, found, LOAD).seconds


MIXED = machine(FAST, FAST, SLOW, SLOW)
OTHERS = {SLOW: calibration(SLOW)}


def test_one_gpu_has_its_own_pace() -> None:
    unlike = engine(MIXED, OTHERS)
    one = Split()
    fast, slow = (seconds(unlike, plan(one, number, arm=None)) for number in (0, 2))
    assert slow > 1.2 * fast
    alone = Engine(SHAPE, PairBook(MIXED, {}), VLLM, calibration(SLOW))
    assert slow == pytest.approx(seconds(alone, plan(one, 2, arm=None)))


def test_a_tensor_group_waits_for_its_slowest() -> None:
    unlike, tp2 = engine(MIXED, OTHERS), Split(tp=2)
    assert seconds(unlike, plan(tp2, 0, 2)) == pytest.approx(seconds(unlike, plan(tp2, 2, 3)))
    assert seconds(unlike, plan(tp2, 0, 1)) < seconds(unlike, plan(tp2, 0, 2))


def test_each_stage_of_a_pipeline_has_its_own_pace() -> None:
    unlike, pp2 = engine(MIXED, OTHERS), Split(pp=2)
    fast, mixed, slow = (
        seconds(unlike, plan(pp2, *numbers)) for numbers in ((0, 1), (0, 2), (2, 3))
    )
    assert fast < mixed < slow
    # Fewer layers on the slow GPU is better than as many.
    uneven = Split(pp=2, stage_layers=(20, 12))
    assert seconds(unlike, plan(uneven, 0, 2)) < mixed


def test_the_slower_of_two_is_slower_in_every_constant() -> None:
    one = calibration(FAST)
    other = changed(one, stream_bytes_per_s=one.stream_bytes_per_s.value / 2, layer_s=1e-6)
    other = msgspec.structs.replace(other, model_error=0.5)
    found = slowest((one, other))
    assert found.stream_bytes_per_s == other.stream_bytes_per_s
    assert found.layer_s == one.layer_s
    assert found.model_error == 0.5


def test_a_machine_with_a_less_known_gpu_is_less_known() -> None:
    other = msgspec.structs.replace(calibration(SLOW), model_error=0.7)
    assert engine(MIXED, {SLOW: other}).model_error(Split()) >= 0.7
    assert engine(MIXED).model_error(Split()) < 0.7


@pytest.mark.parametrize(
    ("split", "ranks", "expected"),
    [
        (Split(tp=2), (0, 1), ((0, 1),)),
        (Split(tp=2, pp=2), (0, 2), ((0, 2), (1, 3))),
        (Split(tp=2, pp=2), (2, 3), ((2, 3),)),
        (Split(tp=2, pp=2, replicas=2), (0, 2), ((0, 2), (1, 3), (4, 6), (5, 7))),
        (Split(tp=2, replicas=2), (0, 1), ((0, 1), (2, 3))),
        (Split(ep=2, replicas=2), (0, 1), ((0, 1),)),
    ],
)
def test_what_happens_at_the_same_time(
    split: Split, ranks: tuple[int, ...], expected: tuple[tuple[int, ...], ...]
) -> None:
    assert same_time(split, ranks) == expected


def test_stages_wait_for_the_slowest_of_the_ranks_that_send() -> None:
    four = machine(*[FAST] * 4)
    split = Split(tp=2, pp=2)
    for slow in (("GPU0", "GPU2"), ("GPU1", "GPU3")):
        prices = PlanPrices(ModelWork(SHAPE), PairBook(four, {slow: 5e-3}), plan(split, 0, 1, 2, 3))
        found = prices.between(Phase.DECODE, 4)
        assert found is not None
        assert found.time.value == pytest.approx(2 * 5e-3 + 2 * 1e-6)
    # A pair that sends nothing to each other.
    prices = PlanPrices(
        ModelWork(SHAPE), PairBook(four, {("GPU0", "GPU3"): 5e-3}), plan(split, 0, 1, 2, 3)
    )
    found = prices.between(Phase.DECODE, 4)
    assert found is not None
    assert found.time.value < 1e-3


def test_the_terms_of_a_step_over_unlike_stages_add_up() -> None:
    found = step_time(engine(MIXED, OTHERS), plan(Split(pp=2), 0, 2), decode(4, 512))
    assert found.time.value == pytest.approx(sum(term.time.value for term in found.terms))
    assert {term.kind for term in found.terms} >= {TermKind.WEIGHTS, TermKind.CROSSINGS}
