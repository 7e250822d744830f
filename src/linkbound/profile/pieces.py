"""A traced step as what ran when on each rank: the parts as a picture has them (P1).

A call is drawn as waiting first and the wire after it: it ends together on all ranks.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from linkbound.profile.decompose import align, by_step, exposed_pieces, wires_of
from linkbound.profile.types import Interval, KernelClass, StepSpan, Timeline
from linkbound.values import Value


class PieceKind(StrEnum):
    """What a rank was busy with; a gap is what lies between pieces."""

    COMPUTE = "compute"
    WIRE = "wire"
    WAITING = "waiting"
    UNDIVIDED = "wire and waiting"
    """Of a call that not every rank shows."""
    HOST_COPY = "copy with the host"


class Piece(Value, frozen=True, kw_only=True):
    """Seconds since the first rank's step began."""

    kind: PieceKind
    start_s: float
    end_s: float


class RankPieces(Value, frozen=True, kw_only=True):
    """One rank's pieces, ascending; no two overlap."""

    rank: int
    end_s: float
    """Of its step."""
    pieces: tuple[Piece, ...]


class StepPieces(Value, frozen=True, kw_only=True):
    """One step of all ranks."""

    ranks: tuple[RankPieces, ...]
    aligned: bool
    """Whether the ranks' clocks could be compared; else each row begins with its own step."""


def last_step(timelines: Sequence[Timeline]) -> StepPieces | None:
    """The last traced step that every rank shows; None where there is none."""
    step = min((len(one.steps) for one in timelines), default=0) - 1
    if step < 0:
        return None
    intervals = [by_step(one)[step] for one in timelines]
    wires = wires_of(intervals, timelines)
    offsets = align(timelines)
    begins = [one.steps[step].start_s for one in timelines]
    if offsets is not None:
        begins = [begins[0] + one.offset_s for one in offsets]
    return StepPieces(
        ranks=tuple(
            RankPieces(
                rank=one.rank,
                end_s=one.steps[step].end_s - begin_s,
                pieces=tuple(_pieces(one.steps[step], ran, known, begin_s)),
            )
            for one, ran, known, begin_s in zip(timelines, intervals, wires, begins, strict=True)
        ),
        aligned=offsets is not None,
    )


def _pieces(
    span: StepSpan, intervals: Sequence[Interval], wires: dict[int, float], begin_s: float
) -> Iterator[Piece]:
    for at, start_s, end_s in exposed_pieces(span, intervals):
        for kind, from_s, to_s in _divided(intervals[at], start_s, end_s, wires):
            if to_s > from_s:
                yield Piece(kind=kind, start_s=from_s - begin_s, end_s=to_s - begin_s)


def _divided(
    one: Interval, start_s: float, end_s: float, wires: dict[int, float]
) -> Iterator[tuple[PieceKind, float, float]]:
    """A stretch of an interval; of a call what comes before the wire is waiting."""
    if one.kernel is KernelClass.COMPUTE:
        yield PieceKind.COMPUTE, start_s, end_s
    elif one.kernel is KernelClass.HOST_COPY:
        yield PieceKind.HOST_COPY, start_s, end_s
    elif id(one) not in wires:
        yield PieceKind.UNDIVIDED, start_s, end_s
    else:
        turn_s = min(max(one.end_s - wires[id(one)], start_s), end_s)
        yield PieceKind.WAITING, start_s, turn_s
        yield PieceKind.WIRE, turn_s, end_s
