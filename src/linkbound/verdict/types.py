"""Keep, reject or undecided: against what, for which aim, why, and what would change it (D1-D3)."""

from enum import StrEnum

from linkbound.evidence.types import Figure
from linkbound.model.types import Load
from linkbound.predict.types import Estimate, Plan
from linkbound.values import Value


class Answer(StrEnum):
    KEEP = "keep"
    REJECT = "reject"
    UNDECIDED = "undecided"


class Aim(StrEnum):
    LATENCY = "latency"
    THROUGHPUT = "throughput"
    CAPACITY = "capacity"


class Reason(Value, frozen=True, kw_only=True):
    """One sentence with its figures and the records behind it."""

    code: str
    text: str
    figures: tuple[Figure, ...] = ()
    record_ids: tuple[str, ...] = ()


class Comparison(Value, frozen=True, kw_only=True):
    """A plan against a baseline for one aim; gain 1.10 means ten percent better."""

    aim: Aim
    plan: Plan
    baseline: Plan
    gain: Estimate | None
    """None where one of the two does not fit or cannot be predicted."""
    answer: Answer
    reasons: tuple[Reason, ...]


class Measurement(Value, frozen=True, kw_only=True):
    """A measurement that would settle an open question."""

    what: str
    command: str
    why: str
    cost: str = ""
    """How long it takes, as far as that is known; empty where a verdict was made before it was."""


class BreakEven(Value, frozen=True, kw_only=True):
    """The link at which the answer flips, the other quantity held (D5)."""

    baseline: Plan
    """Over which the plan's gain is at the line with that link."""
    bytes_per_s: float | None
    latency_s: float | None
    basis: str


class PlanVerdict(Value, frozen=True, kw_only=True):
    """One plan's answer: the weakest of its comparisons."""

    plan: Plan
    answer: Answer
    reasons: tuple[Reason, ...]
    comparisons: tuple[Comparison, ...] = ()
    break_even: BreakEven | None = None


class Verdict(Value, frozen=True, kw_only=True):
    """The answer for a model, a load and a machine."""

    load: Load
    answer: Answer
    plan: Plan | None
    """The plan to run: the split that is kept, else the best baseline; None if none fits."""
    headline: str
    reasons: tuple[Reason, ...]
    plans: tuple[PlanVerdict, ...]
    would_change: tuple[str, ...]
    measurements: tuple[Measurement, ...] = ()
