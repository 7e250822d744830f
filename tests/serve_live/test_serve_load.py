"""Schedules, prompts, streams, answers and figures: exact values, and no stream that raises."""

import contextlib
import json
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import InputError, UsageError
from linkbound.evidence.types import Reason
from linkbound.serve.answer import read_answer
from linkbound.serve.arrivals import due_times_s, lengths_of, parse_trace, prompt_ids
from linkbound.serve.client_limit import (
    ADDED_TTFT_LIMIT_S,
    TOKENS,
    asks_too_much,
    client_step,
    limit_of,
    measure_client_limit,
    was_client_bound,
)
from linkbound.serve.latency import (
    chunk_gaps_s,
    e2e_s,
    is_good,
    spread,
    summarise,
    tpot_s,
    ttft_from_schedule_s,
    ttft_from_send_s,
)
from linkbound.serve.load_types import Arrival, Cell, Chunk, Request, Slo, TraceEntry
from linkbound.serve.stream import MAX_EVENT_BYTES, SseReader, parse_event


def cell(**changes):
    plain = {
        "arrival": Arrival.POISSON,
        "rate_per_s": 10.0,
        "requests": 4000,
        "prompt_tokens": 64,
        "output_tokens": 16,
        "seed": 5,
    }
    return Cell(**plain | changes)


def gaps(times):
    return [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]


def test_poisson_gaps_have_mean_and_spread_of_an_exponential():
    found = gaps(due_times_s(cell()))
    assert len(found) == 4000
    assert statistics.mean(found) == pytest.approx(0.1, rel=0.06)
    assert statistics.stdev(found) == pytest.approx(0.1, rel=0.08)
    # The raw draw: the last arrival is not moved to requests / rate.
    assert due_times_s(cell())[-1] != 400.0


def test_gamma_gaps_are_burstier_or_steadier():
    steady = gaps(due_times_s(cell(arrival=Arrival.GAMMA, burstiness=4.0)))
    bursty = gaps(due_times_s(cell(arrival=Arrival.GAMMA, burstiness=0.25)))
    assert statistics.mean(steady) == pytest.approx(0.1, rel=0.06)
    assert statistics.stdev(steady) == pytest.approx(0.05, rel=0.08)
    assert statistics.stdev(bursty) == pytest.approx(0.2, rel=0.15)


def test_draws_follow_the_seed():
    assert due_times_s(cell()) == due_times_s(cell(repeat=1, prompt_tokens=8))
    assert due_times_s(cell()) != due_times_s(cell(seed=6))
    assert prompt_ids(cell(), 0) == prompt_ids(cell(), 0)
    others = (
        prompt_ids(cell(), 1),
        prompt_ids(cell(), 0, warm_up=True),
        prompt_ids(cell(repeat=1), 0),
        prompt_ids(cell(seed=6), 0),
    )
    for other in others:
        assert other[:8] != prompt_ids(cell(), 0)[:8]


@given(st.integers(1, 500), st.integers(0, 50))
def test_prompts_have_exactly_the_tokens_asked(length, index):
    ids = prompt_ids(cell(prompt_tokens=length, vocabulary=(7, 11)), index)
    assert len(ids) == length
    assert set(ids) <= {7, 8, 9, 10}


def test_trace_starts_at_zero():
    lines = b'{"timestamp": 1000.5, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n\n' + (
        b'{"timestamp": 2500, "input_length": 9, "output_length": 2}\n'
    )
    entries = parse_trace(lines, "t.jsonl")
    assert [(one.at_s, one.prompt_tokens) for one in entries] == [(0.0, 5), (1.4995, 9)]
    replay = cell(arrival=Arrival.TRACE, rate_per_s=None, entries=entries, requests=2)
    assert due_times_s(replay) == (0.0, 1.4995)
    assert [lengths_of(replay, index) for index in (0, 1)] == [(5, 1), (9, 2)]
    assert len(prompt_ids(replay, 1)) == 9


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_give_a_trace_or_our_error(data):
    with contextlib.suppress(InputError):
        assert all(isinstance(one, TraceEntry) for one in parse_trace(data, "t.jsonl"))


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"timestamp": "x", "input_length": 5, "output_length": 1}', "timestamp"),
        ('{"timestamp": 1e999, "input_length": 5, "output_length": 1}', "timestamp"),
        ('{"timestamp": -10, "input_length": 5, "output_length": 1}', "timestamp is -10, below 0"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 1}', "input_length"),
        ('{"timestamp": 1, "input_length": 5, "output_length": true}', "output_length"),
        ("[" * 100_000, "no JSON object"),
    ],
)
def test_bad_trace_line_names_the_field(line, field):
    with pytest.raises(InputError, match=f"t.jsonl, line 1.*{field}"):
        parse_trace(line.encode(), "t.jsonl")


def test_a_trace_that_steps_back_names_the_line():
    rows = [
        f'{{"timestamp": {at}, "input_length": 5, "output_length": 1}}' for at in (0, 20, 20, 10)
    ]
    assert len(parse_trace("\n".join(rows[:3]).encode(), "t.jsonl")) == 3
    with pytest.raises(InputError, match="line 4: timestamp 10 comes after 20"):
        parse_trace("\n".join(rows).encode(), "t.jsonl")


@pytest.mark.parametrize(
    "changes",
    [
        {"rate_per_s": None},
        {"rate_per_s": -1.0},
        {"concurrency": 3},
        {"arrival": Arrival.CLOSED},
        {"arrival": Arrival.TRACE, "rate_per_s": None},
        {"requests": 0},
    ],
)
def test_impossible_cells_cannot_exist(changes):
    with pytest.raises(ValueError, match=r"arrivals with|must be above 0"):
        cell(**changes)


EVENTS = b'data: {"a": 1}\n\n: ping\n\ndata: one\ndata: two\r\n\r\nevent: x\ndata:three\n\n'


@given(st.lists(st.integers(0, len(EVENTS)), max_size=12))
def test_events_do_not_depend_on_how_the_network_cuts_them(cuts):
    reader = SseReader("s")
    places = [0, *sorted(cuts), len(EVENTS)]
    found = [event for begin, end in pairwise(places) for event in reader.feed(EVENTS[begin:end])]
    assert found == [b'{"a": 1}', b"one\ntwo", b"three"]
    assert not reader.is_mid_event


def test_event_without_end_is_refused_not_kept():
    reader = SseReader("s")
    for _ in range(MAX_EVENT_BYTES // 1024):
        reader.feed(b"x" * 1024)
    with pytest.raises(InputError, match="longer than"):
        reader.feed(b"x")
    many_lines = SseReader("s")
    with pytest.raises(InputError, match="longer than"):
        many_lines.feed((b"data: " + b"x" * 1018 + b"\n") * (MAX_EVENT_BYTES // 1024 + 1))


@pytest.mark.parametrize(
    ("data", "text", "finish", "counts"),
    [
        (b"[DONE]", "", None, (None, None, None)),
        (b'{"choices":[{"text":"a","finish_reason":null}]}', "a", None, (None, None, None)),
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', "", None, (None,) * 3),
        (
            b'{"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}]}',
            "b",
            "stop",
            (None,) * 3,
        ),
        (b'{"choices":[{"delta":{"reasoning_content":"r"}}]}', "r", None, (None,) * 3),
        (
            b'{"choices":[],"usage":{"prompt_tokens":6,"completion_tokens":4,'
            b'"prompt_tokens_details":{"cached_tokens":2}}}',
            "",
            None,
            (6, 4, 2),
        ),
    ],
)
def test_events_of_several_engines(data, text, finish, counts):
    event = parse_event(data, "s")
    assert (event.text, event.finish) == (text, finish)
    assert (event.prompt_tokens, event.output_tokens, event.cached_tokens) == counts
    assert event.has_token == bool(text)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.binary(max_size=80)), max_size=8))
def test_no_stream_raises(reads):
    answer = read_answer(reads, "s")
    assert answer.error is not None or answer.chunks or answer.output_tokens


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["choices", "usage", "text", "delta"]), inner, max_size=3
            )
        ),
        max_leaves=8,
    )
)
def test_no_json_raises(value):
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    assert read_answer([(0.0, data)], "s").error is not None


def test_answer_keeps_reads_and_counts():
    parts = [
        b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[{"text":"b"}]}\n\nda',
        b'ta: {"choices":[{"text":"","finish_reason":"length"}],'
        b'"usage":{"completion_tokens":3}}\n\n',
    ]
    answer = read_answer([(1.0, parts[0]), (2.0, parts[1])], "s")
    assert [(one.at_s, one.read, one.has_token) for one in answer.chunks] == [
        (1.0, 0, True),
        (1.0, 0, True),
        (2.0, 1, False),
    ]
    assert (answer.output_tokens, answer.finish, answer.error) == (3, "length", None)


def request(*at_s, **changes):
    chunks = tuple(
        Chunk(at_s=one, read=n, size_bytes=9, has_token=True) for n, one in enumerate(at_s)
    )
    plain = {
        "index": 0,
        "target": "u",
        "warm_up": False,
        "prompt_tokens": 10,
        "output_tokens": 5,
        "scheduled_s": 1.0,
        "sent_s": 1.5,
        "chunks": chunks,
        "end_s": at_s[-1] if at_s else None,
        "used_output_tokens": 5,
    }
    return Request(**plain | changes)


def test_every_definition():
    one = request(2.0, 2.5, 4.0)
    assert ttft_from_schedule_s(one) == 1.0
    assert ttft_from_send_s(one) == 0.5
    # By tokens of usage, not by chunks: 5 tokens came in 3 chunks.
    assert tpot_s(one) == 0.5
    assert chunk_gaps_s(one) == (0.5, 1.5)
    assert e2e_s(one) == 3.0


def test_ids_say_how_many_tokens_the_first_event_brought():
    data = b'data: {"choices":[{"text":"","token_ids":[5,6,7],"finish_reason":null}]}\n\n'
    answer = read_answer([(2.0, data), (4.0, data.replace(b"null", b'"length"'))], "s")
    assert [(one.has_token, one.tokens) for one in answer.chunks] == [(True, 3), (True, 3)]
    # 6 tokens, the first 3 at 2 s: 3 more in 2 s.
    one = request(chunks=answer.chunks, end_s=4.0, used_output_tokens=6)
    assert tpot_s(one) == pytest.approx(2 / 3)
    assert ttft_from_send_s(one) == 0.5


def test_what_is_missing_is_none():
    empty = request(error=Reason(code="refused", text="x"), used_output_tokens=None, sent_s=None)
    assert (ttft_from_schedule_s(empty), ttft_from_send_s(empty)) == (None, None)
    assert (tpot_s(empty), e2e_s(empty), chunk_gaps_s(empty)) == (None, None, ())
    assert tpot_s(request(2.0, used_output_tokens=1)) is None


def test_opening_without_text_does_not_stop_the_clock():
    opening = Chunk(at_s=1.6, read=0, size_bytes=9, has_token=False)
    text = Chunk(at_s=2.0, read=1, size_bytes=9, has_token=True)
    assert ttft_from_send_s(request(chunks=(opening, text), end_s=2.0)) == 0.5


def test_failed_requests_are_misses_and_are_counted():
    slo = Slo(ttft_s=1.0, tpot_s=0.5)
    good, slow = request(2.0, 2.5, 4.0), request(2.5, 4.0)
    failed = request(2.0, error=Reason(code="cut-stream", text="x"))
    warm = request(9.0, warm_up=True)
    assert [is_good(one, slo) for one in (good, slow, failed)] == [True, False, False]
    found = summarise([warm, good, slow, failed], slo)
    assert (found.requests, found.failed, found.failures) == (3, 1, {"cut-stream": 1})
    assert found.goodput == pytest.approx(1 / 3)
    assert found.output_tokens == 10
    assert found.duration_s == 4.0
    assert found.ttft_from_schedule_s.n == 2
    assert summarise([good]).goodput is None
    with pytest.raises(ValueError, match="no request was counted"):
        summarise([warm])


def test_percentiles_need_samples_beyond_them():
    assert [one.share for one in spread([1.0] * 9).percentiles] == [0.5]
    assert [one.share for one in spread([1.0] * 10).percentiles] == [0.5, 0.9]
    assert spread([]).percentiles == ()
    # Ten lie beyond p99: of fewer requests a single moment decides it.
    assert spread([float(n) for n in range(999)]).at(0.99) is None
    thousand = spread([float(n) for n in range(1000)])
    assert thousand.at(0.99) == pytest.approx(989.01)
    assert (thousand.percentiles[-1].low, thousand.percentiles[-1].high) == (982.0, 996.0)


def test_stall_of_the_server_shows_in_the_schedule_not_in_the_send():
    """Coordinated omission: a client that waits would send late and see short times."""
    late = [request(6.0, scheduled_s=0.1 * n, sent_s=0.1 * n, index=n) for n in range(20)]
    found = summarise(late)
    assert found.ttft_from_schedule_s.at(0.5) == pytest.approx(5.05)
    assert found.dispatch_lag_s.at(0.5) == 0.0


def test_wrong_lengths_and_cache_are_counted():
    one = request(2.0, used_output_tokens=4, used_prompt_tokens=10, cached_tokens=5)
    other = request(2.0, used_prompt_tokens=10, cached_tokens=0)
    found = summarise([one, other])
    assert (found.wrong_lengths, found.cached_share) == (1, 0.25)
    assert summarise([request(2.0)]).cached_share is None


def paced(count, first_s=0.001, gap_s=0.01, lost=0):
    return [
        request(*(1.5 + first_s + n * gap_s for n in range(TOKENS - lost)), index=index)
        for index in range(count)
    ]


def test_client_step_by_values():
    good = client_step(paced(8), 8)
    assert (good.kept_up, good.lost_chunks, good.chunks_per_s) == (True, 0, 800.0)
    assert good.added_ttft_p50_s == pytest.approx(0.001)
    assert not client_step(paced(8, first_s=2 * ADDED_TTFT_LIMIT_S), 8).kept_up
    assert not client_step(paced(8, gap_s=0.03), 8).kept_up
    lost = client_step(paced(8, lost=1), 8)
    assert (lost.kept_up, lost.lost_chunks) == (False, 8)


def test_limit_is_the_last_step_that_was_followed():
    limit = limit_of([client_step(paced(8), 8), client_step(paced(32, gap_s=0.03), 32)])
    assert (limit.chunks_per_s, limit.streams) == (800.0, 8)
    assert asks_too_much(cell(rate_per_s=50.0), limit) is None
    assert asks_too_much(cell(rate_per_s=51.0), limit).code == "client-bound"
    with pytest.raises(UsageError, match="cannot follow 8 streams"):
        limit_of([client_step(paced(8, gap_s=0.03), 8)])


def test_late_client_is_refused():
    limit = limit_of([client_step(paced(8), 8)])

    def found(*sent_s):
        requests = [request(2.0, sent_s=one) for one in sent_s]
        reason = was_client_bound(summarise(requests), requests, limit)
        return None if reason is None else reason.code

    on_time, late = 1.0, 1.2
    assert found(*[on_time] * 3) is None
    assert found(*[late] * 3) == "client-late"
    # Where one request in so many lies: p90 of 10 and p99 of 100, p50 of fewer.
    assert found(*[on_time] * 4, late) is None
    assert found(*[on_time] * 8, late, late) == "client-late"
    assert found(*[on_time] * 97, *[late] * 3) == "client-late"
    assert found(*[on_time] * 98, 1.01, 1.01) is None


def test_the_real_client_on_the_mock_server_loses_nothing(monkeypatch):
    """What it adds depends on this machine; that no chunk is lost does not."""
    monkeypatch.setattr("linkbound.serve.client_limit.ADDED_TTFT_LIMIT_S", 60.0)
    monkeypatch.setattr("linkbound.serve.client_limit.GAP_P99_LIMIT", 6000.0)
    limit = measure_client_limit((4, 8, 16), enough_chunks_per_s=700.0)
    assert [(step.streams, step.lost_chunks) for step in limit.steps] == [(4, 0), (8, 0)]
    assert limit.chunks_per_s == 800.0
