"""Links as a question supposes them: stated, halved, or another machine's (D5). Never measured."""

from collections.abc import Collection

import msgspec

from linkbound.evidence.types import Provenance
from linkbound.links.types import Arm, Curve, CurvePoint, Operation, Timed
from linkbound.predict.book import CurveBook
from linkbound.predict.stated import StatedBook

DIRECT = (Arm.P2P, Arm.NCCL)


class SupposedBook(CurveBook):
    """A book that answers for some arms from another one, and for the rest as before."""

    def __init__(self, book: CurveBook, other: CurveBook, arms: Collection[Arm]) -> None:
        super().__init__(book.machine, (), direct_limit_bytes=book.direct_limit_bytes)
        self._book = book
        self._other = other
        self._arms = frozenset(arms)

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve] | None:
        """The supposed time, or the machine's own."""
        book = self._other if arm in self._arms else self._book
        return book.read(operation, group, arm, size_bytes)


class HalvedBook(CurveBook):
    """Every link with half its lanes: bytes take twice as long, the least of a call stays."""

    def __init__(self, book: CurveBook) -> None:
        super().__init__(book.machine, (), direct_limit_bytes=book.direct_limit_bytes)
        self._book = book

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve] | None:
        """Twice the time beyond that of the smallest call on the curve."""
        found = self._book.read(operation, group, arm, size_bytes)
        if found is None:
            return None
        timed, curve = found
        least = min(timed.time_s, curve.points[0].time_s)
        halved = _supposed(
            Timed(
                time_s=2 * timed.time_s - least,
                low_s=min(2 * timed.time_s - least, 2 * timed.low_s - least),
                high_s=2 * timed.high_s - least,
                provenance=timed.provenance,
            )
        )
        return halved, _told(curve, f"half the lanes of: {curve.source}", halved, size_bytes)


class OtherMachineBook(CurveBook):
    """What another machine's GPUs take for the same call: the first of `gpus` stand for any here.

    `gpus` are the labels of those that splits use there.
    """

    def __init__(self, book: CurveBook, other: CurveBook, gpus: tuple[str, ...], name: str) -> None:
        super().__init__(book.machine, (), direct_limit_bytes=book.direct_limit_bytes)
        self._other = other
        self._gpus_there = gpus
        self._name = name

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve] | None:
        """The other machine's time; None where it has too few GPUs or no curve."""
        if len(group) > len(self._gpus_there):
            return None
        theirs = self._gpus_there[: len(group)]
        found = self._other.read(operation, theirs, arm, size_bytes)
        if found is None:
            return None
        timed, curve = _supposed(found[0]), found[1]
        return timed, _told(curve, f"as on {self._name}: {curve.source}", timed, size_bytes)


def stated_direct(book: CurveBook, latency_s: float, bytes_per_s: float) -> CurveBook:
    """Direct arms over a stated link; staged ones as they are."""
    stated = StatedBook(book, latency_s=latency_s, bytes_per_s=bytes_per_s)
    return SupposedBook(book, stated, DIRECT)


def _supposed(timed: Timed) -> Timed:
    return msgspec.structs.replace(timed, provenance=Provenance.STATED)


def _told(curve: Curve, source: str, timed: Timed, size_bytes: int) -> Curve:
    return msgspec.structs.replace(
        curve,
        provenance=Provenance.STATED,
        source=source,
        points=(CurvePoint(size_bytes=size_bytes, time_s=timed.time_s),),
    )
