"""Tables of nccl-tests: columns old and new, all recorded files, truncation, several tables."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import linkbound
from linkbound.errors import InputError
from linkbound.links import Arm, Launch, Operation, bus_factor, curves_of_run, parse_nccl_tests
from linkbound.links.types import Timing

CASES = Path(__file__).parents[1] / "cases"
RECORDED = Path(linkbound.__file__).parent / "recorded" / "h200-pair" / "nccl-tests"
FILES = sorted([*CASES.glob("*/*_perf.txt"), *RECORDED.glob("*.txt")])
HEAD = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor) graph: 0\n"
    "#  Rank  0 Group  0 Pid 1 on h device  0 [0000:01:00] X\n"
    "#  Rank  1 Group  0 Pid 1 on h device  1 [0000:02:00] X\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
)


def only(name: str):
    path = next(CASES.glob(name))
    (run,) = parse_nccl_tests(path.read_text(), path.name)
    return run


def recorded(name: str):
    (run,) = parse_nccl_tests((RECORDED / name).read_text(), name)
    return run


def halves(run):
    for row in run.rows:
        for half in (row.out_of_place, row.in_place):
            if half is not None:
                yield row, half


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_printed_bandwidths_follow_from_times(path):
    runs = parse_nccl_tests(path.read_text(), path.name)
    for run in runs:
        assert run.rows
        for row, half in halves(run):
            algbw = row.size_bytes / half.time_s
            rel = max(6e-4, 0.0051e-6 / half.time_s)  # times are printed to 10 ns or 4 digits
            assert half.algbw_bytes_per_s == pytest.approx(algbw, abs=5.1e6 + rel * algbw)
            if run.ranks and run.collective:
                busbw = algbw * bus_factor(run.collective, run.ranks)
                assert half.busbw_bytes_per_s == pytest.approx(busbw, abs=5.1e6 + rel * busbw)


def test_there_are_recorded_files():
    assert len(FILES) == 13


def test_h200_all_reduce_heading_and_rows():
    run = recorded("all_reduce.p2p-on.txt")
    assert (run.collective, run.ranks, run.launch) == ("all_reduce", 2, Launch.EAGER)
    assert (run.version, run.nccl_version) == ("2.19.6", "2.28.9")
    assert [device.bus_id for device in run.devices] == ["0000:00:06", "0000:00:07"]
    assert [device.name for device in run.devices] == ["NVIDIA H200", "NVIDIA H200"]
    assert (run.out_of_bounds, run.complete, run.notes) == (0, True, ())
    assert len(run.rows) == 11
    last = run.rows[-1]
    assert last.size_bytes == 1 << 30
    assert last.count == 268435456
    assert (last.dtype, last.redop, last.root) == ("float", "sum", -1)
    assert last.out_of_place.time_s == pytest.approx(3266.28e-6)
    assert last.in_place.time_s == pytest.approx(3279.28e-6)
    assert last.out_of_place.wrong == 0


def test_graph_flag_is_the_launch_mode():
    assert recorded("all_reduce.graph.p2p-off.txt").launch is Launch.GRAPH


def test_all_to_all_has_no_reduction_and_no_check_in_place():
    row = recorded("alltoall.p2p-on.txt").rows[0]
    assert (row.count, row.redop) == (128, "none")
    assert row.out_of_place.wrong == 0
    assert row.in_place.wrong is None
    assert row.in_place.error is None


def test_long_times_lose_decimals():
    rows = recorded("sendrecv.p2p-off.txt").rows
    assert rows[-1].out_of_place.time_s == pytest.approx(45405.8e-6)
    old = only("032*/sendrecv_perf.txt").rows[-1]
    assert old.out_of_place.time_s == pytest.approx(29935e-6)


def test_wrong_values_are_counted_by_row_and_the_summary_counts_sizes():
    run = only("055*/all_reduce_perf.txt")
    bad = [row for row in run.rows if row.out_of_place.wrong]
    assert [(row.size_bytes, row.out_of_place.wrong, row.in_place.wrong) for row in bad] == [
        (1048576, 96, 32)
    ]
    assert run.out_of_bounds == 4
    assert not run.complete
    assert run.notes[0] == "the run failed: Test failure common.cu:1189"


def test_old_error_column_is_no_count():
    run = only("057*/all_reduce_perf.txt")
    assert run.ranks is None
    assert run.rows[0].out_of_place == Timing(
        time_s=93.73e-6, algbw_bytes_per_s=0.04e9, busbw_bytes_per_s=0.09e9, error=1e-6
    )
    assert "the error column is a rounding error, not a count of wrong elements" in run.notes


def test_rows_without_heading_and_with_log_lines_between():
    run = only("004*/all_reduce_perf.txt")
    assert len(run.rows) == 9
    assert run.rows[0].out_of_place.wrong is None
    assert run.rows[0].out_of_place.error == 0.0
    assert run.collective == "all_reduce"
    assert "collective all_reduce taken from the file name" in run.notes


def test_run_that_failed_before_its_first_row():
    run = only("068*/nccl-tests.txt")
    assert run.rows == ()
    assert not run.complete
    assert run.notes[0].startswith("the run failed: Test CUDA failure common.cu:1030")


def test_one_rank_has_no_bus_bandwidth_and_gives_no_curve():
    run = only("006*/all_reduce_perf.txt")
    assert run.ranks == 1
    assert bus_factor("all_reduce", 1) == 0
    curves, notes = curves_of_run(run, arm=None)
    assert curves == ()
    assert "one rank crosses no link" in notes[0]


def test_several_tables_in_one_file():
    text = "".join((RECORDED / name).read_text() for name in sorted(FILES_OF_MACHINE))
    runs = parse_nccl_tests(text, "all.txt")
    assert [run.collective for run in runs] == [
        "all_reduce",
        "all_reduce",
        "all_reduce",
        "all_reduce",
        "alltoall",
        "alltoall",
        "sendrecv",
        "sendrecv",
    ]
    assert [len(run.rows) for run in runs] == [7, 7, 11, 11, 11, 11, 11, 11]
    assert all(run.complete for run in runs)


FILES_OF_MACHINE = [path.name for path in FILES if path.parent == RECORDED]


def test_truncated_row_keeps_its_first_half():
    text = (RECORDED / "all_reduce.p2p-on.txt").read_text()
    cut = text[: text.index("35.48  118.22") + len("35.48  118.22  118.22       0    36.")]
    (run,) = parse_nccl_tests(cut, "cut.txt")
    assert len(run.rows) == 7
    assert run.rows[-1].in_place is None
    assert run.rows[-1].out_of_place.time_s == pytest.approx(35.48e-6)
    assert not run.complete
    assert "row of 4194304 B was cut after the out-of-place half" in run.notes
    assert "no summary line: the output is truncated or an excerpt" in run.notes


def test_mpi_tags_are_dropped():
    text = (RECORDED / "all_reduce.p2p-on.txt").read_text()
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines())
    assert parse_nccl_tests(tagged, "x") == parse_nccl_tests(text, "x")


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("alltoall", 2, 0.5),
        ("sendrecv", 8, 1.0),
        ("broadcast", 8, 1.0),
    ],
)
def test_bus_factor(collective, ranks, factor):
    assert bus_factor(collective, ranks) == factor


def test_bus_factor_of_an_unknown_name():
    with pytest.raises(ValueError, match="'allreduce' is not a test"):
        bus_factor("allreduce", 2)


def test_curve_of_a_run():
    (curve,), notes = curves_of_run(recorded("sendrecv.p2p-on.txt"), arm=Arm.NCCL)
    assert notes == ()
    assert curve.key.operation is Operation.SEND_RECV
    assert curve.key.group == ("GPU0", "GPU1")
    assert curve.key.method == "nccl-tests sendrecv_perf"
    point = curve.points[0]
    row = recorded("sendrecv.p2p-on.txt").rows[0]
    times = (row.out_of_place.time_s, row.in_place.time_s)
    assert (point.time_s, point.low_s, point.high_s) == (times[0], min(times), max(times))
    assert (point.n, point.wrong) == (2, 0)


def test_curve_over_two_hosts_names_them():
    (curve,), _ = curves_of_run(only("055*/all_reduce_perf.txt"), arm=None)
    assert curve.key.group == ("hostA/GPU0", "hostB/GPU0")
    assert {point.size_bytes: point.wrong for point in curve.points}[1048576] == 128


def test_group_given_by_the_caller():
    run = only("004*/all_reduce_perf.txt")
    (curve,), notes = curves_of_run(run, arm=Arm.P2P, group=("GPU2", "GPU3"))
    assert curve.key.group == ("GPU2", "GPU3")
    assert "taken as eager" in notes[0]
    assert curve.points[0].wrong is None


def test_two_types_are_two_curves_and_repeats_are_merged():
    rows = (
        "  8  2  float  sum  -1  10.0  0.00  0.00  0  12.0  0.00  0.00  0\n"
        "  8  2  float  sum  -1  14.0  0.00  0.00  0  15.0  0.00  0.00  3\n"
        "  8  4   half  sum  -1   9.0  0.00  0.00  0   9.5  0.00  0.00  0\n"
    )
    (run,) = parse_nccl_tests(HEAD + rows, "all_reduce_perf.txt")
    (first, second), _ = curves_of_run(run, arm=Arm.NCCL)
    assert first.key.method == "nccl-tests all_reduce_perf float sum"
    assert second.key.method == "nccl-tests all_reduce_perf half sum"
    (point,) = first.points
    assert point.time_s == pytest.approx(12e-6)
    assert (point.low_s, point.high_s) == (pytest.approx(10e-6), pytest.approx(15e-6))
    assert (point.n, point.wrong) == (4, 3)


def test_row_that_is_no_row_is_a_note():
    rows = "  8  2  float  sum  -1  nan  0.00  0.00  0  12.0  0.00  0.00  0\n"
    (run,) = parse_nccl_tests(HEAD + rows, "all_reduce_perf.txt")
    assert run.rows == ()
    assert run.notes[0].startswith("row not readable: '8  2  float")


@pytest.mark.parametrize("text", ["", "hello\n", "1 2 3\n", "\x00\x01"])
def test_no_table(text):
    with pytest.raises(InputError, match=r"x.txt: no table of nccl-tests was found"):
        parse_nccl_tests(text, "x.txt")


@given(st.text(max_size=300))
def test_only_our_error(text):
    try:
        parse_nccl_tests(HEAD + text, "x")
        parse_nccl_tests(text, "x")
    except InputError:
        pass


@given(st.data())
def test_cut_anywhere_gives_a_prefix_of_the_rows(data):
    text = (RECORDED / "alltoall.p2p-off.txt").read_text()
    whole = parse_nccl_tests(text, "x")[0].rows
    end = data.draw(st.integers(0, len(text)))
    try:
        (run,) = parse_nccl_tests(text[:end], "x")
    except InputError:
        return
    for row, reference in zip(run.rows[:-1], whole, strict=False):
        assert row == reference
