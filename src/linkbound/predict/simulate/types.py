"""What is simulated, and what came of it: figures by the definitions of measured loads (E3)."""

import math
from collections.abc import Iterable, Mapping

import msgspec

from linkbound.links.types import Arm
from linkbound.predict.simulate.batching import Cache
from linkbound.predict.simulate.fleet import Balance
from linkbound.predict.types import Estimate, Plan
from linkbound.serve.latency import Spread
from linkbound.serve.load_types import Arrival, Cell, Slo
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


class FittedCell(Value, frozen=True, kw_only=True):
    """A measured load and the share of the host's calibrated launches that explains it."""

    contender: str
    cell: str
    share: float
    record_ids: tuple[str, ...] = ()
    """Of the measured cell, a repeat each."""


class HostPace(Value, frozen=True, kw_only=True):
    """How long the host takes for launches, as a share of what the constants say.

    Without a fit it is 1, and as low as the quicker of the two paces that were seen
    (docs/simulation.md): the calls that calibrate show the slower one.
    """

    value: float = 1.0
    low: float = 0.5
    high: float = 1.0
    cells: tuple[FittedCell, ...] = ()
    left_out: tuple[str, ...] = ()
    """Measured cells that say nothing of the host, each with why."""
    elsewhere: str | None = None
    """Machine of the loads where it is not the one that is simulated."""
    record_ids: tuple[str, ...] = ()


CALIBRATED = HostPace()
"""A host that nobody measured a load on."""


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
    """Low and high: all steps at the low and at the high end of their intervals, or launched at the
    low and the high end of the host's pace."""
    apart: Estimate
    """Low and high: this plan's steps alone off by what a ratio of two plans may miss, or launched
    at the ends of the host's pace."""
    draws: Estimate
    """Low and high: other draws of arrivals and steps, and the order statistics of this one."""
    drawn: tuple[float, ...]
    """The figure in every draw that has it, this one first: plans share their arrivals."""
    n: int
    """Samples that it rests on."""
    most: float | None = None
    """What it cannot exceed: a share is at most 1."""

    @property
    def value(self) -> float:
        return self.steps.value

    @property
    def whole(self) -> Estimate:
        """Steps and draws together, in squares."""
        found = in_squares(self.value, (self.steps, self.draws))
        if self.most is None or found.high <= self.most:
            return found
        return msgspec.structs.replace(found, high=self.most)


def in_squares(value: float, parts: Iterable[Estimate]) -> Estimate:
    """Half-widths of independent causes add in squares; no figure here is below zero."""
    known = tuple(parts)
    below = math.sqrt(sum((value - part.low) ** 2 for part in known))
    above = math.sqrt(sum((part.high - value) ** 2 for part in known))
    return Estimate(value=value, low=max(0.0, value - below), high=value + above)


class Simulation(Value, frozen=True, kw_only=True):
    """A plan under a load: figures with their intervals, and what was simulated."""

    scenario: Scenario
    outcome: Outcome
    """With steps as predicted, and the first draw."""
    figures: Mapping[str, Outlook]
    """By name: `ttft_p99_s`, `output_tokens_per_s`, ...; absent where too few samples have it."""
    uncrossed: Mapping[str, float] | None = None
    """The same figures of the same draw if all that crosses took no time: the difference is the
    link's. None where nothing crosses."""
    capacity_per_s: Estimate | None
    """Requests a second with every place taken; None for a closed loop that takes them all."""
    record_ids: tuple[str, ...] = ()
    curve_ids: tuple[str, ...] = ()

    @property
    def offered_per_s(self) -> float | None:
        """Requests a second that come; None in a closed loop."""
        cell = self.scenario.cell
        if cell.arrival is not Arrival.TRACE:
            return cell.rate_per_s
        last_s = cell.entries[cell.requests - 1].at_s
        return cell.requests / last_s if last_s else None

    @property
    def overloaded(self) -> bool:
        """Whether more comes than the plan can serve: times then grow with the number asked."""
        offered, capacity = self.offered_per_s, self.capacity_per_s
        return offered is not None and capacity is not None and offered >= capacity.value
