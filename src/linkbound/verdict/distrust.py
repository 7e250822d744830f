"""Faults that were seen on a plan's own paths: such a plan is not kept on its times alone (L6)."""

import re
from collections.abc import Iterable, Mapping

from linkbound.evidence.types import Finding
from linkbound.links.types import Arm
from linkbound.predict.types import Plan
from linkbound.verdict.types import Reason

FAULT_ARMS: Mapping[str, frozenset[Arm]] = {
    "p2p-corruption": frozenset({Arm.P2P, Arm.NCCL}),
    "p2p-hang": frozenset({Arm.P2P, Arm.NCCL}),
    "wrong-values": frozenset({Arm.STAGED, Arm.NET}),
}
"""Codes of findings that forbid trust in a path, and the arms that take it."""
_LABEL = re.compile(r"\bGPU\d+\b")


def faults(
    plan: Plan, labels: Mapping[str, str], findings: Iterable[Finding]
) -> tuple[Reason, ...]:
    """A reason for each fault between GPUs of the plan; `labels` names its keys."""
    mine = {labels.get(key, key) for key in plan.placement.gpus}
    return tuple(
        Reason(
            code=one.code,
            text=f"{plan.name} is not to be trusted: {one.seen} {one.why}",
            record_ids=one.record_ids,
        )
        for one in findings
        if plan.arm in FAULT_ARMS.get(one.code, ()) and _touches(one, mine)
    )


def _touches(finding: Finding, mine: set[str]) -> bool:
    """Whether two of the GPUs that it names are the plan's; a leg to the host names one."""
    named = set(_LABEL.findall(finding.seen))
    return not named or len(named & mine) >= min(2, len(named))
