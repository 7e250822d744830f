"""Collectives in a study: rows at once, jobs with their logs, curves on the rows."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Measured
from linkbound.links.live import collective_records
from linkbound.links.live.collective_records import measure_collectives
from linkbound.links.live.collective_rows import NCCL_WAYS, cells_of, row_of
from linkbound.links.live.collective_run import CollectiveResult
from linkbound.links.live.collective_types import CollectiveJob, Family, Placement, RankReport
from linkbound.links.live.faults import hang
from linkbound.links.live.jobs import End
from linkbound.links.live.records import Origin
from linkbound.links.live.rows import Flag, LinkRow
from linkbound.links.types import Arm, Launch

JOB = CollectiveJob(
    family=Family.NCCL,
    group=("GPU0", "GPU1"),
    devices=("0", "1"),
    arm=Arm.STAGED,
    sizes_bytes=(1024, 4096),
    launches=(Launch.GRAPH,),
    placements=(Placement.OUT_OF_PLACE,),
)
ORIGIN = Origin(
    machine_name="this-host",
    machine_id="m" * 16,
    command=("linkbound", "links"),
    environment={"CUDA_VISIBLE_DEVICES": "0,1"},
    started="2026-01-01T00:00:00+00:00",
    parents=(),
)


class FakeState:
    """One GPU that the driver slows."""

    def __init__(self, slowed: str) -> None:
        self.slowed = slowed

    def slowing(self, uuid: str) -> tuple[str, ...]:
        return ("power cap",) if uuid == self.slowed else ()


def runs(end: End) -> Callable[..., Iterator[CollectiveResult]]:
    """Stands for run_collectives: every cell of the job timed, then an end of this kind."""

    def run(
        jobs: Iterable[CollectiveJob], *, on_row: Callable[[LinkRow], None], **_: object
    ) -> Iterator[CollectiveResult]:
        for job in jobs:
            report = RankReport(samples_s=(9e-6, 10e-6, 11e-6), calls=50, wrong=0)
            rows = tuple(
                row_of(job, cell, report, {"path": "staged"}) for cell in cells_of(job, NCCL_WAYS)
            )
            for row in rows:
                on_row(row)
            yield CollectiveResult(
                job=job,
                rows=rows,
                rows_of_job=len(rows),
                findings=() if end is End.DONE else (hang("x", 20.0, "", stuck=False),),
                log="h:1:1 [0] NCCL INFO x\n",
                end=end,
                begun=None,
                stuck=False,
                duration_s=1.5,
                environment={"NCCL_P2P_DISABLE": "1"},
            )

    return run


@pytest.mark.parametrize("end", list(End))
def test_records_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: End) -> None:
    monkeypatch.setattr(collective_records, "run_collectives", runs(end))
    with Study.create(tmp_path / "s.linkbound") as study:
        collected = measure_collectives(study, ORIGIN, [JOB])
        assert [row.size_bytes for row in collected.rows] == [1024, 4096]
        (job,) = study.find("links.collectives")
        assert job.environment == {"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_P2P_DISABLE": "1"}
        assert study.blob(job.blobs[0]) == b"h:1:1 [0] NCCL INFO x\n"
        assert isinstance(job.outcome, Measured if end is End.DONE else Failed)
        assert len(study.find("links.finding")) == len(collected.findings) == (end is not End.DONE)
        cells = study.find("links.cell")
        assert [record.id for record in cells] == [one.record_id for one in collected.kept]
        assert all(msgspec.to_builtins(record.outcome)["values"]["calls"] == 50 for record in cells)


def test_calls_of_a_chain_make_a_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_records, "run_collectives", runs(End.DONE))
    with Study.create(tmp_path / "s.linkbound") as study:
        measure_collectives(study, ORIGIN, [JOB])
        (curve,) = study.find("links.curve")
        assert curve.subject["implementation"] == "nccl"
        assert curve.subject["arm"] == "staged"
        assert curve.subject["launch"] == "graph"
        assert curve.samples is not None
        assert curve.samples.column("time_s") == (10e-6, 10e-6)
        assert curve.samples.column("wrong") == (0, 0)
        assert not study.find("links.rates")


@pytest.mark.parametrize(("slowed", "flags"), [("u1", (Flag.THROTTLED,)), ("other", ())])
def test_rows_of_slowed_gpus_are_flagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slowed: str, flags: tuple[Flag, ...]
) -> None:
    monkeypatch.setattr(collective_records, "run_collectives", runs(End.DONE))
    job = msgspec.structs.replace(JOB, uuids=("u0", "u1"))
    with Study.create(tmp_path / "s.linkbound") as study:
        state = FakeState(slowed)
        collected = measure_collectives(study, ORIGIN, [job], state=state)  # type: ignore[arg-type]
    assert {row.flags for row in collected.rows} == {(Flag.UNSTEADY, *flags)}
