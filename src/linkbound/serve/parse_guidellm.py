"""guidellm's JSON report (P2).

Its `time_per_output_token_ms` counts the first token in; ours is its `inter_token_latency_ms`,
computed again from its timestamps.
"""

from collections.abc import Mapping
from typing import Any

from linkbound.serve.foreign import (
    ForeignRequest,
    ForeignRun,
    count,
    items,
    mapping,
    not_this,
    per_token_s,
    read_object,
    read_text,
    require_requests,
    seconds,
)

_GOOD, _BAD = ("successful",), ("errored", "incomplete")


def parse_guidellm(data: bytes, source: str) -> tuple[ForeignRun, ...]:
    """Every benchmark of a report. Raises InputError for another file."""
    body = read_object(read_text(data, source), source)
    benchmarks = [mapping(one) for one in items(body.get("benchmarks"))]
    if not benchmarks:
        raise not_this(source, "list `benchmarks`")
    return tuple(_run(one, number, source) for number, one in enumerate(benchmarks, start=1))


def _run(benchmark: Mapping[str, Any], number: int, source: str) -> ForeignRun:
    kinds = mapping(benchmark.get("requests"))
    requests = [
        _request(mapping(one), failed=kind in _BAD)
        for kind in (*_GOOD, *_BAD)
        for one in items(kinds.get(kind))
    ]
    strategy = mapping(mapping(benchmark.get("config")).get("strategy"))
    name = str(strategy.get("type_") or f"benchmark {number}")[:60]
    return ForeignRun(
        tool="guidellm",
        source=source,
        name=name,
        requests=require_requests(requests, f"{source}, benchmark {number},"),
    )


def _request(row: Mapping[str, Any], *, failed: bool) -> ForeignRequest:
    info = mapping(row.get("info")) or mapping(row.get("scheduler_info"))
    timings = mapping(info.get("timings"))
    start = seconds(timings.get("request_start"))
    first = seconds(timings.get("first_token_iteration"))
    last = seconds(timings.get("last_token_iteration"))
    tokens = count(row.get("output_tokens"))
    usage = mapping(row.get("output_metrics"))
    if tokens is None:
        tokens = count(usage.get("text_tokens"))
    return ForeignRequest(
        failed=failed,
        dispatch_lag_s=_span(seconds(timings.get("targeted_start")), start),
        ttft_from_send_s=_span(start, first),
        tpot_s=per_token_s(_span(first, last), tokens),
        e2e_from_send_s=_span(start, seconds(timings.get("request_end"))),
        prompt_tokens=count(row.get("prompt_tokens")),
        output_tokens=tokens,
        cached_tokens=count(row.get("cached_tokens")),
    )


def _span(begin: float | None, end: float | None) -> float | None:
    """From one timestamp to another; None where one is missing or they go backwards."""
    return None if begin is None or end is None else seconds(end - begin)
