"""What NCCL's own log says of the path, against what the arm asks for (L4, P3).

A setting is intent. An arm whose channels say otherwise, or nothing, gives no number.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.types import Reason
from linkbound.links.live.rows import LinkRow
from linkbound.links.log_path import path_of
from linkbound.links.log_types import LogPath, NcclLog, PathSummary
from linkbound.links.parse_nccl_log import parse_nccl_log
from linkbound.links.types import Arm
from linkbound.values import Value

LOG_PREFIX = "nccl"
_PATH = {
    Arm.P2P: LogPath.DIRECT,
    Arm.NCCL: LogPath.DIRECT,
    Arm.STAGED: LogPath.STAGED,
    Arm.NET: LogPath.NET,
}


class Evidence(Value, frozen=True, kw_only=True):
    """The path as NCCL logged it: facts for the rows, or the reason why there can be none."""

    facts: dict[str, str]
    contradiction: Reason | None = None


def log_environment(folder: Path) -> dict[str, str]:
    """Variables that make each rank's NCCL log its channels to a file of its own in `folder`."""
    return {
        "NCCL_DEBUG": "INFO",
        # Without TUNING and COLL: a line for every call would be part of what is timed.
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,P2P,SHM,NET",
        "NCCL_DEBUG_FILE": str(folder / f"{LOG_PREFIX}.%h.%p.log"),
    }


def read_logs(folder: Path) -> str:
    """All ranks' logs, one after the other; empty where none was written."""
    files = sorted(folder.glob(f"{LOG_PREFIX}.*.log"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def evidence_of(text: str, arm: Arm) -> Evidence:
    """Facts of the path in the logs' text, and whether it is another than the arm's."""
    if not text.strip():
        return Evidence(facts={}, contradiction=_unproven("NCCL wrote no log."))
    try:
        log = parse_nccl_log(text, "NCCL's log of the ranks")
    except InputError as error:
        return Evidence(facts={}, contradiction=_unproven(error.seen))
    summary = path_of(log)
    return Evidence(facts=_facts(log, summary), contradiction=_contradiction(summary, arm))


def without_number(row: LinkRow, reason: Reason) -> LinkRow:
    """The row as it may be shown where its path is not the arm's: with a reason, no samples."""
    return msgspec.structs.replace(row, samples_s=(), wrong=None, reason=reason)


def last_words(text: str, lines: int = 3) -> str:
    """The last warnings of a log, else its last lines."""
    spoken = [line.strip() for line in text.splitlines() if line.strip()]
    warnings = [line for line in spoken if "NCCL WARN" in line]
    return " | ".join((warnings or spoken)[-lines:])[-600:]


def _facts(log: NcclLog, summary: PathSummary) -> dict[str, str]:
    facts = {"path": summary.path.value, "transport": "; ".join(_channels(summary))}
    if log.version:
        facts["nccl"] = log.version
    return facts


def _channels(summary: PathSummary) -> Iterable[str]:
    for pair in summary.pairs:
        yield f"{pair.src_rank}->{pair.dst_rank} {pair.kind}/{pair.detail} x{pair.channels}"


def _contradiction(summary: PathSummary, arm: Arm) -> Reason | None:
    if summary.path is _PATH[arm]:
        return None
    if summary.path is LogPath.UNKNOWN:
        return _unproven(summary.why)
    return Reason(
        code="transport-contradicts-arm",
        text=f"Arm {arm} asks for the {_PATH[arm]} path, NCCL took the {summary.path} one. "
        f"{summary.why}",
    )


def _unproven(seen: str) -> Reason:
    return Reason(
        code="transport-unproven",
        text=f"No channel shows which path was taken: {seen}",
    )
