"""Groups of GPUs that are joined alike: what was timed over one is a guess for the other (L4).

Alike are GPUs of the same models whose pairs have the same links and the same answers of the
driver, all of them known. That says nothing of a bad slot or cable: measured rates of pairs that
differ say so, and then the groups are not alike.
"""

from collections.abc import Iterable, Sequence

import msgspec

from linkbound.evidence.types import Provenance
from linkbound.links.types import Arm, Curve, Operation, PairRate
from linkbound.splits.modules import SAME_RATE
from linkbound.topology.types import Capability, Machine

ALIKE_SPREAD = 0.1
"""How far a curve of alike links may be off: half of what rates of alike pairs may differ by, and
the 5 % of a run that was not repeated."""


def links_alike(
    machine: Machine, one: Sequence[str], other: Sequence[str], rates: Iterable[PairRate]
) -> bool:
    """Whether some order of `other` is joined as `one` is, GPU by GPU and pair by pair."""
    joined = _Joined(machine, rates)
    return len(one) == len(other) and joined.matches(tuple(one), (), tuple(other))


def of_alike(curve: Curve, group: tuple[str, ...]) -> Curve:
    """The curve of another group as one of `group`: wider, and no measurement of it."""
    points = tuple(
        msgspec.structs.replace(
            point,
            low_s=(point.time_s if point.low_s is None else point.low_s) * (1 - ALIKE_SPREAD),
            high_s=(point.time_s if point.high_s is None else point.high_s) * (1 + ALIKE_SPREAD),
        )
        for point in curve.points
    )
    source = f"{curve.source}, timed over {', '.join(curve.key.group)}, which are joined alike"
    return msgspec.structs.replace(
        curve,
        key=msgspec.structs.replace(curve.key, group=group),
        points=points,
        provenance=Provenance.EXTRAPOLATED,
        source=source,
    )


class _Joined:
    """What tells one pair of a machine from another."""

    def __init__(self, machine: Machine, rates: Iterable[PairRate]) -> None:
        self._models = {gpu.label: (gpu.model, gpu.memory_bytes) for gpu in machine.gpus}
        label = {gpu.key: gpu.label for gpu in machine.gpus}
        self._paths = {
            (label[path.pair.src], label[path.pair.dst]): (
                path.label,
                path.status.get(Capability.READ),
            )
            for path in machine.pairs
        }
        self._rates: dict[tuple[str, str], float] = {}
        for rate in rates:
            direct = rate.operation is Operation.COPY and rate.arm is Arm.P2P
            if direct and rate.concurrency == "alone":
                pair = (rate.src, rate.dst)
                self._rates[pair] = max(self._rates.get(pair, 0.0), rate.bytes_per_s)

    def matches(self, one: tuple[str, ...], placed: tuple[str, ...], left: tuple[str, ...]) -> bool:
        """Whether the GPUs `left` can follow those `placed` so that all of them match `one`."""
        if not left:
            return True
        at = len(placed)
        return any(
            self._models[gpu] == self._models[one[at]]
            and all(
                self._same((one[at], one[before]), (gpu, placed[before]))
                and self._same((one[before], one[at]), (placed[before], gpu))
                for before in range(at)
            )
            and self.matches(one, (*placed, gpu), tuple(each for each in left if each != gpu))
            for gpu in left
        )

    def _same(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        path = self._paths.get(one)
        if path is None or path[0] is None or path != self._paths.get(other):
            return False
        slow, fast = sorted(self._rates.get(pair, 0.0) for pair in (one, other))
        return slow == 0 or fast <= slow * SAME_RATE


def measured_groups(
    curves: Iterable[Curve], operation: Operation, size: int
) -> tuple[tuple[str, ...], ...]:
    """Groups of `size` GPUs over which something of `operation` was timed."""
    found = (curve.key.group for curve in curves if curve.key.operation is operation)
    return tuple(dict.fromkeys(tuple(sorted(one)) for one in found if len(one) == size))
