"""Imbalance: the rank with most tokens, or the slowest stage, is what the others wait for (S4, D5).

Experts spread over ranks: every token picks top_k of E experts, so that a rank's share is a matter
of chance. Its expected maximum over g ranks is mean + deviation x the expected maximum of g normal
deviates (Blom's approximation, within 5 % from two on) x sqrt(g / (g - 1)), as shares add up to
one. Routers of real models favour experts: the interval reaches from even shares to the fullest
rank's being `SKEW` times as full.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import msgspec

from linkbound.model.derive import experts_touched
from linkbound.predict.compute import device_parts
from linkbound.predict.cost import Cost
from linkbound.predict.pace import Pace
from linkbound.predict.types import Estimate, TermKind
from linkbound.predict.work import ExpertWork, RankWork, StepWork, narrow_factor

# No run here shows it. Expert-parallel load balancers exist because single ranks get half as much
# again as the mean and more.
SKEW = 1.5
BASIS = "experts picked by chance; up to half as much again where a router favours some"
_NOTHING = Estimate(value=0.0, low=0.0, high=0.0)


@lru_cache(maxsize=64)
def most_of(ranks: int) -> float:
    """How many deviations the fullest of `ranks` shares lies above their mean."""
    highest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return highest * math.sqrt(ranks / (ranks - 1))


def token_factor(one: ExpertWork, ranks: int, tokens: int) -> float:
    """Routed tokens of the fullest rank over the mean; picks of a token are all different."""
    others = (one.experts - one.top_k) / max(1, one.experts - 1)
    deviation = math.sqrt((ranks - 1) * others / (tokens * one.top_k))
    return min(1 + most_of(ranks) * deviation, float(ranks))


def weight_factor(one: ExpertWork, ranks: int, tokens: int) -> float:
    """Distinct experts that the fullest rank reads over the mean."""
    share = experts_touched(one.experts, one.top_k, tokens) / one.experts
    spread = (1 - share) * (ranks - 1) / (share * max(1, one.experts - 1))
    return min(1 + most_of(ranks) * math.sqrt(spread), 1 / share, float(ranks))


def expert_imbalance(rank: RankWork, work: StepWork, pace: Pace, ranks: int) -> Estimate:
    """Seconds that the fullest rank of experts takes beyond the mean rank, which `work` is of.

    `ranks`: over how many the experts of a layer are spread, each whole on one.
    """
    if ranks == 1 or not rank.experts:
        return _NOTHING
    even = _compute_s(work, pace)
    value = _compute_s(_fullest(work, rank.experts, ranks, 1.0), pace) - even
    high = _compute_s(_fullest(work, rank.experts, ranks, SKEW), pace) - even
    return Estimate(value=value, low=0.0, high=max(value, high))


def _compute_s(work: StepWork, pace: Pace) -> float:
    stream_s, matrix_s, *_ = device_parts(work, pace)
    return stream_s + matrix_s


def _fullest(work: StepWork, spread: Sequence[ExpertWork], ranks: int, skew: float) -> StepWork:
    """The work of the fullest rank, `skew` times as full as chance makes it."""
    more_bytes = more_flops = 0.0
    for one in spread:
        tokens = work.tokens * one.replicas
        share = experts_touched(one.experts, one.top_k, tokens) / one.experts
        read = min(weight_factor(one, ranks, tokens) * skew, 1 / share, float(ranks))
        routed = min(token_factor(one, ranks, tokens) * skew, float(ranks))
        more_bytes += one.layers * one.bytes_all * share * (read - 1)
        flops = 2 * one.layers * one.active_parameters * tokens * narrow_factor(one, 1)
        more_flops += flops * (routed - 1)
    return msgspec.structs.replace(
        work,
        stream_bytes=work.stream_bytes + more_bytes,
        matrix_flops=work.matrix_flops + more_flops,
    )


def pace_cost(stages: Sequence[tuple[Cost, int]]) -> Cost:
    """One step on the stage that takes longest, while the others work: their mean, and the rest.

    `stages` are costs, each with the number of stages that have it.
    """
    slowest = max((cost for cost, _ in stages), key=lambda cost: cost.seconds)
    if len(stages) == 1:
        return slowest
    mean, count = Cost(), sum(number for _, number in stages)
    for cost, number in stages:
        mean.add_cost(cost, number / count)
    value = slowest.seconds - mean.seconds
    low, high = sum(slowest.low) - sum(mean.low), sum(slowest.high) - sum(mean.high)
    mean.add(TermKind.IMBALANCE, value, min(low, value), max(high, value))
    return mean
