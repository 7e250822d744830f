"""Which curve prices what: measured here, published, or put together, and never in silence."""

import itertools

import msgspec
import pytest
from predict_cases import engine_on

from linkbound.evidence.study import Study
from linkbound.evidence.types import Provenance
from linkbound.links import (
    Arm,
    Curve,
    CurveKey,
    CurvePoint,
    Launch,
    Operation,
    PairLatency,
    PairRate,
)
from linkbound.predict.assumed import assumed_curve, wire_share
from linkbound.predict.book import CurveBook
from linkbound.predict.priors import engine_all_reduce_prior
from linkbound.predict.stated import StatedBook
from linkbound.topology.types import Gpu, Machine, Pair, PairPath, PathKind

PAIR = ("GPU0", "GPU1")
LIMIT = 8 * 1024**2


def h200s(kind: PathKind | None) -> Machine:
    """Two H200, each way joined as said."""
    return Machine(
        sources=("hand-made",),
        gpus=tuple(Gpu(key=label, label=label, model="NVIDIA H200") for label in PAIR),
        pairs=tuple(
            PairPath(pair=Pair(src=src, dst=dst), kind=kind) for src, dst in (PAIR, PAIR[::-1])
        ),
    )


H200 = h200s(PathKind.NVLINK)


def curve(
    implementation: str, launch: Launch, arm: Arm, *points: tuple[int, float], method: str = ""
) -> Curve:
    return Curve(
        key=CurveKey(
            operation=Operation.ALL_REDUCE,
            implementation=implementation,
            group=PAIR,
            arm=arm,
            launch=launch,
            method=method,
        ),
        points=tuple(CurvePoint(size_bytes=size, time_s=time_s) for size, time_s in points),
        source=f"{implementation} {launch.value}",
        record_ids=(f"id of {implementation} {launch.value}",),
    )


def book(*curves: Curve, machine: Machine = H200) -> CurveBook:
    return CurveBook(machine, curves, direct_limit_bytes=LIMIT)


GRAPH = curve("nccl", Launch.GRAPH, Arm.NCCL, (1024, 5e-6), (65_536, 8e-6), (LIMIT, 70e-6))
EAGER = curve("nccl", Launch.EAGER, Arm.NCCL, (1024, 20e-6), (LIMIT, 90e-6), (8 * LIMIT, 300e-6))
TORCH = curve("torch_nccl", Launch.EAGER, Arm.NCCL, (1024, 25e-6), (8 * LIMIT, 280e-6))


def test_the_engine_reduces_small_messages_itself() -> None:
    found = book(GRAPH)
    small = found.curve(Operation.ALL_REDUCE, PAIR, Arm.P2P, LIMIT - 1)
    large = found.curve(Operation.ALL_REDUCE, PAIR, Arm.P2P, LIMIT)
    assert small is not None
    assert large is not None
    assert (small.key.implementation, large.key.implementation) == ("engine", "nccl")
    for arm in (Arm.NCCL, Arm.STAGED):
        other = found.curve(Operation.ALL_REDUCE, PAIR, arm, 8192)
        assert other is None or other.key.implementation == "nccl"
    gather = found.curve(Operation.ALL_GATHER, PAIR, Arm.P2P, 8192)
    assert gather is None


def test_the_prior_is_named_and_wide() -> None:
    found = book(GRAPH).read(Operation.ALL_REDUCE, PAIR, Arm.P2P, 65_536)
    assert found is not None
    timed, source = found
    assert timed.time_s == 4.8e-6
    assert (timed.low_s, timed.high_s) == pytest.approx((3.6e-6, 6.0e-6))
    assert timed.provenance is Provenance.PRIOR
    assert source.source.startswith("prior: AIConfigurator 0.12.0")
    assert source.record_ids == ()


def test_a_measured_engine_curve_replaces_the_prior() -> None:
    own = curve("engine", Launch.GRAPH, Arm.P2P, (1024, 3e-6), (LIMIT, 40e-6))
    found = book(GRAPH, own).read(Operation.ALL_REDUCE, PAIR, Arm.P2P, 1024)
    assert found is not None
    assert found[0].time_s == 3e-6
    assert found[0].provenance is Provenance.MEASURED


def test_other_gpus_have_no_prior_and_take_nccl() -> None:
    models: tuple[tuple[str | None, ...], ...] = (
        ("NVIDIA H200", "NVIDIA H200", "NVIDIA H200"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        (None, None),
    )
    for names in models:
        labels = tuple(f"GPU{index}" for index in range(len(names)))
        other = msgspec.structs.replace(
            H200,
            gpus=tuple(
                Gpu(key=label, label=label, model=name)
                for label, name in zip(labels, names, strict=True)
            ),
        )
        assert engine_all_reduce_prior(other, labels) is None
    mixed = msgspec.structs.replace(
        H200,
        gpus=(
            Gpu(key="GPU0", label="GPU0", model="NVIDIA H200"),
            Gpu(key="GPU1", label="GPU1", model="NVIDIA L40S"),
        ),
    )
    assert engine_all_reduce_prior(mixed, PAIR) is None
    found = book(GRAPH, machine=mixed).curve(Operation.ALL_REDUCE, PAIR, Arm.P2P, 8192)
    assert found is not None
    assert found.key.implementation == "nccl"


@pytest.mark.parametrize("kind", [PathKind.SYS, PathKind.PHB, PathKind.NODE, None])
def test_the_prior_of_nvlink_says_nothing_of_other_paths(kind: PathKind | None) -> None:
    assert engine_all_reduce_prior(h200s(PathKind.NVLINK), PAIR) is not None
    assert engine_all_reduce_prior(h200s(kind), PAIR) is None
    one_way = msgspec.structs.replace(H200, pairs=H200.pairs[:1])
    assert engine_all_reduce_prior(one_way, PAIR) is None
    found = book(GRAPH, machine=h200s(kind)).read(Operation.ALL_REDUCE, PAIR, Arm.P2P, 65_536)
    assert found is not None
    assert (found[0].time_s, found[1].key.implementation) == (8e-6, "nccl")


def test_a_graph_for_small_calls_and_torch_for_large_ones() -> None:
    found = book(EAGER, TORCH, GRAPH).curve(Operation.ALL_REDUCE, PAIR, Arm.NCCL, 8192)
    assert found is not None
    assert [(point.size_bytes, point.time_s) for point in found.points] == [
        (1024, 5e-6),
        (65_536, 8e-6),
        (LIMIT, 70e-6),
        (8 * LIMIT, 280e-6),
    ]
    assert found.source == "nccl graph; torch_nccl eager"
    assert found.record_ids == ("id of nccl graph", "id of torch_nccl eager")


def test_without_a_graph_the_eager_times_stand() -> None:
    found = book(EAGER).curve(Operation.ALL_REDUCE, PAIR, Arm.NCCL, 8192)
    assert found is not None
    assert found.points == EAGER.points
    assert found.provenance is Provenance.MEASURED


SWEEP = ((1024, 1e-5), (LIMIT, 9e-5), (8 * LIMIT, 3e-4))


def test_a_sweep_goes_before_a_single_size_wherever_it_stands() -> None:
    sweep = curve("nccl", Launch.EAGER, Arm.P2P, *SWEEP, method="sweep")
    single = curve("nccl", Launch.EAGER, Arm.P2P, (64 * 1024**2, 1e-3), method="single")
    for curves in ((sweep, single), (single, sweep)):
        found = book(*curves).curve(Operation.ALL_REDUCE, PAIR, Arm.NCCL, 8192)
        assert found is not None
        assert found.points == sweep.points


def test_the_arm_that_is_asked_for_decides_between_two_of_one_tool() -> None:
    mine = curve("nccl", Launch.EAGER, Arm.P2P, *SWEEP, method="p2p")
    other = curve("nccl", Launch.EAGER, Arm.NCCL, (1024, 5e-5), (LIMIT, 1e-3), method="nccl")
    for curves in ((mine, other), (other, mine)):
        for arm, wanted in ((Arm.P2P, mine), (Arm.NCCL, other)):
            found = book(*curves).curve(Operation.ALL_REDUCE, PAIR, arm, LIMIT)
            assert found is not None
            assert found.points[0] == wanted.points[0]


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))))
def test_the_tool_decides_and_never_the_position(order: tuple[int, ...]) -> None:
    """Own sweeps before torch's and nccl-tests': one process a GPU, and every result checked."""
    curves = (
        curve("nccl", Launch.GRAPH, Arm.P2P, (16, 4e-6), (LIMIT, 6e-5), method="linkbound links n"),
        curve("nccl", Launch.EAGER, Arm.P2P, (8 * LIMIT, 2.7e-4), (64 * LIMIT, 2e-3)),
        curve("torch_nccl", Launch.GRAPH, Arm.NCCL, (1024, 1e-5), (LIMIT, 6e-5)),
        GRAPH,
        TORCH,
    )
    found = book(*(curves[index] for index in order))
    for arm in (Arm.P2P, Arm.NCCL):
        joined = found.curve(Operation.ALL_REDUCE, PAIR, arm, LIMIT)
        assert joined is not None
        assert [point.time_s for point in joined.points] == [4e-6, 6e-5, 2.8e-4]
        assert joined.source == "nccl graph; torch_nccl eager"
    small = book(EAGER, TORCH).curve(Operation.ALL_REDUCE, PAIR, Arm.NCCL, 8192)
    assert small is not None
    assert small.points == EAGER.points


def test_direct_curves_do_not_price_the_staged_arm() -> None:
    assert book(GRAPH, EAGER).curve(Operation.ALL_REDUCE, PAIR, Arm.STAGED, 8192) is None
    assert book(GRAPH, EAGER).read(Operation.ALL_REDUCE, PAIR, Arm.STAGED, 8192) is None


def test_the_recorded_pair_in_each_arm(h200_study: Study) -> None:
    found = engine_on(h200_study).book
    for arm, at_4_kib, at_64_mib in ((Arm.NCCL, 6.04e-6, 246.6e-6), (Arm.STAGED, 9.57e-6, 2412e-6)):
        small = found.read(Operation.ALL_REDUCE, PAIR, arm, 4096)
        large = found.read(Operation.ALL_REDUCE, PAIR, arm, 64 * 1024**2)
        assert small is not None
        assert large is not None
        # The medians of the pair's own sweep: from a graph up to 16 MiB, then eager.
        assert small[0].time_s == pytest.approx(at_4_kib, rel=0.001)
        assert large[0].time_s == pytest.approx(at_64_mib, rel=0.001)
        assert small[1].source == "collectives.jsonl"
        records = [h200_study.get(one) for one in small[1].record_ids]
        assert [(one.kind, one.subject["launch"]) for one in records] == [
            ("links.curve", "graph"),
            ("links.curve", "eager"),
        ]


def rate(src: str, dst: str, operation: Operation, gigabytes: float, arm: Arm) -> PairRate:
    return PairRate(
        src=src,
        dst=dst,
        operation=operation,
        implementation="copy_engine",
        method="hand-made",
        bytes_per_s=gigabytes * 1e9,
        arm=arm,
    )


RATES = (
    rate("GPU0", "GPU1", Operation.COPY, 10, Arm.P2P),
    rate("GPU1", "GPU0", Operation.COPY, 8, Arm.P2P),
    rate("GPU0", "GPU1", Operation.COPY_BOTH_WAYS, 12, Arm.P2P),
    rate("GPU1", "GPU0", Operation.COPY_BOTH_WAYS, 12, Arm.P2P),
    rate("GPU0", "GPU1", Operation.COPY, 4, Arm.STAGED),
    rate("GPU1", "GPU0", Operation.COPY, 4, Arm.STAGED),
)


def latency(method: str, microseconds: float, arm: Arm | None, dst: str = "GPU1") -> PairLatency:
    return PairLatency(src="GPU0", dst=dst, method=method, latency_s=microseconds * 1e-6, arm=arm)


ISSUED = "made by hand: issue interval of 16-byte copies"
LATENCIES = (latency(ISSUED, 1, Arm.P2P), latency(ISSUED, 15, Arm.STAGED))


def test_an_assumed_curve_is_a_roofline_and_says_so() -> None:
    found = assumed_curve(Operation.ALL_REDUCE, PAIR, Arm.P2P, RATES, LATENCIES)
    assert found is not None
    assert found.provenance is Provenance.ROOFLINE
    assert found.key.method == "roofline"
    assert found.source == (
        "roofline: 8.6 us (NCCL's constants) and 6.00 GB/s each way, "
        "the measured copy rate of the slowest pair"
    )
    last = found.points[-1]
    assert last.time_s == pytest.approx(8.6e-6 + last.size_bytes / 6e9)
    for point in found.points:
        assert point.low_s is not None
        assert point.high_s is not None
        assert point.low_s < 0.75 * point.time_s
        assert point.high_s > 1.2 * point.time_s


def test_staging_adds_its_latency_and_its_own_rate() -> None:
    found = assumed_curve(Operation.ALL_REDUCE, PAIR, Arm.STAGED, RATES, LATENCIES)
    assert found is not None
    assert found.points[0].time_s == pytest.approx(8.6e-6 + 14e-6 + 1024 / 4e9)
    assert "14.0 us of staging" in found.source
    send = assumed_curve(Operation.SEND_RECV, PAIR, Arm.P2P, RATES, LATENCIES)
    assert send is not None
    assert send.points[-1].time_s == pytest.approx(7.6e-6 + send.points[-1].size_bytes / 8e9)


@pytest.mark.parametrize("order", [1, -1])
def test_staging_is_the_difference_of_one_kind_of_latency(order: int) -> None:
    """Round trips, launches and host times mean something else than a copy's issue interval."""
    others = (
        latency("linkbound links end to end ce_push, asleep", 26.5, Arm.P2P),
        latency("linkbound links flag ping-pong, half a lap", 0.7, Arm.P2P),
        latency("p2pBandwidthLatencyTest (CPU): host time to issue", 90, Arm.STAGED),
        latency("linkbound links issue interval ce_pull", 13.3, Arm.P2P),
        latency("nvbandwidth: SM read round trip", 80, None),
    )
    found = assumed_curve(
        Operation.ALL_REDUCE, PAIR, Arm.STAGED, RATES, (*others, *LATENCIES)[::order]
    )
    assert found is not None
    assert "14.0 us of staging" in found.source
    none = assumed_curve(Operation.ALL_REDUCE, PAIR, Arm.STAGED, RATES, others)
    assert none is not None
    assert "staging" not in none.source


def test_where_peer_access_is_refused_the_staged_copy_counts_whole() -> None:
    found = assumed_curve(Operation.ALL_REDUCE, PAIR, Arm.STAGED, RATES, LATENCIES[1:])
    assert found is not None
    assert "15.0 us of staging" in found.source


def test_sockets_are_not_priced_as_staged_copies() -> None:
    assert assumed_curve(Operation.ALL_REDUCE, PAIR, Arm.NET, RATES, LATENCIES) is None


def test_without_a_rate_of_every_pair_nothing_is_assumed() -> None:
    assert assumed_curve(Operation.ALL_REDUCE, PAIR, Arm.P2P, RATES[:1], ()) is None
    three = ("GPU0", "GPU1", "GPU2")
    assert assumed_curve(Operation.ALL_REDUCE, three, Arm.P2P, RATES, ()) is None
    assert assumed_curve(Operation.COPY, PAIR, Arm.P2P, RATES, ()) is None


def test_the_desktop_is_priced_by_rooflines(desktop_study: Study) -> None:
    found = engine_on(desktop_study, "5060ti-pair").book
    for arm in (Arm.P2P, Arm.NCCL, Arm.STAGED):
        timed = found.read(Operation.ALL_REDUCE, ("GPU1", "GPU2"), arm, 65_536)
        assert timed is not None
        assert timed[0].provenance is Provenance.ROOFLINE
        assert timed[0].high_s > 1.5 * timed[0].low_s


def test_wire_shares() -> None:
    assert wire_share(Operation.ALL_REDUCE, 2) == 1
    assert wire_share(Operation.ALL_REDUCE, 8) == 1.75
    assert wire_share(Operation.ALL_GATHER, 4) == 0.75
    assert wire_share(Operation.SEND_RECV, 2) == 1


def test_a_stated_link() -> None:
    found = StatedBook(book(GRAPH), latency_s=10e-6, bytes_per_s=50e9)
    timed, source = found.read(Operation.ALL_REDUCE, PAIR, Arm.P2P, 5_000_000)
    assert timed.time_s == timed.low_s == timed.high_s == pytest.approx(110e-6)
    assert timed.provenance is source.provenance is Provenance.STATED
    assert source.source == "stated: 10.00 us and 50.00 GB/s"
