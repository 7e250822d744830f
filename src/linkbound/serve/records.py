"""A served cell as a record: the summary, a row for each request, every chunk in a blob (E2)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from linkbound.evidence.types import (
    Derived,
    Failed,
    Finding,
    Measured,
    Outcome,
    Reason,
    Record,
    Samples,
    Skipped,
)
from linkbound.serve.latency import CACHED_SHARE_LIMIT, LoadSummary
from linkbound.serve.load_types import ClientLimit, Request
from linkbound.serve.outputs import Output
from linkbound.serve.path_types import PathVerdict
from linkbound.serve.path_watch import Seen

METHOD = "linkbound.serve.load"
METHOD_VERSION = 1
COLUMNS = (
    "index",
    "warm_up",
    "target",
    "scheduled_s",
    "sent_s",
    "connected_s",
    "headers_s",
    "first_text_s",
    "end_s",
    "chunks",
    "prompt_tokens",
    "output_tokens",
    "used_prompt_tokens",
    "used_output_tokens",
    "cached_tokens",
    "status",
    "error",
)


def request_rows(requests: Iterable[Request]) -> Samples:
    """One row a request, warm-up included and marked."""
    return Samples(columns=COLUMNS, rows=tuple(_row(request) for request in requests))


def _row(request: Request) -> tuple[float | int | str | None, ...]:
    first = next((chunk.at_s for chunk in request.chunks if chunk.has_token), None)
    return (
        request.index,
        int(request.warm_up),
        request.target,
        request.scheduled_s,
        request.sent_s,
        request.connected_s,
        request.headers_s,
        first,
        request.end_s,
        len(request.chunks),
        request.prompt_tokens,
        request.output_tokens,
        request.used_prompt_tokens,
        request.used_output_tokens,
        request.cached_tokens,
        request.status,
        None if request.error is None else f"{request.error.code}: {request.error.text}",
    )


def request_lines(requests: Iterable[Request]) -> bytes:
    """Every request with every chunk, one JSON object a line."""
    return b"".join(msgspec.json.encode(request) + b"\n" for request in requests)


def load_record(
    subject: Mapping[str, Any],
    outcome: Outcome,
    *,
    requests: Sequence[Request] = (),
    blobs: tuple[str, ...] = (),
    parents: tuple[str, ...] = (),
    machine: str | None = None,
    duration_s: float | None = None,
    started: str | None = None,
) -> Record:
    """One cell of load, whatever came of it."""
    return Record(
        kind="serve.load",
        subject=subject,
        outcome=outcome,
        method=METHOD,
        method_version=METHOD_VERSION,
        samples=request_rows(requests) if requests else None,
        blobs=blobs,
        parents=parents,
        machine=machine,
        duration_s=duration_s,
        started=started,
    )


def outcome_of(
    requests: Sequence[Request],
    summary: LoadSummary | None,
    refusal: Reason | None,
    log: str | None,
) -> Outcome:
    """Measured, or why the figures are none: nothing answered, the cache answered, the client."""
    if summary is None:
        first = next((one.error for one in requests if one.error is not None), None)
        code = "warm-up-failed" if first is None else first.code
        text = "" if first is None else first.text
        return Failed(reason=Reason(code=code, text=f"Every warm-up failed. {text}"), log=log)
    if summary.failed == summary.requests:
        counts = ", ".join(f"{count} {code}" for code, count in summary.failures.items())
        reason = Reason(code="all-failed", text=f"No request was answered: {counts}.")
        return Failed(reason=reason, log=log)
    if refusal is not None:
        return Failed(reason=refusal, log=log)
    if summary.cached_share is not None and summary.cached_share > CACHED_SHARE_LIMIT:
        text = (
            f"{summary.cached_share:.1%} of the prompt tokens were in the prefix cache "
            f"(limit {CACHED_SHARE_LIMIT:.0%}): prefill was not measured."
        )
        return Failed(reason=Reason(code="prefix-cache", text=text), log=log)
    return Measured(values=msgspec.to_builtins(summary))


def skipped_record(subject: Mapping[str, Any], reason: Reason, machine: str | None) -> Record:
    """A cell that was not run."""
    return load_record(subject, Skipped(reason=reason), machine=machine)


def client_record(limit: ClientLimit, machine: str | None) -> Record:
    """What the client can follow, measured before anything else."""
    return Record(
        kind="serve.client",
        outcome=Measured(values=msgspec.to_builtins(limit)),
        method="linkbound.serve.client_limit",
        machine=machine,
    )


def output_record(
    subject: Mapping[str, Any], output: Output | Reason, parents: tuple[str, ...]
) -> Record:
    """An arm's answer to the fixed prompt."""
    return Record(
        kind="serve.output",
        subject=subject,
        outcome=Failed(reason=output)
        if isinstance(output, Reason)
        else Measured(values=msgspec.to_builtins(output)),
        method="linkbound.serve.outputs",
        parents=parents,
    )


def trace_record(
    subject: Mapping[str, Any],
    verdict: PathVerdict,
    parents: tuple[str, ...],
    blobs: tuple[str, ...],
) -> Record:
    """What the witnesses say of a start's path."""
    return Record(
        kind="serve.trace",
        subject=subject,
        outcome=Derived(values={"verdict": msgspec.to_builtins(verdict)}),
        method="linkbound.serve.witnesses",
        parents=parents,
        blobs=blobs,
    )


def traffic_record(
    subject: Mapping[str, Any], seen: Seen, parents: tuple[str, ...], machine: str | None
) -> Record:
    """What passed the GPUs' ports during a cell, and what was to; why not, where nothing counts."""
    values = {
        "traffic": msgspec.to_builtins(seen.traffic),
        "check": msgspec.to_builtins(seen.check),
        "witness": msgspec.to_builtins(seen.witness),
        "verdict": {"answer": seen.verdict.answer.value, "why": seen.verdict.why},
    }
    return Record(
        kind="serve.traffic",
        subject=subject,
        outcome=Measured(values=values)
        if seen.traffic.moved
        else Skipped(reason=Reason(code="no-counters", text=seen.witness.why)),
        method="linkbound.links.live.meter",
        parents=parents,
        machine=machine,
        duration_s=seen.traffic.duration_s,
    )


def finding_record(
    subject: Mapping[str, Any], finding: Finding, parents: tuple[str, ...]
) -> Record:
    """A finding with the records that it rests on."""
    return Record(
        kind="serve.finding",
        subject={**subject, "code": finding.code},
        outcome=Derived(values={"finding": msgspec.to_builtins(finding)}),
        method="linkbound.serve",
        parents=parents,
    )
