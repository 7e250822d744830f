"""Faults of transfers as findings: wrong bytes, a hang, an error of the driver (L6)."""

from collections.abc import Iterable

from linkbound.evidence.types import Finding, Level, Severity
from linkbound.links.live.rows import HOST, LinkRow
from linkbound.links.types import Arm


def corruption(rows: Iterable[LinkRow]) -> list[Finding]:
    """One finding for each group, method and arm whose owner found wrong bytes."""
    worst: dict[tuple[str, str, Arm | None], LinkRow] = {}
    for row in rows:
        key = (" -> ".join(row.group), row.method, row.arm)
        if row.wrong and (key not in worst or row.wrong > (worst[key].wrong or 0)):
            worst[key] = row
    return [_corrupt(row, where) for (where, _, _), row in worst.items()]


def _corrupt(row: LinkRow, where: str) -> Finding:
    first = "" if row.wrong_at_bytes is None else f", the first at byte {row.wrong_at_bytes:,}"
    through_host = HOST in row.group or row.arm in (Arm.STAGED, Arm.NET)
    return Finding(
        code="wrong-values" if through_host else "p2p-corruption",
        level=Level.SEEN,
        severity=Severity.ERROR,
        seen=f"{where}, {row.method}, {row.size_bytes:,} bytes: the owner of the memory found "
        f"{row.wrong:,} wrong elements{first}.",
        why="A model that is split over these GPUs would compute with wrong numbers, in silence.",
        remedy="Do not trust this path"
        + (
            ": test the host's memory, and its IOMMU settings."
            if through_host
            else ": run with NCCL_P2P_DISABLE=1 now, then look at IOMMU, ACS and BAR1."
        ),
    )


def hang(what: str, after_s: float, log: str, stuck: bool) -> Finding:
    """A child that did not end or fell silent while it did `what`."""
    state = "; it cannot be killed: its GPUs are left alone from now on" if stuck else ""
    return Finding(
        code="p2p-hang",
        level=Level.SEEN,
        severity=Severity.ERROR,
        seen=f"{what}: no sign of life, ended after {after_s:.1f} s{state}.{_last_words(log)}",
        why="An engine would wait here for ever, with its GPUs busy.",
        remedy="Run with NCCL_P2P_DISABLE=1 now; then look at IOMMU, ACS and the kernel's log.",
    )


def crash(what: str, how: str, log: str) -> Finding:
    """A child that ended early while it did `what`."""
    return Finding(
        code="transfer-error",
        level=Level.SEEN,
        severity=Severity.ERROR,
        seen=f"{what}: {how}.{_last_words(log)}",
        why="This transfer gave no result; an engine would end here.",
        remedy="Read the driver's messages (dmesg, Xid); what did not fail is measured.",
    )


def _last_words(log: str) -> str:
    words = [line.strip() for line in log.splitlines() if line.strip()]
    return f" Its last words: {words[-1][:300]}" if words else ""
