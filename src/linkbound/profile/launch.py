"""The only file here that starts processes: a job as a fresh child, and what came of it (P1, L6).

What was measured before an end of any kind is kept; how it ended is a finding.
"""

import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from linkbound.errors import InputError, MissingExtra
from linkbound.evidence import ChildResult, Finding, Level, Severity, child_environment
from linkbound.evidence import run as run_child
from linkbound.evidence.child import MULTICAST_GUARDS
from linkbound.links import Arm, LogPath, nccl_environment, parse_nccl_log, path_of
from linkbound.profile.moved import contradiction, moved
from linkbound.profile.types import Device, Job, RankPoint
from linkbound.values import Value

OUT_OF_MEMORY = 77
"""Exit code by which a rank says that its GPU is full (rank.py)."""
LOG_SUBSYSTEMS = "INIT,ENV,P2P,SHM,NET,GRAPH,NVLS"
_INHERITED = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
_PATHS = {
    Arm.P2P: LogPath.DIRECT,
    Arm.NCCL: LogPath.DIRECT,
    Arm.STAGED: LogPath.STAGED,
    Arm.NET: LogPath.NET,
}
_PACKAGE_PARENT = str(Path(__file__).parents[2])
_OWN_FRAME = re.compile(r'File ".*/linkbound/profile/(\w+\.py)", line (\d+) in (\S+)')
PLACES_SHOWN = 3
"""Functions of a rank that was ended: where it waited, for which measurement."""
_SPENT = re.compile(r"^rank (\d+): (\d+\.\d s .+)\n", re.MULTILINE)
_LOG_LIMIT_BYTES = 64 * 1024**2


class JobResult(Value, frozen=True, kw_only=True):
    """What a child left: a line for each rank and point it finished, and how it ended."""

    job: Job
    ranks: tuple[RankPoint, ...]
    findings: tuple[Finding, ...]
    environment: Mapping[str, str]
    """What the arm sets, guards included."""
    command: tuple[str, ...]
    duration_s: float
    path: str | None
    """Where NCCL's log says that data went: direct, staged, ...; None without a log."""
    log: str
    """NCCL's log of all ranks, then the child's last words."""
    spent: str
    """Where rank 0's process spent its time: `4.1 s start, imports; 2.0 s meeting; ...`."""
    interrupted: bool = False
    """The user ended it; points finished before are there."""


def require_torch() -> None:
    """Raises MissingExtra where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(
            "torch is not installed.",
            why="The reference runtime and its collectives are torch's.",
            hint="Install it: pip install 'linkbound[torch]'.",
        )


def arm_environment(job: Job) -> dict[str, str]:
    """Variables that this job sets over the parent's."""
    own = {} if job.arm is None else nccl_environment(job.arm)
    if job.device is Device.CPU:
        # Ranks of one host meet on its loopback interface.
        own["GLOO_SOCKET_IFNAME"] = "lo"
    # NVLink multicast stays off in every child, whatever the parent has (DESIGN decision 2).
    return {**own, **MULTICAST_GUARDS}


def run_job(job: Job, *, limit_s: float, count: int | None = None) -> JobResult:
    """Run `job` as a child of its own for at most `limit_s` seconds.

    `count` is how many processes it takes; None is one for each GPU of the split. Ctrl-C ends it
    as the limit does, and what it finished until then is the result.
    """
    if count is None:
        count = 1 if job.alone is not None else job.split.gpus
    with tempfile.TemporaryDirectory(prefix="linkbound-profile-") as name:
        folder = Path(name)
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        own = arm_environment(job)
        logged = {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": LOG_SUBSYSTEMS,
            "NCCL_DEBUG_FILE": str(folder / "nccl.%p"),
            # A child must find this package also where it is not installed but on the path.
            "PYTHONPATH": os.pathsep.join(
                one for one in (_PACKAGE_PARENT, os.environ.get("PYTHONPATH")) if one
            ),
        }
        environment = child_environment({**own, **logged}, drop=_INHERITED)
        argv = [sys.executable, "-m", "linkbound.profile.leader", str(folder / "job.json")]
        ended = run_child(
            [*argv, str(folder), str(count)],
            env=environment,
            limit_s=limit_s,
            interrupt_ends=True,
        )
        ranks = _read_ranks(folder, count)
        log = _read_logs(folder)
        stacks = _read_stacks(folder, count)
    words = ended.stderr.decode(errors="replace")
    path, contradicted = _path(job, log)
    how = _how_it_ended(job, ended, limit_s, stacks)
    findings = (*how, *contradicted, *_counted(job, ranks))
    return JobResult(
        job=job,
        ranks=ranks,
        findings=findings,
        environment=own,
        command=("python", "-m", "linkbound.profile.leader", "JOB", "FOLDER", str(count)),
        duration_s=ended.duration_s,
        path=path,
        log=log + words + "".join(f"rank {at}: {stack}" for at, stack in stacks.items()),
        spent="; ".join(found[2] for found in _SPENT.finditer(words) if found[1] == "0"),
        interrupted=ended.interrupted,
    )


def place_file(folder: Path, number: int) -> Path:
    """Where a rank that a signal ends writes its stack."""
    return folder / f"rank{number}.stack"


def _read_ranks(folder: Path, count: int) -> tuple[RankPoint, ...]:
    found = []
    for number in range(count):
        path = folder / f"rank{number}.jsonl"
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            # A rank that was killed while it wrote leaves half a line.
            if line.endswith(b"\n"):
                found.append(msgspec.json.decode(line, type=RankPoint))
    return tuple(found)


def _read_stacks(folder: Path, count: int) -> dict[int, str]:
    """The stacks of ranks that a signal ended, by rank."""
    paths = {number: place_file(folder, number) for number in range(count)}
    found = {at: path.read_text() for at, path in paths.items() if path.exists()}
    return {at: stack for at, stack in found.items() if stack}


def _places(stacks: Mapping[int, str]) -> str:
    """`Rank 0 was in measure.py:128 _traced, of measure.py:76 of.`: the innermost of our own."""
    return " ".join(
        f"Rank {at} was in {', of '.join(f'{file}:{line} {name}' for file, line, name in ours)}."
        for at, stack in stacks.items()
        if (ours := _OWN_FRAME.findall(stack)[:PLACES_SHOWN])
    )


def _read_logs(folder: Path) -> str:
    parts = (path.read_bytes()[:_LOG_LIMIT_BYTES] for path in sorted(folder.glob("nccl.*")))
    return b"".join(parts).decode(errors="replace")


def _path(job: Job, log: str) -> tuple[str | None, tuple[Finding, ...]]:
    """The path in NCCL's log; a finding where it is not the one that the arm asks for."""
    if job.arm is None or job.alone is not None:
        return None, ()
    try:
        summary = path_of(parse_nccl_log(log, "NCCL's log"))
    except InputError:
        return None, ()
    wanted = _PATHS[job.arm]
    if summary.path in (wanted, LogPath.UNKNOWN):
        return summary.path.value, ()
    finding = Finding(
        code="arm-contradicted",
        level=Level.SEEN,
        severity=Severity.ERROR,
        seen=f"{job.split.name} in arm {job.arm.value} asks for the path '{wanted.value}'; "
        f"NCCL's log shows '{summary.path.value}'. {summary.why}",
        why="Times of another path than the arm's would be compared as if they were its own.",
        remedy="Run linkbound topo to see which pairs may use peer-to-peer, then choose the arm.",
    )
    return summary.path.value, (finding,)


def _counted(job: Job, ranks: Sequence[RankPoint]) -> tuple[Finding, ...]:
    """A finding where the hardware's counters show another path than the arm's."""
    if job.alone is not None:
        return ()
    of_points = ([one for one in ranks if one.point == point] for point in job.points)
    points = (moved(some) for some in of_points if len(some) == job.split.gpus)
    found = contradiction(job.split.name, job.arm, points)
    return () if found is None else (found,)


def _how_it_ended(
    job: Job, ended: ChildResult, limit_s: float, stacks: Mapping[int, str]
) -> tuple[Finding, ...]:
    if ended.ok or ended.interrupted:
        return ()
    arm = "" if job.arm is None else f" in arm {job.arm.value}"
    what = f"{job.split.name}{arm}"
    # What it spent its time on is no reason for an end.
    words = _SPENT.sub("", ended.stderr.decode(errors="replace")).strip().splitlines()
    last = " ".join(words[-2:])[-300:] if words else "It said nothing."
    if ended.timed_out:
        return (
            _finding(
                "profile-hang",
                f"{what} did not end within {limit_s:g} s and was ended. {_places(stacks) or last}",
                "Ranks that wait for each other for ever are what broken peer-to-peer looks like.",
                "Try --arm staged; if that ends, the direct path is broken. Else raise --limit.",
            ),
        )
    if ended.exit_code == OUT_OF_MEMORY:
        return (
            _finding(
                "profile-out-of-memory",
                f"{what} filled its GPU. {last}",
                "Points after that one were not timed.",
                "Choose a smaller batch, or a split over more GPUs: linkbound fit shows which fit.",
            ),
        )
    how = ended.ended_by or f"exit code {ended.exit_code}"
    return (
        _finding(
            "profile-rank-died",
            " ".join((f"{what} ended with {how}. {last}", _places(stacks))).rstrip(),
            "A rank that ends takes the others with it; points after that were not timed.",
            "Read the log of the record; run again with one arm to see whether it repeats.",
        ),
    )


def _finding(code: str, seen: str, why: str, remedy: str) -> Finding:
    return Finding(
        code=code, level=Level.SEEN, severity=Severity.ERROR, seen=seen, why=why, remedy=remedy
    )
