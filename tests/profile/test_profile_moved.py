"""Bytes that calls send against bytes that counters show."""

import pytest
from msgspec.structs import replace
from profile_results import SIZE, job, result

from linkbound.links.traffic import GpuBytes, Traffic
from linkbound.links.types import Arm, Operation
from linkbound.profile.launch import _counted
from linkbound.profile.moved import moved
from linkbound.profile.types import Call, RankPoint

LOGITS = 4 * 256 * 2


def _ranks(nvlink: int | None, host: int | None, steps: int = 10) -> tuple[RankPoint, ...]:
    """Two ranks of tp2; each GPU's ports count as much."""
    counted = tuple(
        GpuBytes(
            gpu=f"GPU{index}",
            nvlink_sent_bytes=nvlink,
            nvlink_received_bytes=nvlink,
            pcie_sent_bytes=host,
            pcie_received_bytes=0 if host is not None else None,
        )
        for index in range(2)
    )
    traffic = Traffic(source="fake", duration_s=1.0, moved=counted)
    first, second = result(job("tp2", Arm.P2P), [[0.01], [0.01]]).ranks
    return replace(first, traffic=traffic, traffic_steps=steps), second


def test_every_rank_sends_size_by_bus_factor() -> None:
    found = moved(_ranks(None, None))
    assert found is not None
    # All-reduce over two: each sends the whole; all-gather: each sends its half.
    assert found.sent_bytes == 2 * (7 * SIZE) + 2 * LOGITS / 2
    assert found.nvlink_bytes is None
    assert found.host_bytes is None


def test_one_shot_is_read_whole_by_every_peer() -> None:
    call = Call(
        kind="tensor",
        operation=Operation.ALL_REDUCE,
        implementation="one_shot",
        ranks=(0, 1, 2, 3),
        size_bytes=100,
        count=2,
    )
    ranks = [replace(_ranks(None, None)[0], rank=rank, calls=(call,)) for rank in range(4)]
    found = moved(ranks)
    assert found is not None
    assert found.sent_bytes == 4 * 3 * 100 * 2
    ring = [replace(one, calls=(replace(call, implementation="nccl"),)) for one in ranks]
    reduced = moved(ring)
    assert reduced is not None
    assert reduced.sent_bytes == 4 * 1.5 * 100 * 2


def test_a_send_is_counted_at_its_sender() -> None:
    call = Call(
        kind="pipeline",
        operation=Operation.SEND_RECV,
        implementation="nccl",
        ranks=(0, 1),
        size_bytes=64,
        count=2,
    )
    found = moved([replace(_ranks(None, None)[0], rank=rank, calls=(call,)) for rank in range(2)])
    assert found is not None
    assert found.sent_bytes == 128


def test_counted_bytes_are_those_of_a_step() -> None:
    found = moved(_ranks(nvlink=5000, host=300, steps=10))
    assert found is not None
    assert found.nvlink_bytes == 2 * 5000 / 10
    assert found.host_bytes == 2 * 300 / 10


def test_nothing_is_sent_by_one_gpu() -> None:
    assert moved(result(job("one"), [[0.01]]).ranks) is None


@pytest.mark.parametrize(
    ("arm", "share", "contradicted"),
    [
        (Arm.P2P, 1.1, False),
        (Arm.P2P, 0.1, True),
        (Arm.NCCL, 0.0, True),
        (Arm.STAGED, 0.0, False),
        (Arm.STAGED, 1.0, True),
    ],
)
def test_counters_that_show_another_path_are_a_finding(
    arm: Arm, share: float, contradicted: bool
) -> None:
    sent = 7 * SIZE + LOGITS / 2
    found = _counted(job("tp2", arm), _ranks(round(10 * share * sent), 0))
    assert [one.code for one in found] == ["counters-contradict-arm"] * contradicted


def test_without_nvlink_nothing_is_contradicted() -> None:
    assert _counted(job("tp2", Arm.P2P), _ranks(None, 10**9)) == ()
