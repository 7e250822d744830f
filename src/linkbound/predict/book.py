"""Which curve prices an operation: measured here, published, or put together; never in silence.

Of curves measured by several tools the first of these prices: linkbound's own sweep (one process a
GPU as engines run, results checked), then torch in one process a GPU, then nccl-tests, whose single
process for all GPUs the recorded pair shows to be up to 8 % slower when staged. Small calls without
a CUDA graph take nccl-tests before torch, whose time there is its own launch. A sweep always goes
before a single size; two of one tool are told apart by the arm asked for, then by their length.

A group over which nothing was timed takes the curve of one that is joined alike, if there is one;
only without that a roofline.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from linkbound.evidence.types import Provenance
from linkbound.links.curves import find_all, read
from linkbound.links.live.records import METHOD as OWN_METHOD
from linkbound.links.types import (
    Arm,
    Curve,
    CurveKey,
    CurvePoint,
    Launch,
    Operation,
    PairLatency,
    PairRate,
    Timed,
)
from linkbound.predict.alike import links_alike, measured_groups, of_alike
from linkbound.predict.assumed import assumed_curve
from linkbound.predict.priors import engine_all_reduce_prior
from linkbound.topology.types import Gpu, Machine


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
        self._gpus = {gpu.key: gpu for gpu in machine.gpus}
        self._found: dict[tuple[Operation, tuple[str, ...], Arm, bool], Curve | None] = {}
        self._read: dict[tuple[Operation, tuple[str, ...], Arm, int], tuple[Timed, Curve]] = {}

    def gpu(self, key: str) -> Gpu:
        """The GPU with this key: plans of a large machine ask for thousands. Raises KeyError."""
        return self._gpus[key]

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
            self._found[key] = engine or self._any_curve(operation, group, arm)
        return self._found[key]

    def put_records(self, append: Callable[[Curve], str]) -> None:
        """Give every curve in use that no record holds one of its own; `append` returns its id."""
        for key, curve in self._found.items():
            if curve is not None and not curve.record_ids:
                self._found[key] = msgspec.structs.replace(curve, record_ids=(append(curve),))
        self._read.clear()

    def _engine_curve(self, group: tuple[str, ...]) -> Curve | None:
        """The engine's own all-reduce: timed here, over a group joined alike, or published."""
        return (
            self._engine_measured(group)
            or self._of_alike(Operation.ALL_REDUCE, group, self._engine_measured)
            or engine_all_reduce_prior(self.machine, group)
        )

    def _engine_measured(self, group: tuple[str, ...]) -> Curve | None:
        found = find_all(self.curves, Operation.ALL_REDUCE, group, Arm.P2P, Launch.GRAPH, "engine")
        return _first(found, Arm.P2P, _FOR_SMALL) if found else None

    def _any_curve(self, operation: Operation, group: tuple[str, ...], arm: Arm) -> Curve | None:
        """NCCL's: timed here, over a group joined alike, or put together from copies."""

        def measured(one: tuple[str, ...]) -> Curve | None:
            return self._nccl_curve(operation, one, arm)

        return (
            measured(group)
            or self._of_alike(operation, group, measured)
            or assumed_curve(operation, group, arm, self.rates, self.latencies)
        )

    def _nccl_curve(self, operation: Operation, group: tuple[str, ...], arm: Arm) -> Curve | None:
        graph, eager = (
            tuple(
                curve
                for name in ("nccl", "torch_nccl")
                for curve in find_all(self.curves, operation, group, arm, launch, name)
            )
            for launch in (Launch.GRAPH, Launch.EAGER)
        )
        if not graph and not eager:
            return None
        parts = [_first(graph or eager, arm, _FOR_SMALL)]
        if eager:
            parts.append(_first(eager, arm, _FOR_LARGE))
        return _joined(parts)

    def _of_alike(
        self,
        operation: Operation,
        group: tuple[str, ...],
        measured: Callable[[tuple[str, ...]], Curve | None],
    ) -> Curve | None:
        """Of the groups that were timed and are joined as this one is, the slowest one's curve."""
        found = [
            curve
            for other in measured_groups(self.curves, operation, len(group))
            if other != tuple(sorted(group)) and links_alike(self.machine, group, other, self.rates)
            for curve in (measured(other),)
            if curve is not None
        ]
        if not found:
            return None
        return of_alike(max(found, key=lambda one: read(one, MIDDLE_BYTES).time_s), group)


MIDDLE_BYTES = 1024 * 1024
"""At which curves of several groups are compared: neither latency nor bandwidth alone decides."""


class _Tool(StrEnum):
    OWN = "linkbound"
    TORCH = "torch"
    NCCL_TESTS = "nccl-tests"


_FOR_LARGE = (_Tool.OWN, _Tool.TORCH, _Tool.NCCL_TESTS)
_FOR_SMALL = (_Tool.OWN, _Tool.NCCL_TESTS, _Tool.TORCH)


def _tool(key: CurveKey) -> _Tool:
    if key.method.startswith(OWN_METHOD):
        return _Tool.OWN
    return _Tool.TORCH if key.implementation == "torch_nccl" else _Tool.NCCL_TESTS


def _first(curves: Iterable[Curve], arm: Arm, tools: tuple[_Tool, ...]) -> Curve:
    """The curve that prices, whatever the order in which curves were read."""

    def preference(curve: Curve) -> tuple[bool, int, bool, int, str, str]:
        return (
            len(curve.points) == 1,
            tools.index(_tool(curve.key)),
            curve.key.arm is not arm,
            -len(curve.points),
            curve.key.method,
            curve.source,
        )

    return min(curves, key=preference)


def _joined(parts: list[Curve]) -> Curve:
    """Small calls from a CUDA graph, where the launch is hidden; larger ones as they were timed."""
    points: list[CurvePoint] = []
    used = []
    for part in parts:
        more = [one for one in part.points if not points or one.size_bytes > points[-1].size_bytes]
        if more:
            points += more
            used.append(part)
    return Curve(
        key=parts[0].key,
        points=tuple(points),
        provenance=Provenance.MEASURED,
        source="; ".join(dict.fromkeys(part.source for part in used)),
        record_ids=tuple(dict.fromkeys(one for part in used for one in part.record_ids)),
    )
