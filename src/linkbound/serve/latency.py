"""From the lives of requests to TTFT, TPOT, gaps and percentiles, each by one definition (P2).

docs/load.md sets every definition beside those of other tools. None: no data, never zero.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from linkbound.evidence.stats import quantile, quantile_interval
from linkbound.serve.load_types import Chunk, Request, Slo
from linkbound.values import Value

LEAST_SAMPLES = {0.5: 2, 0.9: 10, 0.99: 1000}
"""From how many samples a measured load has a percentile: one lies beyond p50 and p90. Beyond p99
lie ten: a load has few bad moments, and of fewer requests one of them is the figure."""
# Beyond it a schedule was not kept: the client, not the server, decided when requests went out.
LATE_DISPATCH_S = 0.05
# Hits of the prefix cache shorten the prefill: a cell with more of them measures something else.
CACHED_SHARE_LIMIT = 0.01


class Percentile(Value, frozen=True, kw_only=True):
    """A quantile of a sample, with the order statistics that hold the true one at 95 %."""

    share: float
    value: float
    low: float | None
    """None: too few samples for an interval."""
    high: float | None


class Spread(Value, frozen=True, kw_only=True):
    """Percentiles of one time in seconds over n requests or gaps."""

    n: int
    percentiles: tuple[Percentile, ...]
    """p50, p90, p99, as far as so many samples have them."""

    def at(self, share: float) -> float | None:
        """The value at this share; None where so few samples do not have it."""
        return next((one.value for one in self.percentiles if one.share == share), None)


class LoadSummary(Value, frozen=True, kw_only=True):
    """What a cell of load came to; a time without any sample has n = 0 and no percentile."""

    requests: int
    failed: int
    failures: Mapping[str, int]
    """How many failed, by code."""
    duration_s: float
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    chunks_per_s: float
    ttft_from_schedule_s: Spread
    ttft_from_send_s: Spread
    tpot_s: Spread
    chunk_gap_s: Spread
    e2e_s: Spread
    dispatch_lag_s: Spread
    goodput: float | None
    """Share of all scheduled requests that kept the SLO; None where none was stated."""
    cached_share: float | None
    """Prompt tokens that the server says it had in its cache; None where it does not say."""
    wrong_lengths: int
    """Answers with another number of tokens than asked, by the server's count."""


def ttft_from_schedule_s(request: Request) -> float | None:
    """From when it was due to the first text: what a user waits."""
    first = _first_token_s(request)
    return None if first is None else first - request.scheduled_s


def ttft_from_send_s(request: Request) -> float | None:
    """From when it was sent, connecting included, to the first text."""
    first = _first_token_s(request)
    return None if first is None or request.sent_s is None else first - request.sent_s


def tpot_s(request: Request) -> float | None:
    """(last event - first text) / (tokens by usage - those of the first text).

    Where the engine gives no ids, the first text counts as one token.
    """
    first = _first_token(request)
    if first is None or request.used_output_tokens is None:
        return None
    later = request.used_output_tokens - (first.tokens or 1)
    return (request.chunks[-1].at_s - first.at_s) / later if later > 0 else None


def e2e_s(request: Request) -> float | None:
    """From when it was due to the end of the stream."""
    return None if request.end_s is None else request.end_s - request.scheduled_s


def chunk_gaps_s(request: Request) -> tuple[float, ...]:
    """Times between events with text; a token is one only where the engine sends it alone."""
    times = [chunk.at_s for chunk in request.chunks if chunk.has_token]
    return tuple(later - earlier for earlier, later in pairwise(times))


def dispatch_lag_s(request: Request) -> float | None:
    """From when it was due to when this client sent it."""
    return None if request.sent_s is None else request.sent_s - request.scheduled_s


def is_good(request: Request, slo: Slo) -> bool:
    """Whether a request kept every demand; a failed one, or one without the figure, did not."""
    demands = (
        (slo.ttft_s, ttft_from_schedule_s),
        (slo.tpot_s, tpot_s),
        (slo.e2e_s, e2e_s),
    )
    return request.ok and all(
        limit is None or ((value := measure(request)) is not None and value <= limit)
        for limit, measure in demands
    )


def summarise(requests: Iterable[Request], slo: Slo | None = None) -> LoadSummary:
    """The summary of a cell, its warm-up left out. Raises ValueError where nothing is left."""
    counted = [request for request in requests if not request.warm_up]
    if not counted:
        raise ValueError("no request was counted")
    good = [request for request in counted if request.ok]
    failures = Counter(request.error.code for request in counted if request.error is not None)
    duration_s = _duration_s(counted)
    tokens = sum(_tokens(request) for request in good)
    return LoadSummary(
        requests=len(counted),
        failed=len(counted) - len(good),
        failures=dict(sorted(failures.items())),
        duration_s=duration_s,
        output_tokens=tokens,
        requests_per_s=len(good) / duration_s,
        output_tokens_per_s=tokens / duration_s,
        chunks_per_s=sum(len(request.chunks) for request in counted) / duration_s,
        ttft_from_schedule_s=_over(good, ttft_from_schedule_s),
        ttft_from_send_s=_over(good, ttft_from_send_s),
        tpot_s=_over(good, tpot_s),
        chunk_gap_s=spread([gap for request in good for gap in chunk_gaps_s(request)]),
        e2e_s=_over(good, e2e_s),
        dispatch_lag_s=_over(counted, dispatch_lag_s),
        goodput=None
        if slo is None
        else sum(is_good(request, slo) for request in counted) / len(counted),
        cached_share=_cached_share(good),
        wrong_lengths=sum(
            request.used_output_tokens not in (None, request.output_tokens) for request in good
        ),
    )


def spread(samples: Sequence[float], least: Mapping[float, int] = LEAST_SAMPLES) -> Spread:
    """The percentiles of these shares, each only of as many samples as it takes."""
    # Sorted once: every statistic below needs the order.
    samples = sorted(samples)
    return Spread(
        n=len(samples),
        percentiles=tuple(
            _percentile(samples, share) for share, n in least.items() if len(samples) >= n
        ),
    )


def _percentile(samples: Sequence[float], share: float) -> Percentile:
    value = quantile(samples, share)
    assert value is not None
    interval = quantile_interval(samples, share)
    return Percentile(
        share=share,
        value=value,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
    )


def _over(requests: Iterable[Request], measure: Callable[[Request], float | None]) -> Spread:
    return spread([value for one in requests if (value := measure(one)) is not None])


def _first_token(request: Request) -> Chunk | None:
    return next((chunk for chunk in request.chunks if chunk.has_token), None)


def _first_token_s(request: Request) -> float | None:
    first = _first_token(request)
    return None if first is None else first.at_s


def _tokens(request: Request) -> int:
    """By the server's own count; without one, a chunk stands for a token."""
    if request.used_output_tokens is not None:
        return request.used_output_tokens
    return sum(chunk.has_token for chunk in request.chunks)


def _duration_s(requests: Sequence[Request]) -> float:
    """From the start of the schedule to the last end; never zero, so that rates are numbers."""
    return max(max(one.end_s or 0.0 for one in requests), 1e-9)


def _cached_share(requests: Sequence[Request]) -> float | None:
    said = [one for one in requests if one.cached_tokens is not None]
    prompts = sum(one.used_prompt_tokens or one.prompt_tokens for one in said)
    return sum(one.cached_tokens or 0 for one in said) / prompts if prompts else None
