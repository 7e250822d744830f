"""`linkbound links` measures copies and collectives into one study; the verb's fakes stand in."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from test_links_live_cli import fake_host, machine  # noqa: F401  (the fixture is autouse there)

from linkbound.cli import main
from linkbound.evidence.study import Study
from linkbound.evidence.types import Finding
from linkbound.links.live import collective_records
from linkbound.links.live.collective_rows import NCCL_WAYS, cells_of, row_of
from linkbound.links.live.collective_run import CollectiveResult
from linkbound.links.live.collective_types import CollectiveJob, RankReport
from linkbound.links.live.faults import hang
from linkbound.links.live.jobs import End
from linkbound.links.live.rows import LinkRow
from linkbound.links.types import Arm, Launch, Operation
from linkbound.study.reading import read_curves

BOTH = ["links", "-b", "4K", "-e", "4K"]
"""The smallest sweep of both."""


def collectives(findings: tuple[Finding, ...] = ()) -> Callable[..., Iterator[CollectiveResult]]:
    """Stands for run_collectives: 9 us a call in a graph, 20 eagerly, whatever the size."""

    def run(
        jobs: Iterable[CollectiveJob],
        *,
        on_row: Callable[[LinkRow], None],
        on_begin: Callable[[str], None],
        **_: object,
    ) -> Iterator[CollectiveResult]:
        for job in jobs:
            on_begin(f"{job.arm} {job.family}")
            rows = []
            for cell in cells_of(job, NCCL_WAYS):
                time_s = 9e-6 if cell.launch is Launch.GRAPH else 20e-6
                report = RankReport(samples_s=(time_s,) * 3, calls=1, wrong=0)
                rows.append(row_of(job, cell, report, {"transport": f"path of {job.arm}"}))
                on_row(rows[-1])
            yield CollectiveResult(
                job=job,
                rows=tuple(rows),
                rows_of_job=len(rows),
                findings=findings,
                log="",
                end=End.DONE,
                begun=None,
                stuck=False,
                duration_s=0.1,
                environment={},
            )

    return run


def test_both_are_printed_and_in_the_study(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(collective_records, "run_collectives", collectives())
    path = tmp_path / "x.linkbound"
    assert main.run([*BOTH, "-C", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "GPU(row) -> GPU(column), ce_push, P2P on" in out
    assert "size_bytes  p2p_us" in out
    assert "p2p: via path of p2p" in out
    assert "collectives in" in err
    with Study.open(path) as study:
        curves = [
            one
            for one in read_curves(study, "this-host")
            if one.key.operation is Operation.ALL_REDUCE
        ]
    assert {(one.key.arm, one.key.launch) for one in curves} == {
        (arm, launch) for arm in (Arm.P2P, Arm.STAGED, Arm.NET) for launch in Launch
    }
    assert all(one.key.group == ("GPU0", "GPU1") for one in curves)


@pytest.mark.parametrize(
    ("only", "copies", "sums"),
    [
        ((), True, False),
        (("--only", "copies"), True, False),
        (("--only", "collectives"), False, True),
    ],
)
def test_a_quick_measurement_is_one_of_the_two(
    only: tuple[str, ...],
    copies: bool,
    sums: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(collective_records, "run_collectives", collectives())
    path = tmp_path / "x.linkbound"
    assert main.run(["links", "--quick", *only, "--json", "-C", str(path)]) == 0
    operations = {row["operation"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert ("copy" in operations, "all_reduce" in operations) == (copies, sums)


def test_a_hang_of_a_collective_ends_with_4_after_all_was_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = (hang("all_reduce", 20.0, "last words", stuck=False),)
    monkeypatch.setattr(collective_records, "run_collectives", collectives(found))
    path = tmp_path / "x.linkbound"
    assert main.run([*BOTH, "-C", str(path)]) == 4
    assert "p2p-hang" in capsys.readouterr().err
    with Study.open(path) as study:
        # Two jobs with the same words are one record.
        assert len(study.find("links.finding")) == 1
        assert study.find("links.curve")


def test_a_dry_run_lists_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["links", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "staged: nccl all_reduce, all_gather" in out
    assert "cells of collectives in" in out
