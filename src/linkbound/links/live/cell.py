"""A cell: the unit of measuring that may hang, fail or be skipped by itself; and a child's job.

Plain values: the parent writes them, the child reads them (L1-L3, L6).
"""

from collections.abc import Mapping
from enum import StrEnum

from linkbound.links.live.cuda import DRIVER
from linkbound.links.live.sampling import Rule
from linkbound.links.live.state import STATE
from linkbound.links.live.tasks import PEER_METHODS, Method
from linkbound.links.types import Arm
from linkbound.units import format_size
from linkbound.values import Value


class CellKind(StrEnum):
    """What is done in a cell."""

    VERIFY = "verify"
    CURVE = "curve"
    RATE = "rate"
    BOTH_WAYS = "both_ways"
    PROOF = "proof"
    SET = "set"
    ISSUE = "issue_interval"
    END_TO_END = "end_to_end"
    CHASE = "chase"
    PINGPONG = "pingpong"
    LAUNCH = "launch_costs"
    PIECES = "pieces"
    WORK = "under_work"


class Member(Value, frozen=True, kw_only=True):
    """One of several copies that run together."""

    src: str
    dst: str
    method: Method


class Cell(Value, frozen=True, kw_only=True):
    """One measurement of one pair (or set of pairs)."""

    kind: CellKind
    src: str
    dst: str
    method: Method | None = None
    size_bytes: int = 0
    sizes: tuple[int, ...] = ()
    """For a check of all sizes at once."""
    pieces: int = 1
    node: int | None = None
    name: str = ""
    """Of a set, of the work, or `kv`."""
    members: tuple[Member, ...] = ()

    @property
    def title(self) -> str:
        """As it stands in progress and in findings."""
        parts = [f"{self.src} -> {self.dst}", str(self.method or ""), self.kind.value, self.name]
        if self.size_bytes:
            parts.append(format_size(self.size_bytes))
        if self.node is not None:
            parts.append(f"node {self.node}")
        return ", ".join(part for part in parts if part)

    @property
    def condemned_by(self) -> frozenset[str]:
        """Verdicts that leave this cell without a speed."""
        pairs = [(one.src, one.dst, one.method) for one in self.members]
        if self.kind is CellKind.BOTH_WAYS and self.method is not None:
            pairs.append((self.dst, self.src, self.method))
        if self.method is not None:
            pairs.append((self.src, self.dst, self.method))
        if self.kind in (CellKind.CHASE, CellKind.PINGPONG):
            pairs.append((self.src, self.dst, Method.SM_READ))
        return frozenset(condemnation(*pair) for pair in pairs)


def condemnation(src: str, dst: str, method: Method) -> str:
    """What a fault condemns: the pair for all that is direct, else this method of it."""
    if method in PEER_METHODS:
        return f"{src}>{dst} direct"
    return f"{src}>{dst} {method}"


class JobGpu(Value, frozen=True, kw_only=True):
    """A GPU by the machine's label and by what CUDA calls it."""

    label: str
    uuid: str


class CopyJob(Value, frozen=True, kw_only=True):
    """What one child measures: cells of one arm."""

    arm: Arm
    gpus: tuple[JobGpu, ...]
    cells: tuple[Cell, ...]
    rule: Rule = Rule()
    condemned: tuple[str, ...] = ()
    node_cpus: Mapping[int, tuple[int, ...]] = {}
    driver: str = DRIVER
    state: str = STATE
