"""A placed plan with its batch limit, while it is compared: no intervals yet."""

from collections.abc import Callable
from typing import NamedTuple

from linkbound.search.candidates import Candidate
from linkbound.search.placer import Placed
from linkbound.search.types import Objective, Scores


class Option(NamedTuple):
    """A candidate with what one of its placements reaches."""

    candidate: Candidate
    scores: Scores
    place: Callable[[], Placed]
    """The layouts of its copies."""


def cost(scores: Scores, objective: Objective) -> float:
    """The score that the objective counts, lower is better."""
    return {
        Objective.LATENCY: scores.latency_s,
        Objective.THROUGHPUT: -scores.tokens_per_s,
        Objective.CAPACITY: -scores.held,
        Objective.GOODPUT: -scores.goodput_per_s,
    }[objective]


def rank(option: Option, objective: Objective) -> tuple[float, int, float, str]:
    """Lower is better: the score, then fewer GPUs, then latency, then the name."""
    scores, candidate = option.scores, option.candidate
    name = f"{candidate.unit.name} {candidate.arm} {candidate.limit}"
    return cost(scores, objective), candidate.gpus, scores.latency_s, name
