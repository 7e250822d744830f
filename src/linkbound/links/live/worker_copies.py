"""The child that measures copies: `python -m linkbound.links.live.worker_copies JOB ROWS`.

Takes its cells in order; wrong bytes condemn a pair, an error of the driver ends the child (L6).
"""

import sys
from collections.abc import Callable, Iterator, Mapping

from linkbound.errors import LinkboundError
from linkbound.links.live.bench import Bench
from linkbound.links.live.buffers import Buffers
from linkbound.links.live.cell import Cell, CellKind, CopyJob
from linkbound.links.live.condemn import condemned_by_row
from linkbound.links.live.cuda import Cuda, CudaError, open_cuda
from linkbound.links.live.jobs import Lines, read_job
from linkbound.links.live.latency import chase, end_to_end, issue_interval, launch_costs, pingpong
from linkbound.links.live.pieces import pieces
from linkbound.links.live.rows import LinkRow
from linkbound.links.live.speeds import both_ways, curve, proof, rate, verify
from linkbound.links.live.state import open_state
from linkbound.links.live.station import Station, without_figure
from linkbound.links.live.tasks import Method
from linkbound.links.live.together import together, under_work
from linkbound.links.live.verify import Checker
from linkbound.links.types import Arm

MEASURES: Mapping[CellKind, Callable[[Station, Cell], Iterator[LinkRow]]] = {
    CellKind.VERIFY: verify,
    CellKind.CURVE: curve,
    CellKind.RATE: rate,
    CellKind.BOTH_WAYS: both_ways,
    CellKind.PROOF: proof,
    CellKind.SET: together,
    CellKind.ISSUE: issue_interval,
    CellKind.END_TO_END: end_to_end,
    CellKind.CHASE: chase,
    CellKind.PINGPONG: pingpong,
    CellKind.LAUNCH: launch_costs,
    CellKind.PIECES: pieces,
    CellKind.WORK: under_work,
}


def main(arguments: list[str]) -> int:
    """Measure the job of the first file; the exit code is 1 after an error of the driver."""
    job, lines = read_job(arguments, CopyJob)
    try:
        station = set_up(job, lines)
        measure(job, station, lines)
        lines.done()
    except LinkboundError as error:
        lines.fault(str(error))
        return 1
    finally:
        lines.close()
    return 0


def set_up(job: CopyJob, lines: Lines) -> Station:
    """Contexts on the job's GPUs, with peer access in the arm that is about it."""
    lines.begin("the start of CUDA")
    cuda = open_cuda(job.driver)
    by_uuid = {facts.uuid: facts for facts in cuda.devices()}
    hidden = [gpu.label for gpu in job.gpus if gpu.uuid not in by_uuid]
    if hidden:
        raise CudaError(
            f"CUDA does not see {', '.join(hidden)}.",
            why="CUDA_VISIBLE_DEVICES, MIG or a container hides them.",
            hint="Show them, or leave their pairs out with --pairs.",
        )
    devices = [by_uuid[gpu.uuid] for gpu in job.gpus]
    bench = Bench(cuda, devices, [gpu.label for gpu in job.gpus])
    node_cpus = {node: frozenset(cpus) for node, cpus in job.node_cpus.items()}
    buffers = Buffers(cuda, node_cpus)
    if job.arm is Arm.P2P:
        open_access(cuda, bench)
    return Station(
        bench=bench,
        buffers=buffers,
        checker=Checker(bench, buffers),
        state=open_state(job.state),
        arm=job.arm,
        rule=job.rule,
    )


def open_access(cuda: Cuda, bench: Bench) -> None:
    """Grant access for every ordered pair that the driver allows; each direction by itself."""
    for device in bench.facts.values():
        for peer in bench.facts.values():
            if device != peer and cuda.can_access(device.ordinal, peer.ordinal):
                cuda.set_access(device.ordinal, peer.ordinal, True)


def measure(job: CopyJob, station: Station, lines: Lines) -> None:
    """Every cell that nothing condemned; the others get a row that says why not."""
    condemned = set(job.condemned)
    for cell in job.cells:
        lines.begin(cell.title)
        if cell.condemned_by & condemned:
            text = "An earlier check of this path failed: no speed is given."
            lines.row(without_figure(cell, station.arm, "path-failed", text))
            continue
        if not is_granted(station, cell):
            text = "The driver does not grant peer access for this pair."
            lines.row(without_figure(cell, station.arm, "denied", text))
            continue
        for row in MEASURES[cell.kind](station, cell):
            lines.row(row)
            if row.wrong:
                condemned |= condemned_by_row(row, cell)


def is_granted(station: Station, cell: Cell) -> bool:
    """Whether the GPUs that reach over may do so; staged paths need no access."""
    if station.arm is not Arm.P2P:
        return True
    bench = station.bench
    return all(
        bench.cuda.can_access(bench.ordinal(device), bench.ordinal(peer))
        for device, peer in reaches(cell)
    )


def reaches(cell: Cell) -> tuple[tuple[str, str], ...]:
    """Who reaches into whose memory: the source when it pushes, else the destination."""
    there, back = (cell.src, cell.dst), (cell.dst, cell.src)
    if cell.kind is CellKind.CHASE:
        return (back,)
    if cell.kind in (CellKind.PINGPONG, CellKind.LAUNCH):
        return (there, back)
    copies = [(one.src, one.dst, one.method) for one in cell.members]
    if not copies and cell.method is not None:
        copies = [(cell.src, cell.dst, cell.method)]
        if cell.kind is CellKind.BOTH_WAYS:
            copies.append((cell.dst, cell.src, cell.method))
    pushes = (Method.CE_PUSH, Method.SM_WRITE)
    return tuple(
        (src, dst) if method in pushes else (dst, src)
        for src, dst, method in copies
        if method not in (Method.H2D, Method.D2H)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
