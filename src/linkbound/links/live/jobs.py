"""Jobs: a measurement in a child of its own, its rows read while they come (L6, DESIGN 1).

A hang, a crash and wrong bytes are findings; rows written before them are kept. The parent never
initialises CUDA. The child is `python -m linkbound.links.live.MODULE JOB ROWS`: it reads its job
(JSON) from the first file and appends lines to the second, by `Lines`.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from linkbound.evidence.child import ChildResult, run
from linkbound.evidence.types import Finding
from linkbound.links.live.faults import corruption, crash, hang, without_time
from linkbound.links.live.rows import LinkRow
from linkbound.values import Value

STALL_S = 20.0
"""Without a line for so long, a child hangs: the longest cell, pageable 1 GiB, takes some 5 s."""
LOG_BYTES = 4000
"""Kept of the log in a finding and a result: its last words."""
_POLL_S = 0.02
_PACKAGE = "linkbound.links.live"
JobType = TypeVar("JobType", bound=Value)


class End(StrEnum):
    """How a job ended."""

    DONE = "done"
    HANG = "hang"
    CRASH = "crash"


class Line(Value, frozen=True, kw_only=True):
    """One line of a child: exactly one of these is set."""

    process: int | None = None
    """First line: the child's process, which leads its group."""
    begin: str | None = None
    """What it is about to do: named if it is the last thing that it did."""
    row: LinkRow | None = None
    fault: str | None = None
    """An error of the driver or library after which the child cannot go on."""
    done: bool | None = None
    """Last line."""


class JobResult(Value, frozen=True, kw_only=True):
    """What came of a job."""

    rows: tuple[LinkRow, ...]
    findings: tuple[Finding, ...]
    log: str
    """The last words on stderr."""
    end: End
    begun: str | None = None
    """What it was doing when it hung or crashed; None where it ended by itself."""
    stuck: bool = False
    """It could not even be killed: its GPUs are not to be used again."""
    duration_s: float


class Lines:
    """The child's end: each line is written through at once, so that a crash costs one."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._put(Line(process=os.getpid()))

    def begin(self, what: str) -> None:
        """Name what comes next; also a sign of life."""
        self._put(Line(begin=what))

    def row(self, row: LinkRow) -> None:
        self._put(Line(row=row))

    def fault(self, text: str) -> None:
        """An error that ends this child."""
        self._put(Line(fault=text))

    def done(self) -> None:
        self._put(Line(done=True))

    def close(self) -> None:
        self._file.close()

    def _put(self, line: Line) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")


def read_job(arguments: list[str], kind: type[JobType]) -> tuple[JobType, Lines]:
    """In the child: the job of the first file, and the lines to write to the second."""
    job, rows = arguments
    return msgspec.json.decode(Path(job).read_bytes(), type=kind), Lines(Path(rows))


def run_job(
    module: str,
    job: Value,
    environment: Mapping[str, str],
    limit_s: float,
    *,
    on_row: Callable[[LinkRow], None] | None = None,
    on_begin: Callable[[str], None] | None = None,
    stall_s: float = STALL_S,
) -> JobResult:
    """Run a job to its end, for `limit_s` seconds, or until it is silent for `stall_s` seconds.

    `environment` is complete (child_environment). The callbacks run in the caller's thread.
    """
    with tempfile.TemporaryDirectory(prefix="linkbound-") as folder:
        job_file, row_file = Path(folder, "job.json"), Path(folder, "rows.jsonl")
        job_file.write_bytes(msgspec.json.encode(job))
        row_file.touch()
        argv = (sys.executable, "-m", f"{_PACKAGE}.{module}", str(job_file), str(row_file))
        with ThreadPoolExecutor(max_workers=1) as pool:
            child = pool.submit(run, argv, env=environment, limit_s=limit_s)
            tail = _Tail(row_file, on_row, on_begin)
            try:
                stalled = _follow(child, tail, stall_s)
            except BaseException:
                _end_group(tail.process)
                raise
            ended = child.result()
        tail.read()
    return _result(module, ended, tail, stalled)


class _Tail:
    """What the child has written so far."""

    def __init__(
        self,
        path: Path,
        on_row: Callable[[LinkRow], None] | None,
        on_begin: Callable[[str], None] | None,
    ) -> None:
        self._path = path
        self._offset = 0
        self._on_row = on_row
        self._on_begin = on_begin
        self.rows: list[LinkRow] = []
        self.process: int | None = None
        self.begun: str | None = None
        self.fault: str | None = None
        self.done = False
        self.torn = False

    def read(self) -> bool:
        """Take the new whole lines; whether there were any."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in _decoded(whole):
            self._take(line)
        return bool(whole)

    def _take(self, line: Line | None) -> None:
        if line is None:
            self.torn = True
            return
        self.process = line.process or self.process
        self.fault = line.fault or self.fault
        self.done = self.done or bool(line.done)
        if line.begin is not None:
            self.begun = line.begin
            if self._on_begin:
                self._on_begin(line.begin)
        if line.row is not None:
            self.rows.append(line.row)
            if self._on_row:
                self._on_row(line.row)


def _decoded(data: bytes) -> Iterator[Line | None]:
    """Lines; None for one that is none (another program wrote into the file, a NaN)."""
    for line in data.splitlines():
        try:
            yield msgspec.json.decode(line, type=Line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            yield None


def _follow(child: "Future[ChildResult]", tail: _Tail, stall_s: float) -> bool:
    """Read lines until the child ended; True where it fell silent and was ended."""
    heard_s = time.monotonic()
    while not child.done():
        if tail.read():
            heard_s = time.monotonic()
        elif time.monotonic() - heard_s > stall_s:
            _end_group(tail.process)
            return True
        time.sleep(_POLL_S)
    return False


def _end_group(process: int | None) -> None:
    """The child leads its own group; one that has not said its number yet ends by its limit."""
    if process is not None:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)


def _result(module: str, ended: ChildResult, tail: _Tail, stalled: bool) -> JobResult:
    log = ended.stderr[-LOG_BYTES:].decode(errors="replace").strip()
    begun = tail.begun or f"the start of {module}"
    findings = [*corruption(tail.rows), *without_time(tail.rows)]
    end = End.DONE
    if stalled or ended.timed_out:
        end = End.HANG
        findings.append(hang(begun, ended.duration_s, log, ended.stuck))
    elif not tail.done or tail.torn or not ended.ok:
        end = End.CRASH
        findings.append(crash(begun, tail.fault or _how_ended(ended), log))
    return JobResult(
        rows=tuple(tail.rows),
        findings=tuple(findings),
        log=log,
        end=end,
        begun=None if end is End.DONE else begun,
        stuck=ended.stuck,
        duration_s=ended.duration_s,
    )


def _how_ended(ended: ChildResult) -> str:
    if ended.ended_by:
        return f"ended by {ended.ended_by}"
    return f"ended with code {ended.exit_code} and no last line"
