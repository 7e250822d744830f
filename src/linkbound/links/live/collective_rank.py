"""One process of a job: its ranks, their cells, and what came of them (L4).

`python -m linkbound.links.live.collective_rank`, started by worker_collectives with its part of
the job as the first line of standard input.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from linkbound.errors import LinkboundError
from linkbound.links.live import allreduce_own, allreduce_symm
from linkbound.links.live.allreduce_own import OwnCalls
from linkbound.links.live.allreduce_symm import SymmCalls
from linkbound.links.live.collective_buffers import RankBuffers
from linkbound.links.live.collective_device import CudaDevice
from linkbound.links.live.collective_evidence import (
    Evidence,
    evidence_of,
    read_logs,
    without_number,
)
from linkbound.links.live.collective_exchange import Exchange, PipeExchange
from linkbound.links.live.collective_measure import Work
from linkbound.links.live.collective_rows import NCCL_WAYS, cells_of, row_of, title_of
from linkbound.links.live.collective_seam import Device
from linkbound.links.live.collective_types import Cell, CollectiveJob, Family, RankReport
from linkbound.links.live.nccl_calls import NcclCalls
from linkbound.links.live.nccl_library import Nccl, NcclLibrary
from linkbound.links.live.rows import LinkRow
from linkbound.values import Value

_PEER_FACTS = {"path": "direct"}
"""Kernels that load and store a peer's memory have no other path."""


class Part(Value, frozen=True, kw_only=True):
    """What one process has to do of a job."""

    job: CollectiveJob
    process: int
    ranks: tuple[int, ...]


class Logs:
    """The evidence in the ranks' logs, read again only where they have grown."""

    def __init__(self, job: CollectiveJob, folder: Path | None) -> None:
        self._job = job
        self._folder = folder
        self._size = -1
        self._evidence = Evidence(facts={})

    def evidence(self) -> Evidence:
        """What the logs say by now."""
        if self._folder is None:
            return self._evidence
        text = read_logs(self._folder)
        if len(text) != self._size:
            self._size = len(text)
            self._evidence = evidence_of(text, self._job.arm)
        return self._evidence


def open_buffers(part: Part, open_device: Callable[[str], Device]) -> list[RankBuffers]:
    """The buffers of this process's ranks."""
    job = part.job
    return [
        RankBuffers(
            open_device(job.devices[rank]),
            rank=rank,
            ranks=len(job.group),
            largest_bytes=max(job.sizes_bytes),
            dtype=job.dtype,
        )
        for rank in part.ranks
    ]


def run_nccl(part: Part, ranks: Sequence[RankBuffers], nccl: Nccl, exchange: Exchange) -> None:
    """All cells of a job over NCCL; each row has its path, or the reason why it has no time."""
    exchange.begin("the start of NCCL")
    calls = NcclCalls(nccl, ranks, exchange)
    work = Work(part.job, ranks, calls, exchange)
    logs = Logs(part.job, log_folder(os.environ) if exchange.process == 0 else None)
    for cell in cells_of(part.job, NCCL_WAYS):
        report = _measured(part.job, cell, work, exchange)
        if exchange.process == 0:
            exchange.row(proven(part.job, cell, report, logs.evidence()))
    exchange.begin("the end of NCCL")
    calls.close()


def run_own(part: Part, ranks: Sequence[RankBuffers], exchange: Exchange) -> None:
    """All cells of a job by our own kernels."""
    exchange.begin("mapping the memory of the peers")
    calls = OwnCalls(ranks[0], exchange, largest_bytes=max(part.job.sizes_bytes))
    work = Work(part.job, ranks, calls, exchange)
    for cell in cells_of(part.job, allreduce_own.WAYS):
        if calls.takes(cell):
            report = _measured(part.job, cell, work, exchange)
            exchange.row(row_of(part.job, cell, report, _PEER_FACTS | {"transport": "IPC"}))
            calls.require_arrival()


def run_torch(part: Part, ranks: Sequence[RankBuffers], exchange: Exchange) -> None:
    """All cells of a job by torch's symmetric memory."""
    exchange.begin("the start of torch")
    largest_bytes = max(part.job.sizes_bytes)
    calls = SymmCalls(ranks[0], exchange, largest_bytes=largest_bytes)
    work = Work(part.job, ranks, calls, exchange)
    for cell in cells_of(part.job, allreduce_symm.WAYS):
        if calls.takes(cell):
            report = _measured(part.job, cell, work, exchange)
            exchange.row(row_of(part.job, cell, report, _PEER_FACTS | {"transport": "VMM"}))
    calls.close()


def proven(job: CollectiveJob, cell: Cell, report: RankReport, evidence: Evidence) -> LinkRow:
    """The row with the evidence of its path; without samples where that is not the arm's."""
    row = row_of(job, cell, report, evidence.facts)
    if evidence.contradiction is not None and row.reason is None:
        return without_number(row, evidence.contradiction)
    return row


def log_folder(environment: Mapping[str, str]) -> Path | None:
    """Where NCCL writes its logs here; None where nobody asked it to."""
    file = environment.get("NCCL_DEBUG_FILE")
    return None if file is None else Path(file).parent


def _measured(job: CollectiveJob, cell: Cell, work: Work, exchange: Exchange) -> RankReport:
    exchange.begin(title_of(job, cell))
    return work.measure(cell, job.seed + cell.size_bytes)


def run_part(part: Part, exchange: Exchange) -> None:
    """The cells of a part on this host's GPUs."""
    ranks = open_buffers(part, CudaDevice)
    match part.job.family:
        case Family.NCCL:
            run_nccl(part, ranks, NcclLibrary(part.job.dtype), exchange)
        case Family.OWN:
            run_own(part, ranks, exchange)
        case Family.TORCH:
            run_torch(part, ranks, exchange)


def main() -> int:
    """Run this process's part; 1 after a fault, which was said."""
    exchange = PipeExchange()
    part = msgspec.json.decode(exchange.read(), type=Part)
    exchange.process = part.process
    try:
        run_part(part, exchange)
    except LinkboundError as error:
        exchange.fault(str(error))
        return 1
    exchange.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
