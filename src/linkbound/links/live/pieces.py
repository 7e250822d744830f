"""The same bytes in one and in many pieces, in order and scattered, as blocks of a KV cache (L2).

The copy engine gets a copy a piece; a kernel gathers all pieces in one launch.
"""

from collections.abc import Callable, Iterator

from linkbound.links.live.bench import Task
from linkbound.links.live.cell import Cell
from linkbound.links.live.rows import LinkRow
from linkbound.links.live.speeds import wrong_row
from linkbound.links.live.station import Station
from linkbound.links.live.tasks import BLOCKS_PER_MULTIPROCESSOR, THREADS, Ends, Method

GATED_PIECES = 512
"""More copies than that would fill the queue behind a closed gate."""
STEP = 521
"""Pieces are taken this far apart: prime to every number of pieces that is used."""


def pieces(station: Station, cell: Cell) -> Iterator[LinkRow]:
    """One transfer in `cell.pieces` pieces, gathered from scattered places where there are many."""
    ends = station.ends(cell)
    step = STEP if cell.pieces > 1 else 1
    task = Task(
        first=ends.task.first,
        last=ends.task.first,
        enqueue=_enqueue(station, cell, ends, step),
        size_bytes=cell.size_bytes,
        gated=cell.method is Method.SM_WRITE or cell.pieces <= GATED_PIECES,
    )
    station.checker.prepare(ends)
    station.bench.run(task)
    fields = station.timed(cell, task)
    fields |= {"pieces": cell.pieces, "method": _name(cell)}
    fields["facts"] = {"piece_bytes": str(cell.size_bytes // cell.pieces), "step": str(step)}
    fields["concurrency"] = "alone"
    verdict = station.checker.check_pieces(ends, cell.pieces, step)
    if verdict.wrong:
        yield wrong_row(station, cell, verdict, **fields)
    else:
        yield station.row(cell, **fields, wrong=0)


def _name(cell: Cell) -> str:
    layout = "scattered" if cell.pieces > 1 else "contiguous"
    return f"{cell.name or 'pieces'} {layout} {cell.method}"


def _enqueue(station: Station, cell: Cell, ends: Ends, step: int) -> Callable[[], None]:
    cuda, on = station.bench.cuda, ends.task.first
    piece = cell.size_bytes // cell.pieces
    if cell.method is Method.SM_WRITE:
        most = station.bench.facts[cell.src].multiprocessors * BLOCKS_PER_MULTIPROCESSOR
        blocks = min(cell.pieces, most)
        if cell.pieces == 1:
            return ends.task.enqueue
        words = (ends.dst_at, ends.src_at, piece, cell.pieces, step)
        return lambda: cuda.launch("copy_pieces", on, blocks, THREADS, *words)
    src, dst = (station.bench.ordinal(label) for label in (cell.src, cell.dst))

    def copies() -> None:
        for number in range(cell.pieces):
            src_at = ends.src_at + number * step % cell.pieces * piece
            cuda.copy_peer(ends.dst_at + number * piece, dst, src_at, src, piece, on)

    return copies
