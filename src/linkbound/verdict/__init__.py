"""Keep, reject or undecided: a split against one GPU and against replicas, and what flips it."""

from linkbound.verdict.break_even import break_even, fitted_link
from linkbound.verdict.compare import MIN_GAIN, answer
from linkbound.verdict.decide import Case, Unpriced, decide
from linkbound.verdict.gain import time_gain
from linkbound.verdict.link_gain import link_gain
from linkbound.verdict.types import (
    Aim,
    Answer,
    BreakEven,
    Comparison,
    Measurement,
    PlanVerdict,
    Reason,
    Verdict,
)

__all__ = [
    "MIN_GAIN",
    "Aim",
    "Answer",
    "BreakEven",
    "Case",
    "Comparison",
    "Measurement",
    "PlanVerdict",
    "Reason",
    "Unpriced",
    "Verdict",
    "answer",
    "break_even",
    "decide",
    "fitted_link",
    "link_gain",
    "time_gain",
]
