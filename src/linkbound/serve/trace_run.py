"""Runs any command with NCCL told to speak, and hears its witnesses (P3)."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from linkbound.evidence.child import ChildResult, child_environment, run
from linkbound.links.live.meter import TrafficMeter
from linkbound.links.traffic import Traffic
from linkbound.serve.counters import counter_witness
from linkbound.serve.parse_engine_log import MAX_LOG_BYTES
from linkbound.serve.path_types import PathVerdict
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
    traffic: Traffic
    """What passed the GPUs' ports meanwhile."""
    verdict: PathVerdict


def trace_command(
    argv: Sequence[str],
    *,
    limit_s: float,
    meter: TrafficMeter,
    pass_to: tuple[IO[bytes], IO[bytes]] | None = None,
) -> TracedRun:
    """Run `argv` to its end, for `limit_s` seconds or until Ctrl-C, and judge its path.

    `pass_to` gets its stdout and stderr as they come. Raises UsageError.
    """
    meter.rest()
    with tempfile.TemporaryDirectory(prefix="linkbound-trace-") as folder:
        file = Path(folder) / "nccl.%h.%p.log"
        environment = child_environment({**NCCL_SPEAKS, "NCCL_DEBUG_FILE": str(file)})
        meter.begin()
        try:
            child = run(
                argv, env=environment, limit_s=limit_s, pass_to=pass_to, interrupt_ends=True
            )
            traffic = meter.end()
        finally:
            meter.close()
        logs = [("stdout", child.stdout), ("stderr", child.stderr)]
        logs += [(path.name, _head(path)) for path in sorted(Path(folder).iterdir())]
    found = [parse_trace_log(data, name) for name, data in logs]
    together = TraceLogs(
        nccl=tuple(log for one in found for log in one.nccl),
        engines=tuple(log for one in found for log in one.engines),
    )
    return TracedRun(
        child=child,
        logs=tuple((name, data) for name, data in logs if data),
        traffic=traffic,
        verdict=judge(together.nccl, together.engines, (counter_witness(traffic),)),
    )


def _head(path: Path) -> bytes:
    """The log as far as one is read: channels come first, then a line for every eager call."""
    with path.open("rb") as log:
        return log.read(MAX_LOG_BYTES)
