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


def rank(option: Option, objective: Objective) -> tuple[float, int, float, str]:
    """Lower is better: the score, then fewer GPUs, then latency, then the name."""
    scores, candidate = option.scores, option.candidate
    value = {
        Objective.LATENCY: scores.latency_s,
        Objective.THROUGHPUT: -scores.tokens_per_s,
        Objective.CAPACITY: -scores.held,
        Objective.GOODPUT: -scores.goodput_per_s,
    }[objective]
    name = f"{candidate.unit.name} {candidate.arm} {candidate.limit}"
    return value, candidate.gpus, scores.latency_s, name
