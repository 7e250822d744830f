"""What is searched for, and what was found (D1, D4)."""

from collections.abc import Mapping
from enum import StrEnum

from linkbound.model.types import Load
from linkbound.predict.types import Estimate, Forecast, Plan
from linkbound.serve.load_types import Slo
from linkbound.values import Value


class Objective(StrEnum):
    """What the best plan is best at."""

    LATENCY = "latency"
    """Until all sequences of the load, given at once, have their last token."""
    THROUGHPUT = "throughput"
    """Output tokens a second, with as many sequences at once as the batch limits let run."""
    CAPACITY = "capacity"
    """Sequences of the load's length in memory at once."""
    GOODPUT = "goodput"
    """Requests a second of which each keeps the demands, as many at once as the limits let run."""


class Scores(Value, frozen=True, kw_only=True):
    """What a choice reaches, as the objectives count."""

    latency_s: float
    tokens_per_s: float
    """With every replica at its batch limit."""
    held: float
    """Sequences in memory at once, all replicas together; infinite where nothing bounds them."""
    goodput_per_s: float
    """0 where a request does not keep a demand, or none was made."""


class Choice(Value, frozen=True, kw_only=True):
    """A plan with its batch limit, and what it is predicted to reach."""

    plan: Plan
    limit: int
    """Sequences at once in a replica: `--max-num-seqs`."""
    waves: int
    """How often a replica is filled before all sequences of the load are done."""
    latency_s: Estimate
    ttft_s: Estimate
    """To the last sequence's first token, from when all are given at once; waiting included."""
    tpot_s: Estimate | None
    tokens_per_s: Estimate
    held: int | None
    """None where nothing bounds it."""
    full_latency_s: Estimate
    full_ttft_s: Estimate
    full_tpot_s: Estimate | None
    """Of requests with every replica at its limit and nothing waiting: what the demands meet."""
    goodput_per_s: Estimate | None
    """None where no demand was made; 0 where one is not kept. Its low end is 0 where the slow end
    of a time breaks a demand, its high end above 0 where the quick ends keep them all."""
    forecast: Forecast
    """Of the sequences of one wave, in all replicas."""


class Found(Value, frozen=True, kw_only=True):
    """The answer of a search."""

    load: Load
    objective: Objective
    slo: Slo | None
    best: Choice | None
    """None where no plan holds the model, or none has a price."""
    reason: str
    """Why it is the best, in one sentence; without one, why there is none."""
    front: tuple[Choice, ...]
    """Choices that no other one beats in everything, the lowest latency first."""
    candidates: int
    """Splits, copies and batch limits that were looked at."""
    ruled_out: int
    """Those whose computing alone is worse than a choice that was found."""
    exhaustive: bool
    """Every placement was considered; else those that fill the machine from the inside out."""
    unpriced: tuple[str, ...] = ()
    """What has no price, and why."""
    left_out: Mapping[str, str] = {}
    """GPU label to why no plan uses it."""
