"""Times an engine's own all-reduce over a group of GPUs, as curves that price its steps (L4).

The same rows, cells and curves as a sweep of the links: implementation `engine`, and `engine_nccl`
for the NCCL communicator that the engine takes beyond its own limit.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from linkbound.evidence.child import MULTICAST_GUARDS, ChildResult, child_environment
from linkbound.evidence.child import run as run_child
from linkbound.evidence.study import Study
from linkbound.evidence.types import Finding, Level, Reason, Severity
from linkbound.links.arms import nccl_environment
from linkbound.links.live.records import Kept, Origin, append_cell, append_finding, append_summaries
from linkbound.links.live.rows import LinkRow
from linkbound.links.types import Arm, Operation
from linkbound.serve.engines.switches import DECIDED
from linkbound.serve.reduce_types import ReduceJob, ReduceLine
from linkbound.values import Value

OPERATION = "all_reduce"


class ReduceResult(Value, frozen=True, kw_only=True):
    """What came of it."""

    rows: tuple[LinkRow, ...]
    findings: tuple[Finding, ...]
    log: str


def time_engine_reduce(
    devices: Sequence[int],
    *,
    program: str | None,
    limit_s: float,
    job: ReduceJob | None = None,
) -> ReduceResult:
    """Run the ranks in a child for at most `limit_s` seconds. `devices`: ordinals in rank order."""
    with tempfile.TemporaryDirectory(prefix="linkbound-reduce-") as name:
        folder = Path(name)
        job = msgspec.structs.replace(
            job or ReduceJob(ranks=len(devices), folder=name), folder=name
        )
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        argv = (program or sys.executable, "-m", "linkbound.serve.reduce_child")
        ended = run_child(
            (*argv, str(folder / "job.json")),
            env=child_environment(reduce_environment(devices), DECIDED),
            limit_s=limit_s,
        )
        lines = [_read(folder / f"rank{number}.jsonl") for number in range(job.ranks)]
    labels = tuple(f"GPU{number}" for number in devices)
    rows = tuple(_row(labels, together) for together in zip(*lines, strict=False))
    log = (ended.stdout + ended.stderr).decode(errors="replace")
    return ReduceResult(rows=rows, findings=(*_ended(ended, limit_s), *_wrong(rows)), log=log)


def reduce_environment(devices: Sequence[int]) -> dict[str, str]:
    """What the ranks are told: the arm `p2p`, multicast off, one node."""
    return {
        **nccl_environment(Arm.P2P),
        **MULTICAST_GUARDS,
        # vLLM's test of copies needs a whole engine; the sums are checked here instead.
        "VLLM_SKIP_P2P_CHECK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)),
    }


def _read(path: Path) -> list[ReduceLine]:
    if not path.exists():
        return []
    # A rank that was ended while it wrote leaves half a line.
    whole = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return [msgspec.json.decode(line, type=ReduceLine) for line in whole]


def _row(labels: tuple[str, ...], lines: tuple[ReduceLine, ...]) -> LinkRow:
    """A call is over when the last rank is through; wrong elements leave no time."""
    first = lines[0]
    called = "CustomAllreduce" if first.way == "engine" else "PyNcclCommunicator"
    wrong = sum(line.wrong for line in lines)
    samples = zip(*(line.samples_s for line in lines), strict=True)
    text = f"{wrong:,} elements were wrong: no time."
    return LinkRow(
        operation=Operation.ALL_REDUCE,
        implementation=first.way,
        method=f"{OPERATION}, vLLM {first.version} {called}",
        group=labels,
        arm=Arm.P2P,
        launch=first.launch,
        size_bytes=first.size_bytes,
        samples_s=() if wrong else tuple(max(sample) for sample in samples),
        wrong=wrong,
        facts={"dtype": "bf16", "calls_in_a_window": str(first.calls)},
        reason=Reason(code="wrong-values", text=text) if wrong else None,
    )


def _wrong(rows: Sequence[LinkRow]) -> tuple[Finding, ...]:
    wrong = [row for row in rows if row.wrong]
    if not wrong:
        return ()
    sizes = ", ".join(f"{row.size_bytes:,} ({row.implementation})" for row in wrong[:6])
    return (
        Finding(
            code="p2p-corruption",
            level=Level.SEEN,
            severity=Severity.ERROR,
            seen=f"Sums of the engine's all-reduce over {', '.join(wrong[0].group)} were wrong at "
            f"{sizes} bytes.",
            why="A model split over these GPUs would answer with other words than on one.",
            remedy="Verify the transfers of this pair: linkbound links. Until then use --arm "
            "staged.",
        ),
    )


def _ended(ended: ChildResult, limit_s: float) -> tuple[Finding, ...]:
    if ended.ok:
        return ()
    words = (ended.stderr or ended.stdout).decode(errors="replace").strip().splitlines()
    last = " ".join(words[-2:])[-300:] if words else "It said nothing."
    how = ended.ended_by or f"exit code {ended.exit_code}"
    if ended.timed_out:
        how = f"no end within {limit_s:g} s"
    return (
        Finding(
            code="engine-reduce-hang" if ended.timed_out else "engine-reduce-failed",
            level=Level.SEEN,
            severity=Severity.ERROR,
            seen=f"The engine's all-reduce by itself: {how}. {last}",
            why="Sizes after that were not timed.",
            remedy="Read the log of the record: linkbound show links.finding.",
        ),
    )


def keep_engine_reduce(study: Study, origin: Origin, result: ReduceResult) -> None:
    """Its cells, what was found, and the curves that rest on the cells."""
    kept: list[Kept] = [append_cell(study, origin, row) for row in result.rows]
    for finding in result.findings:
        append_finding(study, origin, finding, result.log)
    append_summaries(study, origin, kept)
