"""Runs any command with NCCL told to speak, and hears its witnesses (P3)."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from linkbound.evidence.child import ChildResult, child_environment, run
from linkbound.serve.counters import CounterSampler, counter_witness
from linkbound.serve.path_types import PathAnswer, PathVerdict, Witness, WitnessKind
from linkbound.serve.trace_files import TraceLogs, parse_trace_log
from linkbound.serve.witnesses import judge
from linkbound.values import Value

NCCL_SPEAKS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,P2P,SHM,NET,TUNING,NVLS",
}
"""What NCCL needs to name the transport of every channel; it changes no choice of NCCL."""


class TracedRun(Value, frozen=True, kw_only=True):
    """A command that was run, the logs it left, and what they say."""

    child: ChildResult
    logs: tuple[tuple[str, bytes], ...]
    """Name and content of everything it printed."""
    verdict: PathVerdict


def trace_command(
    argv: Sequence[str], *, limit_s: float, sampler: CounterSampler | None = None
) -> TracedRun:
    """Run `argv` for at most `limit_s` seconds and judge its path. Raises UsageError."""
    with tempfile.TemporaryDirectory(prefix="linkbound-trace-") as folder:
        file = Path(folder) / "nccl.%h.%p.log"
        environment = child_environment({**NCCL_SPEAKS, "NCCL_DEBUG_FILE": str(file)})
        if sampler is not None:
            sampler.start()
        child = run(argv, env=environment, limit_s=limit_s)
        counted = _no_counters() if sampler is None else counter_witness(sampler.end())
        logs = [("stdout", child.stdout), ("stderr", child.stderr)]
        logs += [(path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir())]
    found = [parse_trace_log(data, name) for name, data in logs]
    together = TraceLogs(
        nccl=tuple(log for one in found for log in one.nccl),
        engines=tuple(log for one in found for log in one.engines),
    )
    return TracedRun(
        child=child,
        logs=tuple((name, data) for name, data in logs if data),
        verdict=judge(together.nccl, together.engines, (counted,)),
    )


def _no_counters() -> Witness:
    return Witness(
        kind=WitnessKind.COUNTERS,
        source="hardware",
        answer=PathAnswer.UNKNOWN,
        why="No reader of byte counters is at hand for this host's GPUs.",
    )
