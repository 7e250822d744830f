"""Runs files: the recorded one by its numbers, hostile ones by their one error."""

import contextlib
import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.links import Arm
from linkbound.serve import VLLM, parse_runs, parse_specs
from linkbound.serve.runs import MAX_FILE_BYTES

RECORDED = files("linkbound") / "recorded" / "h200-pair" / "vllm-0.24.0" / "runs.jsonl"
ROW = {
    "tag": "one",
    "model": "llama8b",
    "tp": 2,
    "pp": 1,
    "ep": 0,
    "custom_ar": 1,
    "p2p_disable": "0",
    "batch": 8,
    "input": 1024,
    "output": 65,
    "prefill_all": [0.3, 0.1, 0.2],
    "total_all": [0.9, 0.8],
}


def line(**changes: object) -> bytes:
    row = {**ROW, **changes}
    return json.dumps({key: value for key, value in row.items() if value is not None}).encode()


def test_the_recorded_runs() -> None:
    runs = parse_runs(RECORDED.read_bytes(), "runs.jsonl")
    assert len(runs) == 20
    assert [run.line for run in runs] == list(range(1, 21))
    arms = {run.tag: run.spec.arm for run in runs}
    assert arms == {
        "llama8b_tp1": None,
        "llama8b_tp2": Arm.P2P,
        "llama8b_tp2_nccl": Arm.NCCL,
        "llama8b_tp2_off": Arm.STAGED,
    }
    first = runs[0]
    assert (first.spec.batch, first.spec.prompt_tokens, first.spec.output_tokens) == (1, 1024, 65)
    assert first.times.prefill_s == (
        0.024889492999989216,
        0.02521294399997487,
        0.025644344999989244,
    )
    assert first.times.total_s[1] == 0.3413267180000048
    assert [run.spec for run in runs] == [
        spec for _, _, spec in parse_specs(RECORDED.read_bytes(), "runs.jsonl")
    ]


def test_times_are_sorted_and_the_median_is_enough() -> None:
    (run,) = parse_runs(line(), "runs.jsonl")
    assert run.times.prefill_s == (0.1, 0.2, 0.3)
    assert run.times.total_s == (0.8, 0.9)
    (run,) = parse_runs(line(prefill_all=None, prefill_s=0.25, total_all=None), "runs.jsonl")
    assert run.times.prefill_s == (0.25,)
    assert run.times.total_s == ()


@pytest.mark.parametrize(
    ("changes", "arm"),
    [
        ({"tp": 1, "p2p_disable": "1"}, None),
        ({"tp": 1, "pp": 2}, Arm.P2P),
        ({}, Arm.P2P),
        ({"custom_ar": 0}, Arm.NCCL),
        ({"custom_ar": False}, Arm.NCCL),
        ({"custom_ar": 1, "p2p_disable": "1"}, Arm.STAGED),
        ({"custom_ar": 0, "p2p_disable": 1}, Arm.STAGED),
        ({"custom_ar": 0, "p2p_disable": True}, Arm.STAGED),
    ],
)
def test_arms(changes: dict[str, object], arm: Arm | None) -> None:
    (run,) = parse_runs(line(**changes), "runs.jsonl")
    assert run.spec.arm is arm


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("model", None),
        ("model", 3),
        ("model", "a\x1b[31mb"),
        ("model", "\ud800"),
        ("tag", 3),
        ("tag", "a\nb"),
        ("tp", None),
        ("tp", 0),
        ("tp", True),
        ("tp", 2.0),
        ("tp", "2"),
        ("pp", -1),
        ("ep", -1),
        ("custom_ar", 2),
        ("custom_ar", "yes"),
        ("p2p_disable", "off"),
        ("p2p_disable", [1]),
        ("batch", 10**7),
        ("batch", 10**400),
        ("input", 0),
        ("output", float("nan")),
        ("prefill_all", []),
        ("prefill_all", 0.1),
        ("prefill_all", ["0.1"]),
        ("prefill_all", [0.0]),
        ("prefill_all", [-1]),
        ("prefill_all", [float("inf")]),
        ("prefill_all", [10**400]),
        ("prefill_all", [True]),
        ("total_all", {"a": 1}),
        ("total_all", [float("nan")]),
    ],
)
def test_a_malformed_field_is_one_error_with_line_and_field(field: str, value: object) -> None:
    data = line() + b"\n\n" + line(**{field: value})
    with pytest.raises(InputError) as raised:
        parse_runs(data, "runs.jsonl")
    assert raised.value.seen.startswith(f"runs.jsonl, line 3: {field} is ")
    assert len(raised.value.seen) < 160
    assert raised.value.seen.isprintable()
    assert raised.value.why
    assert raised.value.hint


def test_a_run_of_more_tokens_than_any_cache_is_refused() -> None:
    with pytest.raises(InputError, match="line 1: batch, input and output make 100,100,000 tokens"):
        parse_runs(line(batch=100_000, input=1000, output=1), "runs.jsonl")


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"", "runs.jsonl holds no run"),
        (b"\n \n", "runs.jsonl holds no run"),
        (b"{", "runs.jsonl, line 1 is not JSON"),
        (b"[1]", "runs.jsonl, line 1 is not a JSON object"),
        (b"\xff\xfe{\x00}\x00", "runs.jsonl is not UTF-8 text"),
        (b"[" * 200_000, "runs.jsonl, line 1 is not JSON"),
        (b'{"batch": ' + b"1" * 10_000 + b"}", "runs.jsonl, line 1 is not JSON"),
        (b" " * (MAX_FILE_BYTES + 1), "runs.jsonl is 67,108,865 bytes"),
    ],
    ids=["empty", "blank", "cut", "list", "utf-16", "deep", "long number", "huge"],
)
def test_other_files_are_one_error(data: bytes, seen: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_runs(data, "runs.jsonl")
    assert raised.value.seen.startswith(seen)


def test_line_ends_inside_a_name_and_windows_line_ends() -> None:
    data = line(tag="a b") + b"\r\n" + line(model="b") + b"\r\n"
    assert [run.tag for run in parse_runs(data, "r")] == ["a b", "one"]
    with pytest.raises(InputError, match="line 1: tag is"):
        parse_runs('{"tag": "a\u2028b"}'.encode(), "runs.jsonl")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted({*ROW, "prefill_s", "total_s"})), JSON, max_size=4))
def test_any_value_in_any_field_is_read_or_refused(changes: dict[str, object]) -> None:
    data = json.dumps({**ROW, **changes}).encode()
    with contextlib.suppress(InputError):
        (run,) = parse_runs(data, "runs.jsonl")
        assert 0 < run.times.prefill_s[0] <= run.times.prefill_s[-1]
        assert run.spec.batch >= 1


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        parse_runs(data, "runs.jsonl")


@given(st.integers(0, 4000))
def test_cut_anywhere(length: int) -> None:
    data = RECORDED.read_bytes()
    whole = data[:length].count(b"\n")
    with contextlib.suppress(InputError):
        assert len(parse_runs(data[:length], "runs.jsonl")) - whole in (0, 1)


def test_rules_of_the_recorded_engine() -> None:
    assert (VLLM.max_batched_tokens, VLLM.max_sequences) == (8192, 256)
    assert VLLM.graph_sizes == (1, 2, 4, 8, 16, 32, 64, 128)
    assert VLLM.direct_all_reduce_limit_bytes == 8 * 1024**2
