"""Predicted times as sums of named terms, each with its source and interval (D5, E3)."""

from collections.abc import Mapping
from enum import StrEnum

from linkbound.evidence.types import Provenance
from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.splits.types import Phase, Placement, Split
from linkbound.values import Value


class Estimate(Value, frozen=True, kw_only=True):
    """A value with its interval: low <= value <= high."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} is not inside {self.low} .. {self.high}")


class TermKind(StrEnum):
    """What a part of a step's time is spent on."""

    WEIGHTS = "weights"
    MATRIX = "matrix products"
    ATTENTION = "attention"
    LAUNCH = "layer latency"
    ROUTING = "expert routing"
    CROSSINGS = "crossings"
    WAITING = "waiting"
    HOST = "host"
    OVERHEAD = "engine overhead"
    IMBALANCE = "imbalance"
    """What the fullest rank of experts, or the slowest stage, takes beyond the mean."""

    @property
    def words(self) -> str:
        """What the seconds are, for readers; the value is the name that records keep.

        Weights and products overlap: those of products are what both take beyond the weights.
        """
        if self is TermKind.MATRIX:
            return "matrix products beyond the weights' time"
        return self.value


class Regime(StrEnum):
    """What takes the largest share of a step (S4)."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LATENCY = "latency"
    """Small kernels, host and engine: neither bytes nor FLOPs."""
    LINK = "link"


class RegimeCell(Value, frozen=True, kw_only=True):
    """One point of the map of batch and length."""

    phase: Phase
    batch: int
    length: int
    """Cached tokens a sequence for decode, prompt tokens for prefill."""
    step_s: float
    """One decode step, or a whole prefill: all steps in which the engine takes the prompts."""
    link_share: float
    regime: Regime
    faster_than_one: bool | None
    """Whether the split is faster than one GPU; None where one GPU cannot hold the cell too."""
    fits: bool = True
    """Whether the caches of the cell fit on the split's GPUs: where not, its times mean nothing."""


class Term(Value, frozen=True, kw_only=True):
    """One part of a step's time, in seconds."""

    kind: TermKind
    time: Estimate
    provenance: Provenance
    basis: str
    record_ids: tuple[str, ...] = ()


class StepTime(Value, frozen=True, kw_only=True):
    """The time of one forward step: max(host, device); device is the sum of its terms."""

    time: Estimate
    terms: tuple[Term, ...]
    host_bound: bool


class Plan(Value, frozen=True, kw_only=True):
    """A split on named GPUs, talking over one arm; None where nothing is split."""

    split: Split
    placement: Placement
    arm: Arm | None

    @property
    def key(self) -> "PlanKey":
        """What tells a plan from others, for lookups."""
        return self.split, self.placement.gpus, self.arm

    @property
    def name(self) -> str:
        return self.split.name if self.arm is None else f"{self.split.name}, {self.arm.value}"


PlanKey = tuple[Split, tuple[str, ...], Arm | None]


class Forecast(Value, frozen=True, kw_only=True):
    """What a plan is predicted to do under a load."""

    plan: Plan
    load: Load
    ttft_s: Estimate
    """From a batch given at once to the last sequence's first token (prefill, no queue)."""
    tpot_s: Estimate | None
    """(whole call - prefill) / (output - 1); None for a single output token."""
    tokens_per_s: Estimate
    """Output tokens of all sequences over the whole call."""
    latency_s: Estimate
    """The whole call."""
    decode: StepTime | None
    """A decode step in the middle of the output."""
    prefill: StepTime
    """The prefill step with the most tokens."""
    parts: Mapping[TermKind, Estimate]
    """The whole call by kind of term: seconds that add up to `latency_s`."""
    hidden_sends_s: float = 0.0
    """Sends between stages while every stage computes another group: in no sum of the call."""
    unseen_gain_error: float = 0.0
    """Relative half-width of a ratio to another split for what no calibrating run shows."""
    record_ids: tuple[str, ...] = ()
    curve_ids: tuple[str, ...] = ()
    """Records of every curve that prices a step of the call, in any replica."""
