"""Copies and collectives of this host into a study, one after the other (L1-L6)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from linkbound.evidence.study import Study
from linkbound.evidence.types import Finding
from linkbound.links.live.cell import Cell, CopyJob
from linkbound.links.live.collective_plan import plan_collectives
from linkbound.links.live.collective_records import measure_collectives
from linkbound.links.live.collective_types import CollectiveJob, Family
from linkbound.links.live.families import why_skipped
from linkbound.links.live.plan import size_range
from linkbound.links.live.records import (
    Kept,
    Origin,
    append_cell,
    append_finding,
    append_summaries,
)
from linkbound.links.live.request import Asked, asked_sizes
from linkbound.links.live.rows import LinkRow
from linkbound.links.live.state import State
from linkbound.links.live.sweep import Swept, sweep
from linkbound.links.types import Arm, Operation
from linkbound.topology.types import Gpu, Machine
from linkbound.values import Value

ARMS = (Arm.P2P, Arm.STAGED, Arm.NET)
QUICK_ARMS = (Arm.P2P, Arm.STAGED)
QUICK_SIZES = (8 * 1024, 1024**2, 64 * 1024**2)
"""A decode step's message, the bend of the curve, a prompt's message."""


QUICK_OPERATIONS = (Operation.ALL_REDUCE, Operation.SEND_RECV)
"""What splits by tensors and by stages wait for."""


class Watch(Protocol):
    """Who is told how far it is, and marks rows that others disturbed."""

    def begin(self, cell: Cell) -> None: ...

    def begin_collective(self, title: str) -> None: ...

    def flagged(self, row: LinkRow) -> LinkRow: ...


class Outcome(Value, frozen=True, kw_only=True):
    """What came of a run."""

    copies: tuple[Kept, ...]
    collectives: tuple[Kept, ...]
    findings: tuple[Finding, ...]

    @property
    def kept(self) -> tuple[Kept, ...]:
        return (*self.copies, *self.collectives)


def collective_jobs(
    machine: Machine, gpus: Sequence[Gpu], asked: Asked
) -> tuple[CollectiveJob, ...]:
    """NCCL in every arm, our own all-reduce and torch's, over the first 2, 4, 8, ... and all GPUs.

    A full sweep also takes all-reduces beside work.
    """
    labels = [gpu.label for gpu in gpus]
    counts = [count for count in (2, 4, 8, 16) if count < len(labels)]
    groups = [labels[:count] for count in (*counts, len(labels))]
    if asked.quick:
        return plan_collectives(
            machine,
            groups,
            QUICK_ARMS,
            QUICK_SIZES,
            operations=QUICK_OPERATIONS,
            families=(Family.NCCL,),
            control=False,
        )
    sizes = asked_sizes(asked) or size_range(1024, 1024**3, 4)
    families = [family for family in Family if why_skipped(family) is None]
    return plan_collectives(machine, groups, ARMS, sizes, families=families, work=True)


def measure(
    study: Study,
    origin: Origin,
    copies: Sequence[CopyJob],
    collectives: Sequence[CollectiveJob],
    environment: Mapping[str, str],
    watch: Watch,
    state: State,
) -> Outcome:
    """Every row is in the study before the next cell begins; curves and rates follow at the end."""
    kept, swept = _copies(study, origin, copies, environment, watch)
    collected = measure_collectives(
        study, origin, collectives, on_begin=watch.begin_collective, state=state
    )
    return Outcome(
        copies=tuple(kept),
        collectives=collected.kept,
        findings=(*swept.findings, *collected.findings),
    )


def _copies(
    study: Study,
    origin: Origin,
    jobs: Sequence[CopyJob],
    environment: Mapping[str, str],
    watch: Watch,
) -> tuple[list[Kept], Swept]:
    kept: list[Kept] = []

    def on_row(_cell: Cell | None, row: LinkRow) -> None:
        kept.append(append_cell(study, origin, watch.flagged(row)))

    on_cell: Callable[[Cell], None] = watch.begin
    try:
        swept = sweep(jobs, environment, on_cell=on_cell, on_row=on_row)
    finally:
        # Also after an interrupt: what was measured is then readable like all else.
        append_summaries(study, origin, kept)
    for finding in swept.findings:
        append_finding(study, origin, finding, swept.log)
    return kept, swept
