"""What is simulated, and what came of it: figures by the definitions of measured loads (E3)."""

from collections.abc import Mapping

from linkbound.links.types import Arm
from linkbound.predict.simulate.batching import Cache
from linkbound.predict.simulate.fleet import Balance
from linkbound.predict.types import Estimate, Plan
from linkbound.serve.latency import Spread
from linkbound.serve.load_types import Cell, Slo
from linkbound.serve.types import SchedulerRules
from linkbound.values import Value


class Scenario(Value, frozen=True, kw_only=True):
    """A plan under a load, with everything that decides how its engines make steps."""

    plan: Plan
    cell: Cell
    rules: SchedulerRules
    cache: Cache
    """Of one replica."""
    balance: Balance = Balance.LEAST
    reuse: float = 0.0
    """Share of every prompt that the prefix cache holds."""
    slo: Slo | None = None
    step_spread: float
    """Relative spread of one step around its predicted time."""
    prefill: Plan | None = None
    """Engines on GPUs of their own that take the prompts and hand their cache over."""
    prefill_cache: Cache | None = None
    handover_arm: Arm | None = None
    """Over which the cache goes; given where `prefill` is."""

    @property
    def name(self) -> str:
        """`tp2, p2p`, `tp2, p2p after x2`."""
        if self.prefill is None:
            return self.plan.name
        return f"{self.plan.name} after {self.prefill.split.name}"


class Outcome(Value, frozen=True, kw_only=True):
    """One play of a load; a time without any sample has n = 0 and no percentile.

    Names and definitions are those of `serve.latency.LoadSummary`.
    """

    requests: int
    duration_s: float
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft_from_schedule_s: Spread
    tpot_s: Spread
    token_gap_s: Spread
    e2e_s: Spread
    goodput: float | None
    """Share of all requests that kept the SLO; None where none was stated."""
    preemptions: int
    cache_mean: float | None
    """Share of the cache that is held, over the time of the load; None where nothing bounds it."""
    cache_peak: float | None
    busy: float
    """Share of the time in which an engine makes steps, mean of all."""
    steps: int


class Outlook(Value, frozen=True, kw_only=True):
    """A simulated figure with what it may be off for each cause."""

    steps: Estimate
    """Low and high: all steps at the low and at the high end of their intervals."""
    draws: Estimate
    """Low and high: other draws of arrivals and steps, and the order statistics of this one."""
    n: int
    """Samples that it rests on."""

    @property
    def value(self) -> float:
        return self.steps.value

    @property
    def whole(self) -> Estimate:
        """Both causes together, in squares."""
        parts = (self.steps, self.draws)
        below = sum((self.value - part.low) ** 2 for part in parts) ** 0.5
        above = sum((part.high - self.value) ** 2 for part in parts) ** 0.5
        return Estimate(value=self.value, low=max(0.0, self.value - below), high=self.value + above)


class Simulation(Value, frozen=True, kw_only=True):
    """A plan under a load: figures with their intervals, and what was simulated."""

    scenario: Scenario
    outcome: Outcome
    """With steps as predicted, and the first draw."""
    figures: Mapping[str, Outlook]
    """By name: `ttft_p99_s`, `output_tokens_per_s`, ...; absent where too few samples have it."""
    capacity_per_s: Estimate | None
    """Requests a second with every place taken; None for a closed loop that takes them all."""
    record_ids: tuple[str, ...] = ()
    curve_ids: tuple[str, ...] = ()

    @property
    def overloaded(self) -> bool:
        """Whether more comes than the plan can serve: times then grow with the number asked."""
        rate = self.scenario.cell.rate_per_s
        return (
            rate is not None
            and self.capacity_per_s is not None
            and (rate >= self.capacity_per_s.value)
        )
