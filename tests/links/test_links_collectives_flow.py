"""The whole flow of a job over fakes: verification, samples, rows, faults."""

import threading
from collections.abc import Callable

import pytest
from links_collectives_fake import (
    BYTES_PER_S,
    LATENCY_S,
    Fabric,
    FakeDevice,
    FakeExchange,
    FakeNccl,
)

from linkbound.links.live.collective_plan import OPERATIONS
from linkbound.links.live.collective_rank import Part, open_buffers, run_nccl, run_own
from linkbound.links.live.collective_types import (
    DTYPE_BYTES,
    CollectiveJob,
    Family,
    Placement,
    Processes,
)
from linkbound.links.live.nccl_library import NcclError
from linkbound.links.live.worker_collectives import parts_of
from linkbound.links.types import Arm, Launch, Operation


def job_of(ranks: int = 2, **changes: object) -> CollectiveJob:
    settings: dict[str, object] = {
        "family": Family.NCCL,
        "group": tuple(f"GPU{rank}" for rank in range(ranks)),
        "devices": tuple(str(rank) for rank in range(ranks)),
        "arm": Arm.P2P,
        "operations": OPERATIONS,
        "sizes_bytes": (256, 64),
        "samples": 4,
        **changes,
    }
    return CollectiveJob(**settings)  # type: ignore[arg-type]


def run(job: CollectiveJob, arrange: Callable[[Fabric], None] = lambda _: None) -> Fabric:
    fabric = Fabric(len(job.group), DTYPE_BYTES[job.dtype])
    arrange(fabric)
    parts = parts_of(job)
    errors: list[BaseException] = []

    def process(part: Part) -> None:
        try:
            exchange = FakeExchange(fabric, part.process, len(parts))
            buffers = open_buffers(part, lambda name: FakeDevice(fabric, int(name)))
            devices = {each.rank: each.device for each in buffers}
            if job.family is Family.OWN:
                run_own(part, buffers, exchange)
            else:
                run_nccl(part, buffers, FakeNccl(fabric, devices), exchange)  # type: ignore[arg-type]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=process, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return fabric


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_operation_is_verified_and_timed(ranks: int) -> None:
    job = job_of(ranks, sizes_bytes=(96, 192), samples=3)
    rows = run(job).rows
    assert all(row.wrong == 0 and row.reason is None for row in rows)
    # 6 operations x 2 sizes x 2 launches out of place, 4 of them in place too.
    assert len(rows) == 6 * 2 * 2 + 4 * 2 * 2
    assert {row.operation for row in rows} == set(OPERATIONS)
    for row in rows:
        assert row.group == job.group
        assert row.size_bytes in (96, 192)
        received = (
            row.size_bytes // ranks if row.operation is Operation.REDUCE_SCATTER else row.size_bytes
        )
        if row.operation is Operation.ALL_TO_ALL:
            received = row.size_bytes // ranks
        assert row.time_s == pytest.approx(LATENCY_S + received / BYTES_PER_S)


def test_one_process_for_all_ranks() -> None:
    rows = run(job_of(3, processes=Processes.ONE_FOR_ALL)).rows
    assert all(row.wrong == 0 and row.samples_s for row in rows)
    assert {row.facts["processes"] for row in rows} == {"one_for_all"}
    assert all(row.method.endswith("one process") for row in rows)


def test_float_elements() -> None:
    rows = run(job_of(2, dtype="float32")).rows
    assert all(row.wrong == 0 and row.facts["dtype"] == "float32" for row in rows)


def test_wrong_element_gives_a_row_without_a_time() -> None:
    def arrange(fabric: Fabric) -> None:
        fabric.spoil = lambda operation, _call: operation == "AllGather"

    rows = run(job_of(), arrange).rows
    for row in rows:
        if row.operation is Operation.ALL_GATHER:
            assert row.wrong == 1
            assert row.wrong_at_bytes == row.size_bytes - 2
            assert row.samples_s == ()
            assert row.reason is not None
            assert row.reason.code == "wrong-values"
        else:
            assert row.wrong == 0
            assert row.samples_s


def test_wrong_element_under_load_is_found_after_the_samples() -> None:
    def arrange(fabric: Fabric) -> None:
        fabric.spoil = lambda _operation, call: call > 10

    job = job_of(operations=(Operation.ALL_REDUCE,), launches=(Launch.EAGER,), sizes_bytes=(64,))
    first = run(job, arrange).rows[0]
    assert first.facts["placement"] == "out_of_place"
    assert first.wrong == 1
    assert first.samples_s == ()


def test_nccl_that_refuses_ends_the_process() -> None:
    def arrange(fabric: Fabric) -> None:
        fabric.refuse = "ncclCommInitRank failed: ncclSystemError."

    with pytest.raises(NcclError, match="ncclSystemError"):
        run(job_of(), arrange)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_own_kernels_take_what_they_can(ranks: int) -> None:
    job = job_of(
        ranks,
        family=Family.OWN,
        operations=(Operation.ALL_REDUCE,),
        sizes_bytes=(16, 72, 512),
        samples=3,
        placements=(Placement.OUT_OF_PLACE,),
    )
    fabric = run(job)
    assert all(row.wrong == 0 and row.samples_s for row in fabric.rows)
    done = {(row.method, row.size_bytes) for row in fabric.rows}
    push, pull = "one_shot all_reduce bfloat16, push", "one_shot all_reduce bfloat16, pull"
    assert (push, 72) in done
    assert (f"{push}, launches apart", 72) in done
    assert (pull, 72) not in done
    assert {(pull, 16), (pull, 512), ("two_shot all_reduce bfloat16, pull", 512)} <= done
    assert {row.implementation for row in fabric.rows} == {"one_shot", "two_shot"}


@pytest.mark.parametrize(("lasts_s", "ended"), [(5.0, False), (1e-3, True)])
def test_all_reduce_beside_work(lasts_s: float, ended: bool) -> None:
    def arrange(fabric: Fabric) -> None:
        fabric.work_lasts_s = lasts_s

    job = job_of(operations=(Operation.ALL_REDUCE,), launches=(Launch.GRAPH,), work=True)
    fabric = run(job, arrange)
    assert all(device.worked == len(fabric.rows) for device in fabric.devices)
    for row in fabric.rows:
        assert row.concurrency == "while all GPUs do fma work"
        assert bool(row.samples_s) is not ended
        assert (row.reason is not None and row.reason.code == "work-ended") is ended


def test_work_is_not_started_unasked() -> None:
    fabric = run(job_of(operations=(Operation.ALL_REDUCE,)))
    assert [device.worked for device in fabric.devices] == [0, 0]
    assert {row.concurrency for row in fabric.rows} == {"alone"}
