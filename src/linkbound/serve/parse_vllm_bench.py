"""Results of `vllm bench serve --save-result --save-detailed` (P2).

Its TTFT starts at the send. `queue_times`, where there, is the wait for a free place in its client.
"""

from typing import Any

from linkbound.serve.foreign import (
    ForeignRequest,
    ForeignRun,
    count,
    items,
    not_this,
    per_token_s,
    read_object,
    read_text,
    require_requests,
    seconds,
    times,
)


def parse_vllm_bench(data: bytes, source: str) -> ForeignRun:
    """The run in a result file. Raises InputError for another file, or one without details."""
    body = read_object(read_text(data, source), source)
    if not items(body.get("ttfts")):
        raise not_this(source, "list `ttfts`")
    requests = (_request(body, index) for index in range(len(body["ttfts"])))
    return ForeignRun(
        tool="vllm bench serve",
        source=source,
        name=_name(body),
        requests=require_requests(requests, source),
    )


def _name(body: dict[str, Any]) -> str:
    rate, most = body.get("request_rate"), body.get("max_concurrency")
    loop = f"rate {str(rate)[:20]}"
    return loop if most is None else f"{loop}, at most {str(most)[:20]} at once"


def _request(body: dict[str, Any], index: int) -> ForeignRequest:
    def at(key: str) -> object:
        values = items(body.get(key))
        return values[index] if index < len(values) else None

    ttft_s = seconds(at("ttfts"))
    gaps = times(at("itls"))
    tokens = count(at("output_lens"))
    # A failed request has zeros everywhere, which must not look like a fast one.
    if at("errors") or not tokens or not ttft_s:
        return ForeignRequest(
            failed=True,
            dispatch_lag_s=seconds(at("queue_times")),
            prompt_tokens=count(at("input_lens")),
        )
    # Chats begin with an event that only names a role; its gap is no token's.
    span_s = sum(gaps) if gaps else None
    return ForeignRequest(
        failed=False,
        dispatch_lag_s=seconds(at("queue_times")),
        ttft_from_send_s=ttft_s,
        tpot_s=per_token_s(span_s, tokens),
        e2e_from_send_s=None if span_s is None else ttft_s + span_s,
        chunk_gaps_s=gaps,
        prompt_tokens=count(at("input_lens")),
        output_tokens=tokens,
    )
