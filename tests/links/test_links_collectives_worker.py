"""The worker between the ranks, and the parent's view of jobs that hang, fail or end early."""

import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from linkbound.evidence.types import Finding
from linkbound.links.live import collective_run, nccl_library
from linkbound.links.live.collective_plan import OPERATIONS
from linkbound.links.live.collective_rank import Part
from linkbound.links.live.collective_rows import NCCL_WAYS, cells_of, row_of, title_of
from linkbound.links.live.collective_run import CollectiveResult, run_collectives, run_one
from linkbound.links.live.collective_types import (
    CollectiveJob,
    Family,
    Processes,
    RankReport,
)
from linkbound.links.live.faults import crash, hang
from linkbound.links.live.jobs import End, JobResult
from linkbound.links.live.rows import LinkRow
from linkbound.links.live.worker_collectives import parts_of, relay
from linkbound.links.types import Arm, Launch, Operation

# What each rank of a fake job does after it has read its part.
SPEAK = """
import json, os, signal, sys, time
me = json.loads(sys.stdin.readline())["process"]
def say(**what): print(json.dumps(what), flush=True)
def everyone(value):
    say(give=[value])
    return json.loads(sys.stdin.readline())
"""


def job_of(ranks: int = 2, **changes: object) -> CollectiveJob:
    settings: dict[str, object] = {
        "family": Family.NCCL,
        "group": tuple(f"GPU{rank}" for rank in range(ranks)),
        "devices": tuple(str(rank) for rank in range(ranks)),
        "arm": Arm.P2P,
        "sizes_bytes": (64, 1024),
        **changes,
    }
    return CollectiveJob(**settings)  # type: ignore[arg-type]


class Heard:
    """Stands for the lines that the worker writes for its parent."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.rows: list[LinkRow] = []
        self.faults: list[str] = []

    def begin(self, what: str) -> None:
        self.begun.append(what)

    def row(self, row: LinkRow) -> None:
        self.rows.append(row)

    def fault(self, text: str) -> None:
        self.faults.append(text)


def relayed(tmp_path: Path, body: str, ranks: int = 2) -> tuple[bool, Heard]:
    script = tmp_path / "rank.py"
    script.write_text(SPEAK + textwrap.dedent(body))
    parts = [msgspec.json.encode(part) for part in parts_of(job_of(ranks))]
    heard = Heard()
    whole = relay([(sys.executable, str(script))] * ranks, parts, heard)  # type: ignore[arg-type]
    return whole, heard


def test_values_of_all_ranks_reach_all_in_order(tmp_path: Path) -> None:
    body = """
    seen = everyone(me * 10)
    seen += everyone(None)
    if me == 0: say(begin=f"{seen}")
    say(done=True)
    """
    whole, heard = relayed(tmp_path, body, ranks=3)
    assert whole
    assert heard.begun == ["[0, 10, 20, None, None, None]"]


def test_rows_of_ranks_are_passed_on(tmp_path: Path) -> None:
    cell = next(cells_of(job_of(), NCCL_WAYS))
    row = row_of(job_of(), cell, RankReport(samples_s=(1e-6,), wrong=0), {})
    (tmp_path / "row.json").write_bytes(msgspec.json.encode(row))
    body = f"""
    if me == 0: say(row=json.load(open({str(tmp_path / "row.json")!r})))
    say(done=True)
    """
    whole, heard = relayed(tmp_path, body)
    assert whole
    assert heard.rows == [row]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("sys.exit(3)", "ended with code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by signal 11"),
        ("print('Segmentation fault', flush=True); time.sleep(60)", "no message"),
        ("say(fault='ncclAllReduce failed'); time.sleep(60)", "ncclAllReduce failed"),
        ("say(give=[1], begun='x'); time.sleep(60)", "no message"),
    ],
)
def test_first_rank_that_fails_ends_the_job(tmp_path: Path, body: str, fault: str) -> None:
    # The other rank waits for it: nothing else would ever come.
    whole, heard = relayed(tmp_path, f"if me == 1: {body}\nelse: everyone(1)")
    assert not whole
    assert len(heard.faults) == 1
    assert "process 1 of 2" in heard.faults[0]
    assert fault in heard.faults[0]


def test_rank_that_is_killed_while_all_wait(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    body = f"""
    open(os.path.join({str(pids)!r}, str(os.getpid())), "w").close()
    time.sleep(60)
    """

    def end_ranks() -> None:
        while len(list(pids.iterdir())) < 2:
            time.sleep(0.01)
        for file in pids.iterdir():
            os.kill(int(file.name), signal.SIGKILL)

    killer = threading.Thread(target=end_ranks)
    killer.start()
    whole, heard = relayed(tmp_path, body)
    killer.join()
    assert not whole
    assert "was ended by signal 9" in heard.faults[0]


def test_parts() -> None:
    assert [part.ranks for part in parts_of(job_of(3))] == [(0,), (1,), (2,)]
    (whole,) = parts_of(job_of(3, processes=Processes.ONE_FOR_ALL))
    assert whole.ranks == (0, 1, 2)
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Part) == whole


def test_host_without_a_gpu_says_so_in_a_finding() -> None:
    result = run_one(job_of(family=Family.OWN, devices=("98", "99")))
    assert result.end is End.CRASH
    assert result.rows == ()
    (finding,) = result.findings
    assert finding.code == "transfer-error"
    assert "process" in finding.seen


def test_host_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_library, "candidates", tuple)
    result = run_one(job_of())
    assert [finding.code for finding in result.findings] == ["nccl-missing"]
    assert "libnccl.so.2" in result.findings[0].why


class Children:
    """Stands for run_job: each job does some cells of its own and then ends in a given way."""

    def __init__(self, *ends: tuple[int | None, End]) -> None:
        self.ends = list(ends)
        self.jobs: list[CollectiveJob] = []
        self.environments: list[Mapping[str, str]] = []

    def __call__(
        self,
        module: str,
        job: CollectiveJob,
        environment: Mapping[str, str],
        limit_s: float,
        **_: object,
    ) -> JobResult:
        assert module == "worker_collectives"
        assert limit_s == job.limit_s
        self.jobs.append(job)
        self.environments.append(environment)
        done, end = self.ends.pop(0)
        cells = list(cells_of(job, NCCL_WAYS))
        rows = tuple(
            row_of(job, cell, RankReport(samples_s=(1e-6,), wrong=0), {})
            for cell in cells[: len(cells) if done is None else max(done, 0)]
        )
        Path(environment["NCCL_DEBUG_FILE"].replace("%h.%p", "host.1")).write_text(
            "h:1:1 [0] NCCL WARN lost\n"
        )
        begun = None if end is End.DONE else "the start of NCCL"
        if done is not None and done >= 0 and end is not End.DONE:
            begun = title_of(job, cells[done])
        findings: tuple[Finding, ...] = ()
        if end is End.HANG:
            findings = (hang(begun or "", 20.0, "", stuck=False),)
        elif end is End.CRASH:
            findings = (crash(begun or "", "ended with code 1", ""),)
        return JobResult(rows=rows, findings=findings, log="", end=end, begun=begun, duration_s=1.0)


def ran(monkeypatch: pytest.MonkeyPatch, children: Children) -> CollectiveResult:
    monkeypatch.setattr(nccl_library, "candidates", lambda: ("libnccl.so.2",))
    monkeypatch.setattr(collective_run, "run_job", children)
    job = job_of(operations=OPERATIONS, sizes_bytes=(64, 128), launches=(Launch.EAGER,))
    return run_one(job)


def by_operation(rows: tuple[LinkRow, ...]) -> dict[Operation, list[str]]:
    found: dict[Operation, list[str]] = {}
    for row in rows:
        state = "timed" if row.samples_s else str(row.reason and row.reason.code)
        found.setdefault(row.operation, []).append(state)
    return found


def test_operation_that_hangs_is_left_out_and_the_rest_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All-reduce has 4 cells; the second of all-gather hangs.
    children = Children((5, End.HANG), (None, End.DONE))
    result = ran(monkeypatch, children)
    states = by_operation(result.rows)
    assert states.pop(Operation.ALL_GATHER) == ["timed", *["after-hang"] * 3]
    assert {state for each in states.values() for state in each} == {"timed"}
    assert set(states) == set(OPERATIONS) - {Operation.ALL_GATHER}
    assert children.jobs[1].operations == OPERATIONS[2:]
    assert [finding.code for finding in result.findings] == ["p2p-hang"]
    assert "NCCL WARN lost" in result.findings[0].seen
    assert result.duration_s == 2.0


def test_every_operation_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children(*[(0, End.CRASH)] * len(OPERATIONS))
    result = ran(monkeypatch, children)
    assert len(children.jobs) == len(OPERATIONS)
    assert {row.reason.code for row in result.rows if row.reason} == {"after-crash"}
    assert len(result.rows) == 2 * (len(OPERATIONS) + 4)
    assert len(result.findings) == len(OPERATIONS)


def test_nccl_that_does_not_start_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children((-1, End.CRASH))
    result = ran(monkeypatch, children)
    assert len(children.jobs) == 1
    assert len(result.rows) == 2 * (len(OPERATIONS) + 4)
    assert all(row.reason is not None and row.wrong is None for row in result.rows)


def test_users_settings_do_not_decide_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    children = Children((None, End.DONE))
    ran(monkeypatch, children)
    (environment,) = children.environments
    assert "NCCL_P2P_DISABLE" not in environment
    assert "NCCL_PROTO" not in environment
    assert environment["NCCL_P2P_LEVEL"] == "SYS"
    assert environment["NCCL_SOCKET_IFNAME"] == "eth7"


def test_no_job_after_a_gpu_that_cannot_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*_: object, **__: object) -> JobResult:
        return JobResult(
            rows=(),
            findings=(hang("x", 1.0, "", stuck=True),),
            log="",
            end=End.HANG,
            begun="x",
            stuck=True,
            duration_s=1.0,
        )

    monkeypatch.setattr(nccl_library, "candidates", lambda: ("libnccl.so.2",))
    monkeypatch.setattr(collective_run, "run_job", stuck)
    assert len(list(run_collectives([job_of(), job_of()]))) == 1


class Counters:
    """Byte counters that grow by each reading."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def counters(self, uuid: str) -> dict[str, int]:
        self.asked.append(uuid)
        return {"nvlink_tx_bytes": 100 * len(self.asked), "pcie_tx_bytes": -len(self.asked)}


def test_byte_counters_are_read_around_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_library, "candidates", lambda: ("libnccl.so.2",))
    monkeypatch.setattr(collective_run, "run_job", Children((None, End.DONE)))
    state = Counters()
    result = run_one(job_of(uuids=("GPU-a", None)), state=state)  # type: ignore[arg-type]
    assert state.asked == ["GPU-a", "GPU-a"]
    # What wrapped is left out.
    assert result.counters == {"GPU0 nvlink_tx_bytes": 100}
