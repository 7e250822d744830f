"""From calls of one replica to what all of them reach: latency, throughput, goodput (D1).

Sequences are dealt evenly to the replicas. A replica runs as many at once as its batch limit says;
what is beyond waits for the next wave. The slowest replica sets the pace.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from linkbound.model.types import Load
from linkbound.predict.types import Estimate
from linkbound.search.types import Scores
from linkbound.serve.load_types import Slo

CallS = Callable[[int, int], float]
"""Seconds of a call on the slowest replica, for sequences at once and output tokens of each."""


def waves(load: Load, replicas: int, limit: int) -> tuple[int, int]:
    """How often a replica of the load is filled to its limit, and what is left for a last wave."""
    return divmod(-(-load.concurrency // replicas), limit)


def latency_s(load: Load, replicas: int, limit: int, call_s: CallS) -> float:
    """Until all sequences of the load, given at once, are done."""
    full, rest = waves(load, replicas, limit)
    whole = full * call_s(limit, load.output_tokens) if full else 0.0
    return whole + (call_s(rest, load.output_tokens) if rest else 0.0)


def ttft_s(load: Load, replicas: int, limit: int, call_s: CallS) -> float:
    """Until the last sequence of the load has its first token, waiting included."""
    full, rest = waves(load, replicas, limit)
    before = full if rest else full - 1
    waited = before * call_s(limit, load.output_tokens) if before else 0.0
    return waited + call_s(rest or limit, 1)


def score(
    load: Load, slo: Slo | None, replicas: int, limit: int, held: float, call_s: CallS
) -> Scores:
    """What replicas with this limit reach. `held` are sequences in memory, of all of them.

    Where `call_s` is a bound, so are the scores: faster links shorten a whole call by no less than
    its prefill, so that the time of a token has a bound too.
    """
    call = call_s(limit, load.output_tokens)
    rate = replicas * limit / call if call else math.inf
    return Scores(
        latency_s=latency_s(load, replicas, limit, call_s),
        tokens_per_s=rate * load.output_tokens,
        held=held,
        goodput_per_s=rate if slo is not None and keeps(load, slo, limit, call_s) else 0.0,
    )


def keeps(load: Load, slo: Slo, limit: int, call_s: CallS) -> bool:
    """Whether the requests of a full replica keep every demand."""
    return all(found <= asked for found, asked in _demands(load, slo, limit, call_s))


def within(demands: Iterable[tuple[Estimate | None, float | None]], rate: Estimate) -> Estimate:
    """Requests a second of full replicas that keep every demand (predicted time, what it may be).

    None in a pair is a time that is not there, or no demand. The rate counts where times keep all
    demands: at the slow end of their intervals for the low one, at the quick end for the high one.
    """
    asked = [(found, most) for found, most in demands if found is not None and most is not None]
    return Estimate(
        value=rate.value if all(found.value <= most for found, most in asked) else 0.0,
        low=rate.low if all(found.high <= most for found, most in asked) else 0.0,
        high=rate.high if all(found.low <= most for found, most in asked) else 0.0,
    )


def _demands(load: Load, slo: Slo, limit: int, call_s: CallS) -> Iterator[tuple[float, float]]:
    """What a full replica's requests take, and what they may."""
    call, first = call_s(limit, load.output_tokens), call_s(limit, 1)
    if slo.e2e_s is not None:
        yield call, slo.e2e_s
    if slo.ttft_s is not None:
        yield first, slo.ttft_s
    if slo.tpot_s is not None and load.output_tokens > 1:
        yield (call - first) / (load.output_tokens - 1), slo.tpot_s
