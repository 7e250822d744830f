"""Faults of transfers as findings: wrong bytes, a hang, an error of the driver (L6)."""

from collections.abc import Iterable

from linkbound.evidence.types import Finding, Level, Severity
from linkbound.links.live.rows import HOST, LinkRow
from linkbound.links.types import Arm

NO_VALID_SAMPLE = "no-valid-sample"
"""Code of the reason of such a row."""


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
        seen=f"{what}: {how.rstrip('.')}.{_last_words(log)}",
        why="This transfer gave no result; an engine would end here.",
        remedy="Read the driver's messages (dmesg, Xid); what did not fail is measured.",
    )


def without_time(rows: Iterable[LinkRow]) -> list[Finding]:
    """One finding for each group and method whose times were no numbers."""
    found = {
        (" -> ".join(row.group), row.method): row
        for row in rows
        if row.reason is not None and row.reason.code == NO_VALID_SAMPLE
    }
    return [
        Finding(
            code="transfer-error",
            level=Level.SEEN,
            severity=Severity.ERROR,
            seen=f"{where}, {method}, {row.size_bytes:,} bytes: no sample gave a valid time.",
            why="The work was done, but how fast is unknown: gates or events failed.",
            remedy="Run again without profilers and other work; then read the driver's messages.",
        )
        for (where, method), row in found.items()
    ]


def _last_words(log: str) -> str:
    words = [line.strip() for line in log.splitlines() if line.strip()]
    return f" Its last words: {words[-1][:300]}" if words else ""
