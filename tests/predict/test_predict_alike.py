"""What was timed over one group prices another that is joined alike, wider and said so."""

from itertools import permutations

import pytest

from linkbound.evidence.types import Provenance
from linkbound.links import Arm, Curve, CurveKey, CurvePoint, Launch, Operation, PairRate
from linkbound.predict.alike import ALIKE_SPREAD, links_alike
from linkbound.predict.book import CurveBook
from linkbound.topology.types import (
    Capability,
    Gpu,
    Machine,
    Pair,
    PairPath,
    PathKind,
    PeerStatus,
)

MIB = 1024**2
ISLANDS = ((0, 1, 2, 3), (4, 5, 6, 7))


def machine(
    *, unknown: bool = False, refused: tuple[int, int] | None = None, other_model: int | None = None
) -> Machine:
    """Two islands of four GPUs on two sockets."""

    def path(src: int, dst: int) -> PairPath:
        inside = src // 4 == dst // 4
        status = PeerStatus.CHIPSET_NOT_SUPPORTED if (src, dst) == refused else PeerStatus.OK
        return PairPath(
            pair=Pair(src=f"k{src}", dst=f"k{dst}"),
            kind=None if unknown else PathKind.NVLINK if inside else PathKind.SYS,
            nvlink_count=4 if inside and not unknown else None,
            status={Capability.READ: status},
        )

    return Machine(
        sources=("made",),
        gpus=tuple(
            Gpu(key=f"k{at}", label=f"GPU{at}", model="Y" if at == other_model else "X")
            for at in range(8)
        ),
        pairs=tuple(path(*pair) for pair in permutations(range(8), 2)),
    )


def labels(*numbers: int) -> tuple[str, ...]:
    return tuple(f"GPU{number}" for number in numbers)


def curve(group: tuple[str, ...], time_s: float, implementation: str = "nccl") -> Curve:
    return Curve(
        key=CurveKey(
            operation=Operation.ALL_REDUCE,
            implementation=implementation,
            group=group,
            arm=Arm.P2P,
            launch=Launch.GRAPH,
        ),
        points=tuple(
            CurvePoint(size_bytes=size, time_s=time_s, low_s=time_s * 0.9)
            for size in (1024, 16 * MIB)
        ),
        source="a file",
        record_ids=(f"id of {','.join(group)}",),
    )


def book(*curves: Curve, of: Machine | None = None) -> CurveBook:
    return CurveBook(of or machine(), curves, direct_limit_bytes=0)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((0, 1), (6, 5), True),
        ((0, 1, 2, 3), (7, 4, 6, 5), True),
        ((0, 4), (7, 3), True),
        ((0, 1, 4), (2, 5, 6), True),  # two of one island and one of the other
        ((0, 1), (0, 4), False),
        ((0, 1, 2, 4), (0, 1, 4, 5), False),
        ((0, 1), (4, 5, 6), False),
    ],
)
def test_islands(one: tuple[int, ...], other: tuple[int, ...], expected: bool) -> None:
    assert links_alike(machine(), labels(*one), labels(*other), ()) is expected


def test_what_makes_groups_unlike() -> None:
    one, other = labels(0, 1), labels(4, 5)
    assert not links_alike(machine(unknown=True), one, other, ())
    assert not links_alike(machine(refused=(5, 4)), one, other, ())
    assert not links_alike(machine(other_model=5), one, other, ())
    assert links_alike(machine(refused=(6, 5)), one, other, ())


@pytest.mark.parametrize(("slow", "expected"), [(100e9, True), (88e9, True), (50e9, False)])
def test_a_slow_pair_is_not_alike(slow: float, expected: bool) -> None:
    rates = [
        PairRate(
            src=f"GPU{src}",
            dst=f"GPU{dst}",
            operation=Operation.COPY,
            implementation="ce",
            method="m",
            bytes_per_s=slow if (src, dst) == (5, 4) else 100e9,
            arm=Arm.P2P,
        )
        for src, dst in permutations(range(8), 2)
    ]
    assert links_alike(machine(), labels(0, 1), labels(4, 5), rates) is expected


def test_the_price_of_a_group_that_was_not_timed() -> None:
    found = book(curve(labels(0, 1), 10e-6))
    timed = found.read(Operation.ALL_REDUCE, labels(6, 7), Arm.P2P, 1024)
    assert timed is not None
    time, used = timed
    assert time.provenance is Provenance.EXTRAPOLATED
    assert time.time_s == 10e-6
    assert time.low_s == pytest.approx(9e-6 * (1 - ALIKE_SPREAD))
    assert time.high_s == pytest.approx(10e-6 * (1 + ALIKE_SPREAD))
    assert used.key.group == labels(6, 7)
    assert used.source == "a file, timed over GPU0, GPU1, which are joined alike"
    assert used.record_ids == ("id of GPU0,GPU1",)
    # Across the sockets nothing was timed, nor copied.
    assert found.read(Operation.ALL_REDUCE, labels(0, 4), Arm.P2P, 1024) is None


def test_the_slowest_of_several_alike_and_its_own_where_there_is_one() -> None:
    found = book(curve(labels(0, 1), 10e-6), curve(labels(2, 3), 12e-6))
    for group, expected in ((labels(4, 5), 12e-6), (labels(0, 1), 10e-6)):
        curve_read = found.read(Operation.ALL_REDUCE, group, Arm.P2P, MIB)
        assert curve_read is not None
        assert curve_read[0].time_s == pytest.approx(expected)


def test_the_engine_s_own_all_reduce_is_carried_too() -> None:
    own = CurveBook(
        machine(),
        (curve(labels(0, 1), 5e-6, "engine"), curve(labels(2, 3), 9e-6)),
        direct_limit_bytes=8 * MIB,
    )
    for arm, expected in ((Arm.P2P, 5e-6), (Arm.NCCL, 9e-6)):
        found = own.read(Operation.ALL_REDUCE, labels(4, 5), arm, 1024)
        assert found is not None
        assert found[0].time_s == expected
