"""aiperf's per-request records, `profile_export.jsonl` (P2).

Its `inter_token_latency` is one mean a request; the raw gaps are its `inter_chunk_latency`.
"""

from collections.abc import Mapping
from typing import Any

from linkbound.serve.foreign import (
    ForeignRequest,
    ForeignRun,
    count,
    mapping,
    not_this,
    per_token_s,
    read_object,
    read_text,
    require_requests,
    seconds,
    times,
)

_SCALE = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def parse_aiperf(data: bytes, source: str) -> ForeignRun:
    """The run in a file of JSON lines, its warm-up left out. Raises InputError."""
    rows = []
    for number, line in enumerate(read_text(data, source).splitlines(), start=1):
        if line.strip():
            row = read_object(line, f"{source}, line {number},")
            if "metadata" not in row:
                raise not_this(f"{source}, line {number},", "`metadata`")
            rows.append(row)
    counted = (row for row in rows if mapping(row["metadata"]).get("benchmark_phase") != "warmup")
    return ForeignRun(
        tool="aiperf",
        source=source,
        name="profiling",
        requests=require_requests((_request(row) for row in counted), source),
    )


def _request(row: Mapping[str, Any]) -> ForeignRequest:
    metadata, metrics = mapping(row.get("metadata")), mapping(row.get("metrics"))
    ttft_s = _time(metrics, "time_to_first_token")
    e2e_s = _time(metrics, "request_latency")
    tokens = count(mapping(metrics.get("output_sequence_length")).get("value"))
    due = seconds(metadata.get("credit_issued_ns"), 1.0)
    sent = seconds(metadata.get("request_start_ns"), 1.0)
    span_s = None if ttft_s is None or e2e_s is None else seconds(e2e_s - ttft_s)
    return ForeignRequest(
        failed=bool(row.get("error")) or ttft_s is None,
        # Its credit is when the request was due: both clocks are in nanoseconds of the epoch.
        dispatch_lag_s=None if due is None or sent is None else seconds(sent - due, 1e-9),
        ttft_from_send_s=ttft_s,
        tpot_s=per_token_s(span_s, tokens),
        e2e_from_send_s=e2e_s,
        chunk_gaps_s=_gaps(mapping(metrics.get("inter_chunk_latency"))),
        prompt_tokens=count(mapping(metrics.get("input_sequence_length")).get("value")),
        output_tokens=tokens,
    )


def _gaps(metric: Mapping[str, Any]) -> tuple[float, ...]:
    scale = _SCALE.get(str(metric.get("unit")))
    return () if scale is None else times(metric.get("value"), scale)


def _time(metrics: Mapping[str, Any], name: str) -> float | None:
    """A metric in seconds; None where it is missing or its unit is no time."""
    metric = mapping(metrics.get(name))
    scale = _SCALE.get(str(metric.get("unit")))
    return None if scale is None else seconds(metric.get("value"), scale)
