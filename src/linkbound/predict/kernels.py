"""The all-reduces that were timed beside the engine's own: what a plan would take with one (D3)."""

from linkbound.links.curves import find, read
from linkbound.links.types import Arm, Curve, Launch, Operation, Timed
from linkbound.predict.book import CurveBook

KERNELS = ("one_shot", "two_shot", "symm_mem")


def kernels_timed(book: CurveBook, group: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the other all-reduces were timed over these GPUs inside a CUDA graph."""
    return tuple(name for name in KERNELS if _curve(book, group, name) is not None)


class KernelBook(CurveBook):
    """The book with one all-reduce in place of the engine's own, at the sizes it was timed at."""

    def __init__(self, book: CurveBook, kernel: str) -> None:
        super().__init__(book.machine, (), direct_limit_bytes=book.direct_limit_bytes)
        self._book = book
        self._kernel = kernel

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve] | None:
        """Of an all-reduce in arm `p2p` the kernel's time; of all else, and beyond, the book's."""
        if operation is Operation.ALL_REDUCE and arm is Arm.P2P:
            curve = _curve(self._book, group, self._kernel)
            if curve is not None and size_bytes <= curve.points[-1].size_bytes:
                return read(curve, size_bytes), curve
        return self._book.read(operation, group, arm, size_bytes)


def _curve(book: CurveBook, group: tuple[str, ...], name: str) -> Curve | None:
    return find(book.curves, Operation.ALL_REDUCE, group, Arm.P2P, Launch.GRAPH, name)
