"""Which curve prices an operation: measured here, published, or put together; never in silence."""

from collections.abc import Callable

import msgspec

from linkbound.evidence.types import Provenance
from linkbound.links.curves import find_all, read
from linkbound.links.types import (
    Arm,
    Curve,
    CurvePoint,
    Launch,
    Operation,
    PairLatency,
    PairRate,
    Timed,
)
from linkbound.predict.assumed import assumed_curve
from linkbound.predict.priors import engine_all_reduce_prior
from linkbound.topology.types import Machine


class CurveBook:
    """Curves of one machine, looked up by operation, GPUs and arm; answers are kept.

    `direct_limit_bytes`: from this size on the engine leaves its own all-reduce for NCCL.
    """

    def __init__(
        self,
        machine: Machine,
        curves: tuple[Curve, ...],
        rates: tuple[PairRate, ...] = (),
        latencies: tuple[PairLatency, ...] = (),
        *,
        direct_limit_bytes: int,
    ) -> None:
        self.machine = machine
        self.curves = curves
        self.rates = rates
        self.latencies = latencies
        self.direct_limit_bytes = direct_limit_bytes
        self._found: dict[tuple[Operation, tuple[str, ...], Arm, bool], Curve | None] = {}
        self._read: dict[tuple[Operation, tuple[str, ...], Arm, int], tuple[Timed, Curve]] = {}

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve] | None:
        """Device time of one call and the curve it is from; None where nothing is known.

        `group` are GPU labels in rank order.
        """
        key = (operation, group, arm, size_bytes)
        if key not in self._read:
            curve = self.curve(operation, group, arm, size_bytes)
            if curve is None:
                return None
            self._read[key] = (read(curve, size_bytes), curve)
        return self._read[key]

    def curve(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> Curve | None:
        """The curve that prices a call of this size."""
        own = (
            arm is Arm.P2P
            and operation is Operation.ALL_REDUCE
            and size_bytes < self.direct_limit_bytes
        )
        key = (operation, group, arm, own)
        if key not in self._found:
            engine = self._engine_curve(group) if own else None
            self._found[key] = engine or self._nccl_curve(operation, group, arm)
        return self._found[key]

    def put_records(self, append: Callable[[Curve], str]) -> None:
        """Give every curve in use that no record holds one of its own; `append` returns its id."""
        for key, curve in self._found.items():
            if curve is not None and not curve.record_ids:
                self._found[key] = msgspec.structs.replace(curve, record_ids=(append(curve),))
        self._read.clear()

    def _engine_curve(self, group: tuple[str, ...]) -> Curve | None:
        measured = find_all(
            self.curves, Operation.ALL_REDUCE, group, Arm.P2P, Launch.GRAPH, "engine"
        )
        if measured:
            return measured[0]
        models = {self.machine.gpu(label).model for label in group}
        return engine_all_reduce_prior(models.pop(), group) if len(models) == 1 else None

    def _nccl_curve(self, operation: Operation, group: tuple[str, ...], arm: Arm) -> Curve | None:
        graph = find_all(self.curves, operation, group, arm, Launch.GRAPH, "nccl")
        eager = (
            *find_all(self.curves, operation, group, arm, Launch.EAGER, "torch_nccl"),
            *find_all(self.curves, operation, group, arm, Launch.EAGER, "nccl"),
        )
        if graph or eager:
            return _device_curve(graph, eager)
        return assumed_curve(operation, group, arm, self.rates, self.latencies)


def _device_curve(graph: tuple[Curve, ...], eager: tuple[Curve, ...]) -> Curve:
    """Small calls from a CUDA graph, where the launch is hidden; larger ones as they were timed.

    NCCL called by torch in one process a GPU is what engines run: for large calls it goes before
    a single process for all GPUs, which the recorded pair shows to be up to 8 % slower when staged.
    """
    first = graph[0] if graph else eager[-1]
    parts = [first, *eager[:1]]
    points: list[CurvePoint] = []
    for part in parts:
        points += [
            one for one in part.points if not points or one.size_bytes > points[-1].size_bytes
        ]
    return Curve(
        key=first.key,
        points=tuple(points),
        provenance=Provenance.MEASURED,
        source="; ".join(dict.fromkeys(part.source for part in parts)),
        record_ids=tuple(dict.fromkeys(one for part in parts for one in part.record_ids)),
    )
