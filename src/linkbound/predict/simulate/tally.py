"""What an engine adds up while it runs: busy time, cache, and the gaps between tokens."""

import math
from collections.abc import Iterable

from linkbound.predict.simulate.steptable import run_seconds
from linkbound.serve.latency import Percentile, Spread

LEAST_SAMPLES = {0.5: 2, 0.9: 10, 0.99: 100}
"""From how many samples a simulated load has a percentile: one lies beyond. Other draws of the same
load say how much it rests on this one."""
# Gaps are counted in buckets of this relative width: half a percent.
BUCKET = 0.005
# Steps of a run grow with the cache; so many pieces stand for their gaps.
PIECES = 4


class Tally:
    """Sums over the steps of one engine."""

    __slots__ = ("busy_s", "gaps", "peak_tokens", "steps", "token_s")

    def __init__(self) -> None:
        self.steps = 0
        self.busy_s = 0.0
        self.token_s = 0.0
        """Cached tokens times the seconds for which they were held."""
        self.peak_tokens = 0
        self.gaps: dict[int, int] = {}
        """Tokens by the bucket of the gap before them."""

    def run(self, steps: int, first_s: float, last_s: float, size: int, held: int) -> None:
        """`steps` steps in a row, in which `size` sequences decode; `held` tokens in the first."""
        growth_s = (last_s - first_s) / (steps - 1) if steps > 1 else 0.0
        seconds = run_seconds(first_s, growth_s, steps)
        self.steps += steps
        self.busy_s += seconds
        self.token_s += seconds * (held + size * (steps - 1) / 2)
        self.peak_tokens = max(self.peak_tokens, held + size * (steps - 1))
        if not size:
            return
        if last_s - first_s < BUCKET * first_s:
            self.gap((first_s + last_s) / 2, size * steps)
            return
        done = 0
        for piece in range(1, PIECES + 1):
            upto = steps * piece // PIECES
            if upto > done:
                self.gap(first_s + growth_s * (done + upto - 1) / 2, size * (upto - done))
            done = upto

    def gap(self, seconds: float, tokens: int) -> None:
        """So many tokens came `seconds` after the one before them."""
        bucket = math.floor(math.log(seconds) / BUCKET)
        self.gaps[bucket] = self.gaps.get(bucket, 0) + tokens


def gap_spread(tallies: Iterable[Tally]) -> Spread:
    """Percentiles of the gaps of all engines; no intervals: gaps of one step are one event."""
    counts: dict[int, int] = {}
    for tally in tallies:
        for bucket, tokens in tally.gaps.items():
            counts[bucket] = counts.get(bucket, 0) + tokens
    n = sum(counts.values())
    ordered = sorted(counts.items())
    return Spread(
        n=n,
        percentiles=tuple(
            Percentile(share=share, value=_at(ordered, share * n), low=None, high=None)
            for share, least in LEAST_SAMPLES.items()
            if n >= least
        ),
    )


def _at(ordered: list[tuple[int, int]], rank: float) -> float:
    """The middle of the bucket that holds the gap of this rank."""
    seen = 0
    for bucket, tokens in ordered:
        seen += tokens
        if seen >= rank:
            return math.exp((bucket + 0.5) * BUCKET)
    raise ValueError(f"no gap of rank {rank}")
