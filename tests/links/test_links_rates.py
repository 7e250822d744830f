"""nvbandwidth, p2pBandwidthLatencyTest and the recorded copy and all-reduce scripts."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import linkbound
from linkbound.errors import InputError
from linkbound.links import (
    Arm,
    Launch,
    Operation,
    curve_of_rate,
    curves_of_symm_allreduce,
    latencies_of_run,
    parse_nvbandwidth,
    parse_p2p_test,
    parse_peer_copies,
    parse_symm_allreduce,
    rates_of_run,
)

CASES = Path(__file__).parents[1] / "cases"
RECORDED = Path(linkbound.__file__).parent / "recorded"
H200 = RECORDED / "h200-pair"


def nvbandwidth(name):
    path = next(CASES.glob(name))
    return parse_nvbandwidth(path.read_text(), path.name)


def p2p_test(name):
    path = next(CASES.glob(name))
    return parse_p2p_test(path.read_text(), path.name)


@pytest.fixture(scope="module")
def h200():
    return parse_nvbandwidth((H200 / "nvbandwidth.json").read_text(), "nvbandwidth.json")


def rates_by(rates, test):
    return {(rate.src, rate.dst): rate for rate in rates if rate.method == f"nvbandwidth {test}"}


# --- nvbandwidth ---


def test_arrow_decides_which_axis_is_the_source(h200):
    rates = rates_of_run(h200)
    read = rates_by(rates, "device_to_device_memcpy_read_ce")
    write = rates_by(rates, "device_to_device_memcpy_write_ce")
    assert read["GPU0", "GPU1"].bytes_per_s == pytest.approx(394.034e9)
    assert write["GPU1", "GPU0"].bytes_per_s == pytest.approx(396.398e9)
    assert write["GPU0", "GPU1"].bytes_per_s == pytest.approx(396.471e9)
    assert read["GPU0", "GPU1"].implementation == "copy_engine"
    sm = rates_by(rates, "device_to_device_memcpy_read_sm")
    assert sm["GPU1", "GPU0"].implementation == "sm"


def test_both_ways_has_two_directions_and_their_total(h200):
    rate = rates_by(rates_of_run(h200), "device_to_device_bidirectional_memcpy_read_ce")[
        "GPU0", "GPU1"
    ]
    assert rate.operation is Operation.COPY_BOTH_WAYS
    assert rate.bytes_per_s == pytest.approx(778.673e9)
    assert rate.each_way_bytes_per_s == (pytest.approx(389.337e9), pytest.approx(389.337e9))


def test_host_copies_and_their_company(h200):
    rates = rates_of_run(h200)
    assert rates_by(rates, "host_to_device_memcpy_ce")["host", "GPU1"].concurrency == "alone"
    back = rates_by(rates, "device_to_host_bidirectional_memcpy_ce")["GPU0", "host"]
    assert back.operation is Operation.DEVICE_TO_HOST
    assert back.concurrency == "with the opposite direction"
    fan = rates_by(rates, "host_to_all_bidirectional_memcpy_ce")["host", "GPU0"]
    assert (fan.operation, fan.concurrency) == (Operation.HOST_TO_DEVICE, "host_to_all both ways")
    assert rates_by(rates, "all_to_one_read_ce")["others", "GPU1"].concurrency == "all_to_one"
    assert rates_by(rates, "one_to_all_write_ce")["GPU1", "others"].bytes_per_s > 3.9e11


def test_local_copies_and_round_trips(h200):
    local = rates_by(rates_of_run(h200), "device_local_copy")["GPU0", "GPU0"]
    assert local.operation is Operation.LOCAL_COPY
    found = {(entry.src, entry.dst): entry.latency_s for entry in latencies_of_run(h200)}
    assert found["GPU0", "GPU1"] == pytest.approx(827.657e-9)
    assert found["host", "GPU1"] == pytest.approx(1194.32e-9)
    assert len(found) == 4
    assert all("SM read round trip" in entry.method for entry in latencies_of_run(h200))


def test_every_test_of_the_recording_gives_rates_or_latencies(h200):
    named = {rate.method for rate in rates_of_run(h200)}
    assert len(named) == 33
    assert len(h200.tests) == 35
    assert len(rates_of_run(h200)) == 66
    assert (h200.version, h200.driver) == ("v0.8", "580.159.04")
    assert h200.devices[1] == "NVIDIA H200 (00000000:00:07): (hostA)"


def test_size_is_unknown_unless_stated(h200):
    rate = rates_of_run(h200)[0]
    assert rate.size_bytes is None
    assert curve_of_rate(rate, "x") is None
    stated = rates_of_run(h200, size_bytes=512 << 20)
    curve = curve_of_rate(stated[0], "x")
    assert curve.points[0].time_s == pytest.approx((512 << 20) / 55.5228e9)
    fan = next(rate for rate in stated if rate.dst == "others")
    both = next(rate for rate in stated if rate.each_way_bytes_per_s)
    assert curve_of_rate(fan, "x") is None
    assert curve_of_rate(both, "x") is None


def test_text_with_eight_gpus_and_zero_diagonal():
    run = nvbandwidth("025*/nvbandwidth.txt")
    rates = rates_of_run(run)
    write = rates_by(rates, "device_to_device_memcpy_write_ce")
    assert len(write) == 56
    assert write["GPU0", "GPU6"].bytes_per_s == pytest.approx(274.89e9)
    both = rates_by(rates, "host_to_device_bidirectional_memcpy_ce")["host", "GPU3"]
    assert both.bytes_per_s == pytest.approx(19.59e9)


def test_text_whose_head_was_cut_takes_its_name_from_the_sum():
    run = nvbandwidth("026*/nvbandwidth.txt")
    assert [test.name for test in run.tests] == ["device_to_device_memcpy_read_ce"]
    assert run.driver == "580.95.05"
    rates = rates_by(rates_of_run(run), "device_to_device_memcpy_read_ce")
    assert len(rates) == 30
    assert rates["GPU0", "GPU4"].bytes_per_s == pytest.approx(22.64e9)


def test_waived_test_stays_visible():
    run = nvbandwidth("028*/nvbandwidth.txt")
    assert run.tests == ()
    (waived,) = run.waived
    assert (waived.test, waived.status) == ("device_to_device_memcpy_write_ce", "waived")
    assert run.devices == ("NVIDIA GeForce RTX 2080 Ti",) * 2


def test_waived_and_broken_cases_in_json():
    cases = [
        {"name": "a_ce", "status": "Waived", "reason": "no peer"},
        {"name": "b_ce", "status": "Passed", "bandwidth_matrix": [["x", None, "1.5", 2, True]]},
        {"name": 3},
        "text",
    ]
    run = parse_nvbandwidth(json.dumps({"nvbandwidth": {"testcases": cases}}), "x")
    assert [(w.test, w.status, w.reason) for w in run.waived] == [
        ("a_ce", "waived", "no peer"),
        ("unknown", "passed", None),
    ]
    assert run.tests[0].matrix == ((None, None, 1.5, 2.0, None),)


def test_waived_test_of_later_versions_is_named_by_the_line_above():
    text = (
        "Running device_to_device_memcpy_read_ce.\nWaived: \n"
        "Running host_to_device_memcpy_ce.\nError: out of memory\n"
    )
    run = parse_nvbandwidth(text, "x")
    assert [(w.test, w.status, w.reason) for w in run.waived] == [
        ("device_to_device_memcpy_read_ce", "waived", None),
        ("host_to_device_memcpy_ce", "error", "out of memory"),
    ]


def test_both_ways_in_text_counts_the_total_only():
    grid = "     0 1\n 0 N/A {0}\n 1 {0} N/A\n\n"
    head = "memcpy CE GPU(row) <-> GPU(column) {} bandwidth (GB/s)\n"
    text = "Running device_to_device_bidirectional_memcpy_read_ce.\n" + "".join(
        head.format(name) + grid.format(value)
        for name, value in (("Read1", "10.00"), ("Read2", "11.00"), ("Total", "21.00"))
    )
    rates = rates_of_run(parse_nvbandwidth(text, "x"))
    assert [rate.bytes_per_s for rate in rates] == [21e9, 21e9]
    assert {rate.operation for rate in rates} == {Operation.COPY_BOTH_WAYS}


def test_error_of_the_whole_run_is_repeated():
    text = json.dumps({"nvbandwidth": {"error": "CUDA_ERROR_SYSTEM_NOT_READY"}})
    with pytest.raises(InputError, match="it says: CUDA_ERROR_SYSTEM_NOT_READY"):
        parse_nvbandwidth(text, "x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{}",
        '{"nvbandwidth": 3}',
        '{"nvbandwidth": {"testcases": []}}',
        '{"nvbandwidth": ' + "[" * 100_000,
        "memcpy",
        '{"\ud800": 1}',
    ],
)
def test_no_nvbandwidth(text):
    with pytest.raises(InputError, match=r"^x: "):
        parse_nvbandwidth(text, "x")


@given(st.text(max_size=200))
def test_nvbandwidth_text_raises_only_our_error(text):
    title = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n    0    1\n"
    for whole in (text, title + text):
        with contextlib.suppress(InputError):
            rates_of_run(parse_nvbandwidth(whole, "x"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(JSON, JSON)
def test_nvbandwidth_json_raises_only_our_error(matrix, name):
    case = {"name": name, "bandwidth_matrix": matrix, "bandwidth_description": "GPU(row)"}
    with contextlib.suppress(InputError):
        rates_of_run(parse_nvbandwidth(json.dumps({"nvbandwidth": {"testcases": [case]}}), "x"))


# --- p2pBandwidthLatencyTest ---


def test_arm_is_decided_for_each_pair():
    run = p2p_test("013*/p2p-test.txt")
    assert len(run.devices) == 3
    granted = {(entry.src, entry.dst) for entry in run.access if entry.granted}
    assert granted == {("GPU1", "GPU2"), ("GPU2", "GPU1")}
    enabled = {
        (rate.src, rate.dst): rate
        for rate in run.rates
        if "Unidirectional P2P=Enabled" in rate.method
    }
    assert enabled["GPU1", "GPU2"].arm is Arm.P2P
    assert enabled["GPU1", "GPU2"].implementation == "copy_engine"
    assert enabled["GPU0", "GPU1"].arm is Arm.STAGED
    assert enabled["GPU0", "GPU1"].implementation == "driver"
    disabled = [rate for rate in run.rates if "P2P=Disabled" in rate.method]
    assert {rate.arm for rate in disabled if rate.src != rate.dst} == {Arm.STAGED}
    assert run.notes == ()


def test_latency_is_an_issue_interval_for_each_arm():
    run = p2p_test("013*/p2p-test.txt")
    found = {
        (entry.src, entry.dst, entry.arm): entry.latency_s
        for entry in run.latencies
        if "(GPU): issue interval of 16-byte copies" in entry.method
    }
    assert found["GPU1", "GPU2", Arm.P2P] == pytest.approx(0.42e-6)
    assert found["GPU1", "GPU2", Arm.STAGED] == pytest.approx(18.08e-6)
    host = [entry for entry in run.latencies if "host time to issue" in entry.method]
    assert len(host) == 18


def test_diagonal_is_local_memory_counted_once():
    rates = p2p_test("013*/p2p-test.txt").rates
    local = [rate for rate in rates if rate.operation is Operation.LOCAL_COPY]
    assert len(local) == 6
    assert local[0].bytes_per_s == pytest.approx(581.34e9 / 2)
    both = [rate for rate in rates if rate.operation is Operation.COPY_BOTH_WAYS]
    assert len(both) == 12
    assert all(rate.src != rate.dst for rate in both)


def test_reads_run_from_column_to_row():
    rates = p2p_test("046*/p2p-test.txt").rates
    read = {(r.src, r.dst): r.bytes_per_s for r in rates if "(P2P Reads)" in r.method}
    write = {(r.src, r.dst): r.bytes_per_s for r in rates if "(P2P Writes)" in r.method}
    assert read["GPU2", "GPU0"] == pytest.approx(10.01e9)
    assert read["GPU0", "GPU2"] == pytest.approx(9.90e9)
    assert write["GPU2", "GPU0"] == pytest.approx(10.01e9)


def test_arm_is_unknown_where_access_is_not_printed():
    run = p2p_test("015*/p2p-test.txt")
    assert {rate.arm for rate in run.rates} == {None}
    assert {rate.implementation for rate in run.rates if rate.src != rate.dst} == {"peer_copy"}
    assert run.notes == ("the file does not say which pairs can access each other: arms unknown",)


def test_cut_matrices_are_left_out_and_said():
    cut = p2p_test("001*/p2p-test.txt")
    assert (cut.rates, len(cut.access)) == ((), 12)
    assert cut.notes[-1].endswith("2 of 4 rows, left out as cut")
    middle = p2p_test("005*/p2p-test.txt")
    assert len(middle.rates) == 56
    assert middle.latencies == ()
    assert middle.notes[0] == "3 rows above the first title: which matrix is not known"


def test_more_rows_than_devices():
    text = (
        "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D     0      1\n"
        "     0 500.0 10.0\n     1 10.0 500.0\n     2 10.0 500.0\n"
    )
    run = parse_p2p_test(text, "x")
    assert len(run.rates) == 4
    assert "more rows than devices: '2 10.0 500.0' was left out" in run.notes[0]


def test_matrix_without_title_is_refused():
    path = next(CASES.glob("016*/p2p-acs-off-bidir.txt"))
    with pytest.raises(InputError, match="no matrix of p2pBandwidthLatencyTest"):
        parse_p2p_test(path.read_text(), path.name)


@given(st.text(max_size=200))
def test_p2p_test_raises_only_our_error(text):
    title = "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D  0  1\n"
    for whole in (text, title + text):
        with contextlib.suppress(InputError):
            parse_p2p_test(whole, "x")


# --- the recorded scripts ---


def test_peer_copies():
    found = parse_peer_copies((H200 / "peer-copies.txt").read_text(), "peer-copies.txt")
    times = {
        (curve.key.arm, curve.key.method): [point.time_s for point in curve.points]
        for curve in found.curves
        if curve.key.operation is Operation.COPY
    }
    push, pull = "cudaMemcpyPeerAsync, push", "cudaMemcpyPeerAsync, pull"
    assert times[Arm.P2P, push][0] == pytest.approx(5.1e-6)
    assert times[Arm.P2P, pull][0] == pytest.approx(17.9e-6)
    assert times[Arm.STAGED, push][0] == pytest.approx(20.9e-6)
    assert times[Arm.STAGED, pull][-1] == pytest.approx(28158.6e-6)
    staged = next(curve for curve in found.curves if curve.key.arm is Arm.STAGED)
    assert staged.key.implementation == "driver"
    assert all(entry.granted for entry in found.access)
    assert found.notes == ()


def test_pinned_legs_know_what_rounding_leaves_open():
    found = parse_peer_copies((H200 / "peer-copies.txt").read_text(), "x")
    legs = {curve.key.operation: curve for curve in found.curves if curve.key.arm is None}
    out = legs[Operation.DEVICE_TO_HOST]
    assert out.key.group == ("GPU0", "host")
    assert legs[Operation.HOST_TO_DEVICE].key.group == ("host", "GPU1")
    point = out.points[0]
    assert point.time_s == pytest.approx(65536 / 9.7e9)
    assert point.low_s == pytest.approx(65536 / 9.75e9)
    assert point.high_s == pytest.approx(65536 / 9.65e9)


def test_torch_copies():
    found = parse_peer_copies((H200 / "peer-copies.txt").read_text(), "x")
    rates = {(rate.src, rate.dst): rate for rate in found.rates}
    assert len(rates) == 7
    assert rates["GPU0", "GPU1"].arm is Arm.P2P
    assert rates["GPU0", "GPU0"].operation is Operation.LOCAL_COPY
    assert rates["host", "GPU1"].operation is Operation.HOST_TO_DEVICE
    assert rates["GPU1", "host"].bytes_per_s == pytest.approx(55.3e9)
    assert {rate.size_bytes for rate in found.rates} == {1 << 30}


def test_symm_allreduce():
    reading = parse_symm_allreduce((H200 / "symm-allreduce.txt").read_text(), "x")
    curves = curves_of_symm_allreduce(reading, "x", group=("GPU0", "GPU1"))
    found = {curve.key.implementation: curve for curve in curves}
    assert set(found) == {"torch_nccl", "one_shot", "two_shot"}
    assert {curve.key.launch for curve in curves} == {Launch.GRAPH}
    assert found["two_shot"].points[2].time_s == pytest.approx(7.2e-6)
    assert [point.wrong for point in found["one_shot"].points] == [0] * 9
    assert [point.wrong for point in found["two_shot"].points] == [None] * 9
    assert reading.notes == ()


def test_symm_allreduce_that_differs_is_said():
    reading = parse_symm_allreduce("64 {'nccl': 9.0, 'ok': False, 'one_shot': 6.0}\nx\n", "f")
    assert reading.points["one_shot"][0].wrong == 1
    assert reading.notes == (
        "f: one_shot differs from nccl at 64 B",
        "f: line not understood: 'x'",
    )


@pytest.mark.parametrize("parse", [parse_peer_copies, parse_symm_allreduce])
@given(text=st.text(max_size=200))
def test_scripts_raise_only_our_error(parse, text):
    for whole in (text, f"peer_access 0 push {text}us", f"12 {{'nccl': {text}}}"):
        with contextlib.suppress(InputError):
            parse(whole, "x")
