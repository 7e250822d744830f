"""From the lives of simulated requests to figures, by the definitions of measured loads (P2)."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from linkbound.predict.simulate.fleet import AnyEngine, Fleet
from linkbound.predict.simulate.sequence import Sequence as Request
from linkbound.predict.simulate.tally import LEAST_SAMPLES, gap_spread
from linkbound.predict.simulate.types import Outcome
from linkbound.serve.latency import Spread, spread
from linkbound.serve.load_types import Slo

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_TIMES: Mapping[str, Callable[[Outcome], Spread]] = {
    "ttft": lambda one: one.ttft_from_schedule_s,
    "tpot": lambda one: one.tpot_s,
    "token_gap": lambda one: one.token_gap_s,
    "e2e": lambda one: one.e2e_s,
}
RATES: Mapping[str, Callable[[Outcome], float | None]] = {
    "output_tokens_per_s": lambda one: one.output_tokens_per_s,
    "requests_per_s": lambda one: one.requests_per_s,
    "goodput": lambda one: one.goodput,
}


def ttft_s(one: Request) -> float:
    """From when it was due to its first token."""
    assert one.first_s is not None
    return one.first_s - one.due_s


def tpot_s(one: Request) -> float | None:
    """(last token - first) / (tokens - 1); None of one token."""
    assert one.first_s is not None
    assert one.end_s is not None
    return (one.end_s - one.first_s) / (one.output - 1) if one.output > 1 else None


def e2e_s(one: Request) -> float:
    """From when it was due to its last token."""
    assert one.end_s is not None
    return one.end_s - one.due_s


def _spread(samples: Iterable[float]) -> Spread:
    return spread(list(samples), LEAST_SAMPLES)


def summarise(fleet: Fleet, requests: Sequence[Request], slo: Slo | None) -> Outcome:
    """The summary of a load that was played to its end."""
    duration_s = max(one.end_s or 0.0 for one in requests)
    tokens = sum(one.output for one in requests)
    engines = fleet.engines
    return Outcome(
        requests=len(requests),
        duration_s=duration_s,
        output_tokens=tokens,
        requests_per_s=len(requests) / duration_s,
        output_tokens_per_s=tokens / duration_s,
        ttft_from_schedule_s=_spread(ttft_s(one) for one in requests),
        tpot_s=_spread(value for one in requests if (value := tpot_s(one)) is not None),
        token_gap_s=gap_spread(engine.tally for engine in engines),
        e2e_s=_spread(e2e_s(one) for one in requests),
        goodput=None if slo is None else sum(is_good(one, slo) for one in requests) / len(requests),
        preemptions=sum(engine.batching.preemptions for engine in engines),
        cache_mean=_mean([_held(engine, engine.tally.token_s / duration_s) for engine in engines]),
        cache_peak=max(
            (
                held
                for engine in engines
                if (held := _held(engine, engine.tally.peak_tokens)) is not None
            ),
            default=None,
        ),
        busy=sum(engine.tally.busy_s for engine in engines) / duration_s / len(engines),
        steps=sum(engine.tally.steps for engine in engines),
    )


def is_good(one: Request, slo: Slo) -> bool:
    """Whether a request kept every demand."""
    demands = ((slo.ttft_s, ttft_s), (slo.tpot_s, tpot_s), (slo.e2e_s, e2e_s))
    return all(
        limit is None or ((value := measure(one)) is not None and value <= limit)
        for limit, measure in demands
    )


def figures_of(outcome: Outcome) -> dict[str, float]:
    """Every figure by its name: `ttft_p50_s`, `goodput`, ...; without those it does not have."""
    found = {
        f"{time}_{name}_s": value
        for time, of in _TIMES.items()
        for name, share in _SHARES.items()
        if (value := of(outcome).at(share)) is not None
    }
    found |= {name: value for name, of in RATES.items() if (value := of(outcome)) is not None}
    return found


def order_interval(outcome: Outcome, figure: str) -> tuple[float, float] | None:
    """Two samples that hold the true quantile at 95 %; None for a rate, or of too few."""
    for time, of in _TIMES.items():
        for name, share in _SHARES.items():
            if figure == f"{time}_{name}_s":
                found = next(one for one in of(outcome).percentiles if one.share == share)
                if found.low is not None and found.high is not None:
                    return found.low, found.high
    return None


def samples_of(outcome: Outcome, figure: str) -> int:
    """How many samples a figure rests on."""
    return next(
        (of(outcome).n for time, of in _TIMES.items() if figure.startswith(time)),
        outcome.requests,
    )


def _held(engine: AnyEngine, tokens: float) -> float | None:
    most = engine.batching.cache.tokens
    return None if most is None else tokens / most


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
