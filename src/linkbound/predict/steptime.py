"""The time of one step of a plan: max(host, device) of compute, crossings and waiting (S4, D5)."""

import math
from collections.abc import Callable, Mapping

from linkbound.errors import LinkboundError
from linkbound.evidence.types import Provenance
from linkbound.model.types import ModelShape
from linkbound.predict.book import CurveBook
from linkbound.predict.calibration import Calibration, Constant
from linkbound.predict.compute import device_parts, host_s, launch_mode, padded_tokens
from linkbound.predict.price import NoCurve, Priced, price
from linkbound.predict.schedule import Step
from linkbound.predict.types import Estimate, Plan, StepTime, Term, TermKind
from linkbound.predict.work import RankWork, is_mixture, is_quantised, rank_work, step_work
from linkbound.serve.types import SchedulerRules
from linkbound.splits.crossings import crossings
from linkbound.splits.ranks import tensor_group
from linkbound.splits.types import Crossing, CrossingKind, Phase, Split

# No recorded run has experts, weights below 16 bits or stages. Published predictors of engines miss
# by 13 % (TPOT) to 32 % (TTFT) in the median (AIConfigurator 0.12.0 on its own sample): such plans
# are not claimed to be known better.
UNSEEN_MIXTURE = 0.2
UNSEEN_QUANTISED = 0.2
UNSEEN_PIPELINE = 0.13


class NoForecast(LinkboundError):
    """A plan cannot be priced: which crossing has no curve."""

    def __init__(self, missing: NoCurve) -> None:
        crossing = missing.crossing
        super().__init__(
            f"No time is known for {crossing.operation.value} of {crossing.size_bytes:,} bytes "
            f"over {', '.join(missing.group)} in arm {missing.arm.value}.",
            why="The split cannot be priced without it.",
            hint="Measure it, or give a table of nccl-tests for these GPUs.",
        )
        self.missing = missing


class Engine:
    """What a plan is priced with: model, curves, scheduler rules and constants."""

    def __init__(
        self,
        shape: ModelShape,
        book: CurveBook,
        rules: SchedulerRules,
        calibration: Calibration,
    ) -> None:
        self.shape = shape
        self.book = book
        self.rules = rules
        self.calibration = calibration
        self._ranks: dict[tuple[Split, int], RankWork] = {}
        self._crossings: dict[tuple[Split, Phase, int], tuple[Crossing, ...]] = {}

    def model_error(self, split: Split) -> float:
        """Relative half-width of a time: the calibration's, and more for what it never saw."""
        return math.hypot(self.calibration.model_error, *self._unseen(split))

    def unseen_gain_error(self, split: Split) -> float:
        """What a ratio of two plans of this model may miss of it: half is taken as shared."""
        return math.hypot(*self._unseen(split)) / 2

    def _unseen(self, split: Split) -> list[float]:
        """What no run of the calibration shows: each adds its own error, in squares."""
        parts = []
        if is_mixture(self.shape):
            parts.append(UNSEEN_MIXTURE)
        if is_quantised(self.shape):
            parts.append(UNSEEN_QUANTISED)
        if split.pp > 1:
            parts.append(UNSEEN_PIPELINE)
        return parts

    def rank(self, split: Split, stage: int) -> RankWork:
        """The work of the fullest rank of a stage."""
        key = (split, stage)
        if key not in self._ranks:
            self._ranks[key] = rank_work(self.shape, split, stage)
        return self._ranks[key]

    def crossings(self, split: Split, phase: Phase, tokens: int) -> tuple[Crossing, ...]:
        """All crossings of one step of `tokens` tokens in one replica."""
        key = (split, phase, tokens)
        if key not in self._crossings:
            self._crossings[key] = crossings(self.shape, split, phase, tokens, tokens)
        return self._crossings[key]


class Cost:
    """Seconds by kind of term with low and high; kinds err apart, steps of a kind together."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: dict[TermKind, tuple[float, float, float]] = {}

    def add(self, kind: TermKind, value: float, low: float, high: float) -> None:
        old = self.parts.get(kind, (0.0, 0.0, 0.0))
        self.parts[kind] = (old[0] + value, old[1] + low, old[2] + high)

    def add_cost(self, other: "Cost", times: float = 1.0) -> None:
        for kind, (value, low, high) in other.parts.items():
            self.add(kind, value * times, low * times, high * times)

    @property
    def seconds(self) -> float:
        return sum(value for value, _, _ in self.parts.values())

    def estimate(self, model_error: float) -> Estimate:
        """The sum; half-widths of the kinds and the model's own error add in squares."""
        value = self.seconds
        own = (model_error * value) ** 2
        below = math.sqrt(own + sum((v - low) ** 2 for v, low, _ in self.parts.values()))
        above = math.sqrt(own + sum((high - v) ** 2 for v, _, high in self.parts.values()))
        return Estimate(value=value, low=max(0.0, value - below), high=value + above)


def stage_cost(engine: Engine, plan: Plan, stage: int, step: Step) -> tuple[Cost, bool]:
    """One step on the ranks of one stage, and whether the host sets its pace."""
    mode = launch_mode(step.tokens, prefill=bool(step.chunks), rules=engine.rules)
    tokens = padded_tokens(step.tokens, engine.rules)
    work = step_work(engine.rank(plan.split, stage), step, tokens)
    cost = Cost()
    constants = engine.calibration
    for kind, value in device_parts(work, constants).items():
        if value:
            _add(cost, kind, value, _constant(kind, constants, plan, step))
    inside = _inside(engine, plan.split, stage, _phase(step), tokens)
    if inside:
        priced = _price(engine, plan, inside)
        cost.add(TermKind.CROSSINGS, priced.time.value, priced.time.low, priced.time.high)
        _add(cost, TermKind.WAITING, priced.calls * constants.wait_s.value, constants.wait_s)
    device_s = cost.seconds
    launch_s = host_s(work.layers, mode, crossing=bool(inside), constants=constants)
    _add_host(cost, launch_s, device_s, _constant(TermKind.HOST, constants, plan, step))
    return cost, launch_s > device_s


def send_cost(engine: Engine, plan: Plan, step: Step) -> Cost:
    """All sends between stages of one step, one after the other."""
    cost = Cost()
    tokens = padded_tokens(step.tokens, engine.rules)
    between = tuple(
        one
        for one in engine.crossings(plan.split, _phase(step), tokens)
        if one.kind is CrossingKind.PIPELINE
    )
    if between:
        priced = _price(engine, plan, between)
        cost.add(TermKind.CROSSINGS, priced.time.value, priced.time.low, priced.time.high)
    return cost


def sampling_cost(engine: Engine, step: Step) -> Cost:
    """What the engine spends on the sequences that get a token."""
    cost = Cost()
    constant = engine.calibration.sequence_s
    _add(cost, TermKind.OVERHEAD, step.sampled * constant.value, constant)
    return cost


def step_time(engine: Engine, plan: Plan, step: Step) -> StepTime:
    """One step through all stages, as terms that add up to its time."""
    total = Cost()
    host_bound = False
    for stage in range(plan.split.pp):
        cost, bound = stage_cost(engine, plan, stage, step)
        total.add_cost(cost)
        host_bound = host_bound or bound
    total.add_cost(send_cost(engine, plan, step))
    total.add_cost(sampling_cost(engine, step))
    return StepTime(
        time=total.estimate(engine.model_error(plan.split)),
        terms=_terms(engine, plan, step, total),
        host_bound=host_bound,
    )


def _terms(engine: Engine, plan: Plan, step: Step, total: Cost) -> tuple[Term, ...]:
    terms = []
    for kind, (value, low, high) in total.parts.items():
        provenance, basis, ids = _source(engine, plan, step, kind)
        terms.append(
            Term(
                kind=kind,
                time=Estimate(value=value, low=min(low, value), high=max(high, value)),
                provenance=provenance,
                basis=basis,
                record_ids=ids,
            )
        )
    return tuple(terms)


def _source(
    engine: Engine, plan: Plan, step: Step, kind: TermKind
) -> tuple[Provenance, str, tuple[str, ...]]:
    if kind is not TermKind.CROSSINGS:
        constant = _constant(kind, engine.calibration, plan, step)
        return constant.provenance, constant.basis, engine.calibration.record_ids
    tokens = padded_tokens(step.tokens, engine.rules)
    priced = _price(engine, plan, engine.crossings(plan.split, _phase(step), tokens))
    sources = "; ".join(dict.fromkeys(curve.source for curve in priced.curves))
    ids = tuple(dict.fromkeys(one for curve in priced.curves for one in curve.record_ids))
    return priced.provenance, sources, ids


def _add(cost: Cost, kind: TermKind, value: float, constant: Constant) -> None:
    """A part moves with its constant: its relative interval is the constant's.

    Constants that runs were fitted to have no interval of their own here: they err together, and
    what they miss together is the calibration's model and gain error.
    """
    if constant.provenance is Provenance.CALIBRATED:
        cost.add(kind, value, value, value)
        return
    below = constant.estimate.low / constant.value
    above = constant.estimate.high / constant.value
    if kind in _RATES:
        below, above = 1 / above, 1 / below
    low, high = sorted((value * below, value * above))
    cost.add(kind, value, min(low, value), max(high, value))


def _add_host(cost: Cost, launch_s: float, device_s: float, constant: Constant) -> None:
    """What the host takes longer than the device; its interval is that of the whole launch."""
    low = high = launch_s
    if constant.provenance is not Provenance.CALIBRATED:
        low *= constant.estimate.low / constant.value
        high *= constant.estimate.high / constant.value
    value, low, high = (max(0.0, one - device_s) for one in (launch_s, low, high))
    if high:
        cost.add(TermKind.HOST, value, low, high)


def _constant(kind: TermKind, constants: Calibration, plan: Plan, step: Step) -> Constant:
    """The constant that a part of this step rests on most."""
    if kind is TermKind.ATTENTION and not step.chunks:
        # Decoding reads the cache; only prompts make attention compute.
        return constants.stream_bytes_per_s
    if kind is TermKind.HOST and plan.split.tp * plan.split.ep > 1:
        return constants.host_layer_split_s
    return _CONSTANT_OF[kind](constants)


def _price(engine: Engine, plan: Plan, wanted: tuple[Crossing, ...]) -> Priced:
    assert plan.arm is not None, f"{plan.name} crosses GPUs, so it talks over some arm"
    labels = tuple(engine.book.machine.gpu(key).label for key in plan.placement.gpus)
    priced = price(wanted, labels, plan.arm, engine.book)
    if isinstance(priced, NoCurve):
        raise NoForecast(priced)
    return priced


def _phase(step: Step) -> Phase:
    return Phase.PREFILL if step.chunks else Phase.DECODE


def _inside(
    engine: Engine, split: Split, stage: int, phase: Phase, tokens: int
) -> tuple[Crossing, ...]:
    group = set(tensor_group(split, stage))
    return tuple(
        one
        for one in engine.crossings(split, phase, tokens)
        if one.kind is not CrossingKind.PIPELINE and group & set(one.ranks)
    )


_RATES = frozenset({TermKind.WEIGHTS, TermKind.MATRIX, TermKind.ATTENTION})
_CONSTANT_OF: Mapping[TermKind, Callable[[Calibration], Constant]] = {
    TermKind.WEIGHTS: lambda constants: constants.stream_bytes_per_s,
    TermKind.MATRIX: lambda constants: constants.matrix_flops_per_s,
    TermKind.ATTENTION: lambda constants: constants.attention_flops_per_s,
    TermKind.LAUNCH: lambda constants: constants.layer_s,
    TermKind.ROUTING: lambda constants: constants.mixture_layer_s,
    TermKind.WAITING: lambda constants: constants.wait_s,
    TermKind.HOST: lambda constants: constants.host_layer_s,
    TermKind.OVERHEAD: lambda constants: constants.sequence_s,
}
