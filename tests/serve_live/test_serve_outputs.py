"""Answers of arms compared, runs compared, and result files of other tools read."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from linkbound.errors import InputError
from linkbound.evidence.types import Failed, Measured, Reason, Severity
from linkbound.serve.compare_runs import differences_of, rows_of, slower_findings
from linkbound.serve.import_runs import foreign_record, parse_foreign
from linkbound.serve.latency import spread, summarise
from linkbound.serve.load_types import Chunk, Request
from linkbound.serve.outputs import compare_outputs, parse_output
from linkbound.serve.records import load_record


def completion(*tokens, text="x"):
    """Lists as vLLM gives them: (token, logprob, alternatives)."""
    names, values, tops = zip(*tokens, strict=True)
    logprobs = {"tokens": names, "token_logprobs": values, "top_logprobs": tops}
    return json.dumps({"choices": [{"text": text, "logprobs": logprobs}]}).encode()


def test_same_tokens_are_no_finding():
    one = parse_output(completion(("a", -0.1, {"a": -0.1})), "p2p")
    other = parse_output(completion(("a", -0.2, {"a": -0.2})), "staged")
    assert compare_outputs(one, other) is None


def test_near_tie_is_rounding():
    one = parse_output(completion(("a", -1.0, {"a": -1.0, "b": -1.1})), "p2p")
    other = parse_output(completion(("b", -1.0, {"b": -1.0, "a": -1.25})), "staged")
    found = compare_outputs(one, other)
    assert (found.code, found.severity) == ("outputs-round-differently", Severity.INFO)
    assert "0.250 nats" in found.seen


def test_far_token_is_corruption():
    one = parse_output(completion(("a", -0.1, {"a": -0.1, "b": -5.0})), "p2p")
    other = parse_output(completion(("b", -0.1, {"b": -0.1, "a": -5.5})), "staged")
    found = compare_outputs(one, other)
    assert (found.code, found.severity) == ("outputs-differ", Severity.ERROR)
    assert "part at token 0" in found.seen
    unlisted = parse_output(completion(("c", -0.1, {"c": -0.1})), "staged")
    assert "more than their lists show" in compare_outputs(one, unlisted).seen


def test_llama_cpp_form_tells_tokens_by_id():
    entry = {"id": 7, "token": "", "logprob": -1.0, "top_logprobs": []}
    body = {"choices": [{"text": "x", "logprobs": {"content": [entry]}}]}
    (token,) = parse_output(json.dumps(body).encode(), "p2p").tokens
    assert (token.token, token.logprob) == ("#7", -1.0)


def test_text_alone_cannot_tell_rounding():
    one, other = (
        parse_output(json.dumps({"choices": [{"text": text}]}).encode(), name)
        for name, text in (("p2p", "abcd"), ("staged", "abXd"))
    )
    found = compare_outputs(one, other)
    assert found.severity is Severity.WARNING
    assert "from character 2 on" in found.seen
    chat = json.dumps({"choices": [{"message": {"content": "abcd"}}]}).encode()
    assert compare_outputs(one, parse_output(chat, "chat")) is None


@given(st.one_of(st.binary(max_size=100), st.text(max_size=100).map(str.encode)))
def test_any_answer_is_an_output_or_our_error(data):
    with contextlib.suppress(InputError):
        parse_output(data, "x")


WORDS = (
    *("choices", "logprobs", "text", "content", "tokens", "top_logprobs", "token"),
    *("benchmarks", "ttfts", "itls", "requests", "successful", "info", "timings"),
    *("metadata", "metrics"),
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(TREES)
def test_any_tree_is_read_or_our_error(tree):
    data = json.dumps(tree).encode()
    for reader in (parse_output, parse_foreign):
        with contextlib.suppress(InputError):
            reader(data, "x")


def measured(contender, repeat, seconds, cell="4/s poisson", gpus=None):
    chunks = tuple(
        Chunk(at_s=1.0 + n * seconds, read=n, size_bytes=9, has_token=True) for n in range(11)
    )
    one = Request(
        index=0,
        target="u",
        warm_up=False,
        prompt_tokens=8,
        output_tokens=11,
        scheduled_s=0.5,
        sent_s=0.5,
        chunks=chunks,
        end_s=chunks[-1].at_s,
        used_output_tokens=11,
    )
    summary = to_builtins(summarise([one, one]))
    named = {**subject(contender, repeat, cell), "gpus": gpus}
    return load_record(named, Measured(values=summary))


def subject(contender, repeat, cell="4/s poisson"):
    names = {"contender": contender, "cell": cell, "prompt_tokens": 8, "output_tokens": 11}
    return {**names, "repeat": repeat}


@pytest.mark.parametrize(("requests", "shown"), [(999, False), (1000, True)])
def test_a_p99_of_few_requests_in_an_older_record_is_not_shown(requests, shown):
    (record,) = [measured("tp2 p2p", 0, 0.1)]
    times = spread([1.0] * requests, {0.5: 2, 0.99: 100})
    assert times.at(0.99) == 1.0
    names = ("ttft_from_schedule_s", "tpot_s", "e2e_s")
    values = {**record.outcome.values, **dict.fromkeys(names, to_builtins(times))}
    (row,) = rows_of([load_record(record.subject, Measured(values=values))])
    for name in ("ttft", "tpot", "e2e"):
        assert (f"{name}_p99_s" in row.figures) == shown
        assert row.figures[f"{name}_p50_s"].median == 1.0


def test_contenders_are_told_apart_only_without_overlap():
    records = [
        measured("tp2 p2p", 0, 0.10),
        measured("tp2 staged", 0, 0.14),
        measured("tp2 staged", 1, 0.16),
        measured("tp2 p2p", 1, 0.11),
    ]
    rows = rows_of(records)
    assert [row.contender for row in rows] == ["tp2 p2p", "tp2 staged"]
    tpot = rows[0].figures["tpot_p50_s"]
    assert (tpot.median, tpot.low, tpot.high, tpot.n) == pytest.approx((0.105, 0.10, 0.11, 2))
    assert tpot.drift == pytest.approx(0.1)
    found = {one.figure: one for one in differences_of(rows)}["tpot_p50_s"]
    assert found.ratio == pytest.approx(0.15 / 0.105)
    assert (found.low, found.high) == pytest.approx((0.14 / 0.11, 0.16 / 0.10))
    assert found.told_apart
    # Apart, but by less than a percent: the rate of an open loop that keeps up.
    close = rows_of(
        [measured(one, at, s) for one, s in (("a", 0.1), ("b", 0.1005)) for at in (0, 1)]
    )
    assert not any(one.told_apart for one in differences_of(close))
    near = rows_of([measured("a", 0, 0.1), measured("b", 0, 0.2)])
    assert not any(one.told_apart for one in differences_of(near))


def test_more_gpus_that_are_slower_are_a_finding():
    records = [
        measured("one GPU", 0, 0.10, gpus=1),
        measured("tp2 staged", 0, 0.14, gpus=2),
        measured("tp2 staged", 1, 0.16, gpus=2),
        measured("one GPU", 1, 0.11, gpus=1),
    ]
    (finding,) = slower_findings(rows_of(records))
    assert finding.code == "more-gpus-slower"
    assert "tp2 staged takes 1.29 times as long as one GPU" in finding.seen
    assert set(finding.record_ids) == {record.id for record in records}
    assert slower_findings(rows_of(records[:2])) == ()
    other_way = [measured("one GPU", n, 0.2, gpus=1) for n in (0, 1)]
    assert slower_findings(rows_of([*other_way, *records[1:3]])) == ()


def test_failed_repeats_stay_visible():
    bad = load_record(subject("tp2 p2p", 1), Failed(reason=Reason(code="server-died", text="x")))
    (row,) = rows_of([measured("tp2 p2p", 0, 0.1), bad])
    assert (row.problems, row.figures["tpot_p50_s"].n) == (("server-died",), 1)
    (empty,) = rows_of([bad])
    assert empty.figures == {}
    assert differences_of([row, empty]) == ()


VLLM = {
    "request_rate": 4.0,
    "max_concurrency": None,
    "ttfts": [0.1, 0.2, 0.0],
    "itls": [[0.01, 0.01, 0.01], [0.02, 0.03], []],
    "input_lens": [64, 64, 64],
    "output_lens": [4, 3, 0],
    "errors": ["", "", "Connection refused"],
    "queue_times": [0.0, 1.0, 0.5],
}
GUIDELLM = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "poisson"}},
            "requests": {
                "successful": [
                    {
                        "prompt_tokens": 64,
                        "output_tokens": 5,
                        "cached_tokens": 0,
                        "info": {
                            "timings": {
                                "targeted_start": 100.0,
                                "request_start": 100.5,
                                "first_token_iteration": 101.0,
                                "last_token_iteration": 103.0,
                                "request_end": 103.25,
                            }
                        },
                    }
                ],
                "errored": [{"info": {"timings": {}}}],
                "incomplete": [],
            },
        }
    ]
}
AIPERF = [
    {
        "metadata": {
            "credit_issued_ns": 1_000_000_000,
            "request_start_ns": 1_250_000_000,
            "benchmark_phase": "profiling",
        },
        "metrics": {
            "time_to_first_token": {"value": 250.0, "unit": "ms"},
            "request_latency": {"value": 1250.0, "unit": "ms"},
            "output_sequence_length": {"value": 5, "unit": "tokens"},
            "input_sequence_length": {"value": 64, "unit": "tokens"},
            "inter_chunk_latency": {"value": [250.0, 750.0], "unit": "ms"},
        },
        "error": None,
    },
    {"metadata": {"benchmark_phase": "warmup"}, "metrics": {}, "error": None},
    {
        "metadata": {"benchmark_phase": "profiling"},
        "metrics": {},
        "error": {"code": 499, "message": "cancelled"},
    },
]


def test_vllm_bench_by_our_definitions():
    (run,) = parse_foreign(json.dumps(VLLM).encode(), "v.json")
    assert (run.tool, len(run.requests), run.failed) == ("vllm bench serve", 3, 1)
    first, second, third = run.requests
    assert first.tpot_s == pytest.approx(0.01)
    assert second.tpot_s == pytest.approx(0.025)
    assert second.ttft_from_schedule_s == pytest.approx(1.2)
    assert second.e2e_from_send_s == pytest.approx(0.25)
    # Its zeros are absence.
    assert (third.ttft_from_send_s, third.tpot_s, third.failed) == (None, None, True)
    assert run.spread_of("ttft_from_send_s").n == 2
    assert run.chunk_gap_s.n == 5


def test_guidellm_by_our_definitions():
    (run,) = parse_foreign(json.dumps(GUIDELLM, indent=1).encode(), "g.json")
    assert (run.tool, run.name, run.failed) == ("guidellm", "poisson", 1)
    one = run.requests[0]
    assert (one.dispatch_lag_s, one.ttft_from_send_s, one.tpot_s) == (0.5, 0.5, 0.5)
    assert (one.ttft_from_schedule_s, one.e2e_from_send_s, one.cached_tokens) == (1.0, 2.75, 0)


def test_aiperf_by_our_definitions():
    lines = "\n".join(json.dumps(row) for row in AIPERF).encode()
    (run,) = parse_foreign(lines, "profile_export.jsonl")
    assert (run.tool, len(run.requests), run.failed) == ("aiperf", 2, 1)
    one = run.requests[0]
    assert (one.dispatch_lag_s, one.ttft_from_send_s, one.tpot_s) == (0.25, 0.25, 0.25)
    assert one.chunk_gaps_s == (0.25, 0.75)
    assert run.requests[1].ttft_from_schedule_s is None


def test_import_record_has_a_row_a_request():
    (run,) = parse_foreign(json.dumps(VLLM).encode(), "v.json")
    record = foreign_record(run, "0" * 64)
    assert record.samples.column("tpot_s") == pytest.approx((0.01, 0.025, None))
    assert record.outcome.values == {"requests": 3, "failed": 1}
    none = {**VLLM, "errors": ["x"] * 3}
    (failed,) = parse_foreign(json.dumps(none).encode(), "v.json")
    with pytest.raises(InputError, match="none of the 3 requests"):
        foreign_record(failed, "0" * 64)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"ttfts": []}',
        b'{"median_ttft_ms": 0.0}',
        b'{"benchmarks": []}',
        b'{"benchmarks": [{}]}',
        b'{"metadata": {}}\n{"other": 1}\n',
        b"[" * 200_000,
    ],
)
def test_other_files_are_one_clear_error(data):
    with pytest.raises(InputError, match=r"^x\.json") as refused:
        parse_foreign(data, "x.json")
    assert refused.value.why
    assert "vllm bench serve" in refused.value.hint
