"""Crossings multiplied by curves, for a placement and an arm: the heart of the program (S2, D5)."""

from linkbound.evidence.types import Provenance
from linkbound.links.types import Arm, Curve
from linkbound.predict.book import CurveBook
from linkbound.predict.types import Estimate
from linkbound.splits.types import Crossing
from linkbound.values import Value


class Priced(Value, frozen=True, kw_only=True):
    """What the crossings of one step cost one rank, in seconds."""

    time: Estimate
    calls: int
    provenance: Provenance
    curves: tuple[Curve, ...]


class NoCurve(Value, frozen=True, kw_only=True):
    """A crossing without a price: what is missing."""

    crossing: Crossing
    group: tuple[str, ...]
    arm: Arm


def price(
    crossings: tuple[Crossing, ...], labels: tuple[str, ...], arm: Arm, book: CurveBook
) -> Priced | NoCurve:
    """Sum over crossings of calls x time of a call of that size; `labels[rank]` is its GPU."""
    value = low = high = 0.0
    calls = 0
    weakest = Provenance.MEASURED
    curves: dict[int, Curve] = {}
    for crossing in crossings:
        group = tuple(labels[rank] for rank in crossing.ranks)
        found = book.read(crossing.operation, group, arm, crossing.size_bytes)
        if found is None:
            return NoCurve(crossing=crossing, group=group, arm=arm)
        timed, curve = found
        value += crossing.count * timed.time_s
        low += crossing.count * timed.low_s
        high += crossing.count * timed.high_s
        calls += crossing.count
        weakest = max(weakest, timed.provenance, key=_STRENGTH.__getitem__)
        curves[id(curve)] = curve
    return Priced(
        time=Estimate(value=value, low=low, high=high),
        calls=calls,
        provenance=weakest,
        curves=tuple(curves.values()),
    )


_STRENGTH = {provenance: rank for rank, provenance in enumerate(Provenance)}
