"""The time of one step of a plan as terms, each with its source; and what a plan is priced with."""

import math
from collections.abc import Callable, Mapping

import msgspec

from linkbound.evidence.types import Provenance
from linkbound.model.types import Load, ModelShape
from linkbound.predict.book import CurveBook
from linkbound.predict.calibration import Calibration, Constant
from linkbound.predict.compute import padded_tokens
from linkbound.predict.cost import Cost
from linkbound.predict.imbalance import BASIS
from linkbound.predict.pace import Pace, Paces
from linkbound.predict.pricing import ModelWork, PlanPrices, Source
from linkbound.predict.schedule import Step
from linkbound.predict.stage import (
    add_sampling,
    add_sends,
    host_constant,
    phase_of,
    rested_in_row,
    stage_costs,
)
from linkbound.predict.types import Estimate, Plan, StepTime, Term, TermKind
from linkbound.serve.types import SchedulerRules
from linkbound.splits.types import Placement, Split

# Twice what the runs cover is still close to them; beyond, kernels and their efficiency change.
SEEN_RANGE = 2.0


class Engine:
    """What a plan is priced with: model, curves, scheduler rules and constants."""

    def __init__(
        self,
        shape: ModelShape,
        book: CurveBook,
        rules: SchedulerRules,
        calibration: Calibration,
        *,
        work: ModelWork | None = None,
        others: Mapping[str, Calibration] = {},
    ) -> None:
        """`others` are the constants of GPU models that are not those of `calibration`."""
        self.shape = shape
        self.book = book
        self.rules = rules
        self.paces = Paces(calibration, others)
        self.work = ModelWork(shape) if work is None else work
        self._prices: dict[tuple[object, ...], PlanPrices] = {}
        self._calls: dict[tuple[int, Load], Cost] = {}

    @property
    def pace(self) -> Pace:
        return self.paces.main

    @property
    def calibration(self) -> Calibration:
        return self.pace.constants

    @calibration.setter
    def calibration(self, calibration: Calibration) -> None:
        self.paces = Paces(calibration, self.paces.others)
        self._calls.clear()

    def with_book(self, book: CurveBook) -> "Engine":
        """The same engine over other links."""
        return Engine(
            self.shape,
            book,
            self.rules,
            self.calibration,
            work=self.work,
            others=self.paces.others,
        )

    def replicas(self, plan: Plan) -> tuple[Plan, ...]:
        """The plans that are priced for `plan`: one for each replica that shares nothing.

        Replicas may sit on GPUs that are joined differently; those in which nothing crosses are
        alike on GPUs of one model, and those that share experts are one plan.
        """
        split, gpus = plan.split, plan.placement.gpus
        if split.replicas == 1 or split.ep > split.tp:
            return (plan,)
        alone = msgspec.structs.replace(split, replicas=1)
        found = tuple(
            Plan(
                split=alone,
                placement=Placement(gpus=gpus[at : at + alone.gpus]),
                arm=plan.arm,
            )
            for at in range(0, len(gpus), alone.gpus)
        )
        if plan.arm is not None:
            return found
        models = {self.book.machine.gpu(one.placement.gpus[0]).model: one for one in found[::-1]}
        return tuple(models.values()) if self.paces.others else found[:1]

    def prices(self, plan: Plan) -> PlanPrices:
        """The crossings of one of `replicas`, priced once for all steps."""
        key = (plan.split, plan.placement.gpus, plan.arm)
        if key not in self._prices:
            self._prices[key] = PlanPrices(self.work, self.book, plan)
        return self._prices[key]

    def kept_call(self, prices: PlanPrices, load: Load, work_out: Callable[[], Cost]) -> Cost:
        """The cost of a call, worked out once for each plan and load while constants stay."""
        key = (id(prices), load)
        if key not in self._calls:
            self._calls[key] = work_out()
        return self._calls[key]

    def model_error(self, split: Split, tokens: int = 0) -> float:
        """Relative half-width of a time: the calibration's, and more for what it never saw.

        `tokens` is the length of a sequence at the end of the call.
        """
        errors = self.calibration.unseen
        unseen = (getattr(errors, name) for name in self.unseen(split, tokens))
        known = max(one.model_error for one in (self.calibration, *self.paces.others.values()))
        return math.hypot(known, *unseen)

    def unseen_gain_error(self, split: Split) -> float:
        """What a ratio of two plans of this model may miss of it: half is taken as shared."""
        errors = self.calibration.unseen
        return math.hypot(*(getattr(errors, name) for name in self.unseen(split))) / 2

    def unseen(self, split: Split, tokens: int = 0) -> tuple[str, ...]:
        """What no run of the calibration shows, as names of `UnseenErrors`."""
        seen = self.calibration.seen
        parts = {
            "mixture": self.work.is_mixture,
            "quantised": self.work.is_quantised,
            "pipeline": split.pp > 1,
            "size": seen is not None
            and not (
                seen.least_bytes / SEEN_RANGE
                <= self.work.ranks(split)[0].matrix_bytes
                <= seen.most_bytes * SEEN_RANGE
            ),
            "split": seen is not None and not seen.splits and split.tp * split.pp * split.ep > 1,
            "length": seen is not None and tokens > SEEN_RANGE * seen.longest_tokens,
        }
        return tuple(name for name, holds in parts.items() if holds)


def step_time(engine: Engine, plan: Plan, step: Step, in_row: int = 1) -> StepTime:
    """One step of the slowest replica through all stages, as terms that add up to its time.

    With prompts it is one of `in_row` steps. Raises NoForecast.
    """
    steps = (_replica_step(engine, one, step, in_row) for one in engine.replicas(plan))
    return max(steps, key=lambda found: found.time.value)


def _replica_step(engine: Engine, plan: Plan, step: Step, in_row: int) -> StepTime:
    prices, total = engine.prices(plan), Cost()
    rested = rested_in_row(prices.stages, in_row)
    stages = stage_costs(prices, step, engine.rules, engine.paces, rested)
    for one in stages:
        total.add_cost(one.cost, one.stages)
    add_sends(total, prices, step, engine.rules)
    add_sampling(total, step, engine.pace)
    return StepTime(
        time=total.estimate(engine.model_error(plan.split)),
        terms=_terms(engine, prices, step, total),
        host_bound=any(one.host_bound for one in stages),
    )


def _terms(engine: Engine, prices: PlanPrices, step: Step, total: Cost) -> tuple[Term, ...]:
    terms = []
    for kind, (value, low, high) in total.parts.items():
        provenance, basis, ids = _source(engine, prices, step, kind)
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


def _source(engine: Engine, prices: PlanPrices, step: Step, kind: TermKind) -> Source:
    if kind is TermKind.CROSSINGS:
        return prices.source(phase_of(step), padded_tokens(step.tokens, engine.rules))
    if kind is TermKind.IMBALANCE:
        return Provenance.PRIOR, BASIS, ()
    constant = _constant(kind, engine.calibration, prices.plan, step)
    return constant.provenance, constant.basis, engine.calibration.record_ids


def _constant(kind: TermKind, constants: Calibration, plan: Plan, step: Step) -> Constant:
    """The constant that a part of this step rests on most."""
    if kind is TermKind.ATTENTION and not step.chunks:
        return constants.stream_bytes_per_s
    if kind is TermKind.HOST:
        return host_constant(constants, plan.split)
    return _CONSTANT_OF[kind](constants)


_CONSTANT_OF: Mapping[TermKind, Callable[[Calibration], Constant]] = {
    TermKind.WEIGHTS: lambda constants: constants.stream_bytes_per_s,
    TermKind.MATRIX: lambda constants: constants.matrix_flops_per_s,
    TermKind.ATTENTION: lambda constants: constants.attention_flops_per_s,
    TermKind.LAUNCH: lambda constants: constants.layer_s,
    TermKind.ROUTING: lambda constants: constants.mixture_layer_s,
    TermKind.WAITING: lambda constants: constants.wait_s,
    TermKind.OVERHEAD: lambda constants: constants.sequence_s,
}
