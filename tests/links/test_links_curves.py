"""Reading curves at a size, finding them, the fits, the arms."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import linkbound
from linkbound.evidence.types import Provenance
from linkbound.links import (
    MEANING,
    Arm,
    Curve,
    CurveKey,
    CurvePoint,
    Launch,
    Operation,
    find,
    find_all,
    fit,
    is_open,
    nccl_environment,
    read,
    read_links,
)
from linkbound.links.curves import merge_repeats
from linkbound.links.fit import largest_decade_slope

RECORDED = Path(linkbound.__file__).parent / "recorded" / "h200-pair"
PAIR = ("GPU0", "GPU1")
MIB = 1 << 20


def key(implementation="nccl", arm=Arm.NCCL, operation=Operation.ALL_REDUCE, group=PAIR, **more):
    return CurveKey(
        operation=operation, implementation=implementation, group=group, arm=arm, **more
    )


def line(alpha_s, bytes_per_s, sizes, of=None, provenance=Provenance.MEASURED):
    points = tuple(CurvePoint(size_bytes=n, time_s=alpha_s + n / bytes_per_s) for n in sizes)
    return Curve(key=of or key(), points=points, provenance=provenance)


def recorded(name, **known):
    path = RECORDED / name
    return read_links(path.read_bytes(), path.name, **known).curves


@pytest.fixture(scope="module")
def machine():
    curves = []
    for path in sorted((RECORDED / "nccl-tests").glob("*.txt")):
        curves.extend(read_links(path.read_bytes(), path.name).curves)
    curves.extend(recorded("peer-copies.txt"))
    curves.extend(recorded("symm-allreduce.txt", group=PAIR))
    return tuple(curves)


SIZES = [4**k for k in range(3, 15)]


def test_exact_point_is_measured_with_its_repeats(machine):
    curve = find(machine, Operation.ALL_REDUCE, PAIR, Arm.NCCL, Launch.GRAPH)
    timed = read(curve, 4096)
    assert timed.time_s == pytest.approx(6.67e-6)
    assert timed.low_s == pytest.approx(6.52e-6)
    assert timed.high_s == pytest.approx(6.67e-6)
    assert timed.provenance is Provenance.MEASURED


def test_between_points_is_interpolated_in_logarithms(machine):
    curve = find(machine, Operation.ALL_REDUCE, PAIR, Arm.NCCL, Launch.GRAPH)
    timed = read(curve, 8192)
    assert timed.time_s == pytest.approx(math.sqrt(6.67e-6 * 7.08e-6))
    assert timed.provenance is Provenance.INTERPOLATED
    assert timed.low_s < 6.67e-6
    assert timed.high_s >= 7.08e-6


def test_below_the_smallest_is_flat_and_said(machine):
    curve = find(machine, Operation.ALL_REDUCE, PAIR, Arm.NCCL, Launch.GRAPH)
    timed = read(curve, 8)
    assert timed.time_s == pytest.approx(6.53e-6)
    assert timed.provenance is Provenance.EXTRAPOLATED
    assert timed.low_s < 6.21e-6


def test_above_the_largest_is_said_and_holds_the_truth(machine):
    """The graph curve ends at 4 MiB; the eager one shows what the same path does beyond."""
    graph = find(machine, Operation.ALL_REDUCE, PAIR, Arm.NCCL, Launch.GRAPH)
    eager = find(machine, Operation.ALL_REDUCE, PAIR, Arm.NCCL, Launch.EAGER)
    assert graph.points[-1].size_bytes == 4 * MIB
    assert eager.points[-1].size_bytes == 1024 * MIB
    assert graph.points[-1].size_bytes < 64 * MIB
    timed = read(graph, 64 * MIB)
    assert timed.provenance is Provenance.EXTRAPOLATED
    assert timed.low_s < read(eager, 64 * MIB).time_s < timed.high_s


def test_single_point_scales_by_its_rate_above_and_opens_wide_below():
    curve = line(0, 1e9, [MIB])
    assert read(curve, 2 * MIB).time_s == pytest.approx(2 * MIB / 1e9)
    below = read(curve, MIB / 4)
    assert below.time_s == pytest.approx(MIB / 1e9)
    assert below.low_s == pytest.approx(0.95 * MIB / 4 / 1e9)


def test_a_prior_stays_a_prior():
    curve = line(1e-5, 1e9, SIZES, provenance=Provenance.PRIOR)
    assert read(curve, SIZES[0]).provenance is Provenance.PRIOR
    assert read(curve, SIZES[0] + 1).provenance is Provenance.PRIOR


@pytest.mark.parametrize("size", [0, -1])
def test_no_size_no_time(size):
    with pytest.raises(ValueError, match="has no time on a curve"):
        read(line(1e-5, 1e9, SIZES), size)


@given(
    st.floats(1e-7, 1e-3),
    st.floats(1e8, 1e12),
    st.floats(1, 1e12),
)
def test_interval_holds_the_line_it_was_sampled_from(alpha, rate, size):
    timed = read(line(alpha, rate, SIZES), size)
    truth = alpha + size / rate
    assert timed.low_s <= truth * (1 + 1e-9)
    assert timed.high_s >= truth * (1 - 1e-9)
    assert timed.low_s <= timed.time_s <= timed.high_s


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8), st.floats(1, 1e9), st.floats(1.0, 4.0)
)
def test_reading_rises_with_size_where_the_points_do(times, size, factor):
    points = tuple(
        CurvePoint(size_bytes=4 ** (k + 1), time_s=t) for k, t in enumerate(sorted(times))
    )
    curve = Curve(key=key(), points=points)
    assert read(curve, size).time_s <= read(curve, size * factor).time_s * (1 + 1e-9)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8), st.floats(1, 1e9))
def test_noisy_points_still_give_an_ordered_interval(times, size):
    points = tuple(CurvePoint(size_bytes=4 ** (k + 1), time_s=t) for k, t in enumerate(times))
    timed = read(Curve(key=key(), points=points), size)
    assert 0 < timed.low_s <= timed.time_s <= timed.high_s


def test_merge_repeats_sorts_and_keeps_the_extremes():
    points = [
        CurvePoint(size_bytes=8, time_s=2.0, wrong=1),
        CurvePoint(size_bytes=4, time_s=1.0),
        CurvePoint(size_bytes=8, time_s=3.0, low_s=2.5, high_s=9.0, n=2, wrong=2),
    ]
    first, second = merge_repeats(points)
    assert first == points[1]
    assert second.time_s == 2.5
    assert (second.low_s, second.high_s) == (pytest.approx(1.9), 9.0)
    assert (second.n, second.wrong) == (3, 3)


# --- finding ---


def test_p2p_arm_uses_the_curve_of_nccl_and_adds_the_engines_own(machine):
    wide = find_all(machine, Operation.ALL_REDUCE, PAIR, Arm.P2P, Launch.GRAPH)
    assert [curve.key.implementation for curve in wide] == [
        "nccl",
        "one_shot",
        "two_shot",
        "torch_nccl",
    ]
    narrow = find_all(machine, Operation.ALL_REDUCE, PAIR, Arm.NCCL, Launch.GRAPH)
    assert [curve.key.implementation for curve in narrow] == ["nccl", "torch_nccl"]
    staged = find_all(machine, Operation.ALL_REDUCE, PAIR, Arm.STAGED, Launch.GRAPH)
    assert [curve.key.arm for curve in staged] == [Arm.STAGED]
    assert find(machine, Operation.ALL_REDUCE, PAIR, Arm.NET, Launch.GRAPH) is None


def test_ranks_of_a_collective_match_in_any_order_copies_only_in_theirs(machine):
    back = ("GPU1", "GPU0")
    assert find(machine, Operation.ALL_REDUCE, back, Arm.NCCL, Launch.EAGER) is not None
    ahead = find(machine, Operation.COPY, PAIR, Arm.P2P, Launch.EAGER)
    assert ahead.key.method == "cudaMemcpyPeerAsync, push"
    assert len(ahead.points) == 6
    behind = find(machine, Operation.COPY, back, Arm.P2P, Launch.EAGER)
    assert behind.key.method == "torch copy_"
    assert find(machine, Operation.ALL_REDUCE, ("GPU0", "GPU2"), Arm.NCCL, Launch.EAGER) is None


def test_arms_of_all_to_all_and_send_recv(machine):
    for operation in (Operation.ALL_TO_ALL, Operation.SEND_RECV):
        on = find(machine, operation, PAIR, Arm.NCCL, Launch.EAGER)
        off = find(machine, operation, PAIR, Arm.STAGED, Launch.EAGER)
        assert read(on, 1 << 30).time_s < read(off, 1 << 30).time_s / 10


def test_company_is_another_curve():
    alone = line(1e-5, 1e9, SIZES)
    busy = line(2e-5, 1e9, SIZES, of=key(concurrency="all pairs"))
    assert find((busy, alone), Operation.ALL_REDUCE, PAIR, Arm.NCCL, Launch.EAGER) is alone


# --- fits ---


@given(st.floats(1e-6, 1e-4), st.floats(1e9, 1e12))
def test_fit_finds_the_line_back(alpha, rate):
    sizes = [2**k for k in range(3, 41)]
    found = fit(line(alpha, rate, sizes))
    assert found.latency_s == pytest.approx(alpha, rel=0.15)
    assert found.bytes_per_s == pytest.approx(rate, rel=0.02)
    assert found.half_size_bytes == pytest.approx(alpha * rate, rel=0.1)


def test_fit_of_the_recorded_copies(machine):
    copy = find(machine, Operation.COPY, PAIR, Arm.P2P, Launch.EAGER)
    found = fit(copy)
    assert found.latency_s == pytest.approx(5.15e-6)
    assert found.latency_spread_s == pytest.approx(0.1e-6)
    assert found.bytes_per_s == pytest.approx(397.3e9, rel=1e-3)
    assert found.bytes_per_s_spread is None
    assert found.half_size_bytes == pytest.approx(3.18e6, rel=0.01)


def test_regime_that_is_not_reached_is_none(machine):
    graph = fit(find(machine, Operation.ALL_REDUCE, PAIR, Arm.NCCL, Launch.GRAPH))
    assert graph.latency_s == pytest.approx(6.875e-6)
    assert graph.bytes_per_s is None
    assert graph.half_size_bytes is None
    large_only = fit(line(1e-5, 1e9, [MIB * 64, MIB * 256, MIB * 1024]))
    assert large_only.latency_s is None
    assert large_only.bytes_per_s == pytest.approx(1e9)
    assert large_only.bytes_per_s_spread is None
    assert large_only.half_size_bytes is None
    one = fit(line(1e-5, 1e9, [MIB]))
    assert (one.latency_s, one.bytes_per_s, one.half_size_bytes) == (None, None, None)


def test_spread_over_a_full_decade():
    points = (
        CurvePoint(size_bytes=100, time_s=1.0),
        CurvePoint(size_bytes=200, time_s=2.0),
        CurvePoint(size_bytes=800, time_s=7.0),
    )
    curve = Curve(key=key(), points=points)
    assert largest_decade_slope(curve) == pytest.approx(700 / 6)
    assert fit(curve).bytes_per_s_spread == pytest.approx(20)


def test_protocol_change_does_not_bend_the_figures():
    """Below 1 KiB one protocol, above another with a higher start: each figure from its own end."""
    points = tuple(
        CurvePoint(size_bytes=n, time_s=(5e-6 if n < 1024 else 30e-6) + n / 1e10) for n in SIZES
    )
    found = fit(Curve(key=key(), points=points))
    assert found.latency_s == pytest.approx(5e-6, rel=0.02)
    assert found.bytes_per_s == pytest.approx(1e10, rel=1e-6)


# --- arms ---


def test_environment_of_each_arm():
    assert nccl_environment(Arm.P2P) == {"NCCL_P2P_LEVEL": "SYS", "NCCL_NVLS_ENABLE": "0"}
    assert nccl_environment(Arm.NCCL) == nccl_environment(Arm.P2P)
    assert nccl_environment(Arm.STAGED) == {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    assert nccl_environment(Arm.NET) == {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
    }


@pytest.mark.parametrize("arm", list(Arm))
def test_multicast_only_on_request(arm):
    assert "NCCL_NVLS_ENABLE" not in nccl_environment(arm, allow_multicast=True)
    assert MEANING[arm].endswith(".")


def test_what_is_open_where():
    assert is_open("nccl", Arm.P2P, Arm.NCCL)
    assert is_open("two_shot", Arm.P2P, Arm.P2P)
    assert not is_open("two_shot", Arm.P2P, Arm.NCCL)
    assert not is_open("nccl", Arm.NCCL, Arm.STAGED)
    assert not is_open("nccl", None, Arm.STAGED)
    assert is_open("pinned", None, None)
