"""A link that the user states, or that a question supposes: latency and bandwidth (D5)."""

from linkbound.evidence.types import Provenance
from linkbound.links.types import Arm, Curve, CurveKey, CurvePoint, Launch, Operation, Timed
from linkbound.predict.assumed import wire_share
from linkbound.predict.book import CurveBook


class StatedBook(CurveBook):
    """A book whose every operation takes latency + wire bytes / bandwidth.

    `bytes_per_s` is what each link carries each way while the operation runs.
    """

    def __init__(self, book: CurveBook, *, latency_s: float, bytes_per_s: float) -> None:
        super().__init__(book.machine, (), direct_limit_bytes=book.direct_limit_bytes)
        self.latency_s = latency_s
        self.bytes_per_s = bytes_per_s

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve]:
        """The stated time of one call."""
        wire = size_bytes * wire_share(operation, len(group))
        time_s = self.latency_s + wire / self.bytes_per_s
        timed = Timed(time_s=time_s, low_s=time_s, high_s=time_s, provenance=Provenance.STATED)
        return timed, self._curve(operation, group, arm, size_bytes, time_s)

    def _curve(
        self,
        operation: Operation,
        group: tuple[str, ...],
        arm: Arm,
        size_bytes: int,
        time_s: float,
    ) -> Curve:
        return Curve(
            key=CurveKey(
                operation=operation,
                implementation="stated",
                group=group,
                arm=arm,
                launch=Launch.GRAPH,
            ),
            points=(CurvePoint(size_bytes=size_bytes, time_s=time_s),),
            provenance=Provenance.STATED,
            source=f"stated: {self.latency_s * 1e6:.2f} us and {self.bytes_per_s / 1e9:.2f} GB/s",
        )
