"""A GPU behind a slower link than the others of its group: all of them wait for it (D2, D3)."""

from collections.abc import Iterable, Sequence
from itertools import permutations

from linkbound.evidence.types import Figure, Provenance
from linkbound.links.types import Arm, Operation, PairRate
from linkbound.predict.types import Plan
from linkbound.units import format_rate
from linkbound.verdict.types import Reason

SLOWER = 2.0
"""Copies with it run at less than one over this of the rate between the others."""


def slow_member(
    plan: Plan, labels: Sequence[str], rates: Iterable[PairRate], record_ids: tuple[str, ...]
) -> Reason | None:
    """The one GPU of a plan that all its slow pairs have in common; None where there is none.

    `labels` are its GPUs in rank order, `record_ids` those of the rates.
    """
    best = _best(plan.arm, set(permutations(labels, 2)), rates)
    if plan.arm is None or len(labels) < 3 or len(best) < len(labels) * (len(labels) - 1):
        return None
    for label in labels:
        with_it = max(rate for pair, rate in best.items() if label in pair)
        without = min(rate for pair, rate in best.items() if label not in pair)
        if with_it * SLOWER < without:
            return Reason(
                code="slow-member",
                text=f"{plan.name} waits for {label} wherever all its GPUs meet: copies with it "
                f"run at most at {format_rate(with_it)}, between the others at "
                f"{format_rate(without)} and more.",
                figures=tuple(
                    Figure(
                        value=rate,
                        unit="bytes/s",
                        provenance=Provenance.MEASURED,
                        record_ids=record_ids,
                    )
                    for rate in (with_it, without)
                ),
                record_ids=record_ids,
            )
    return None


def _best(
    arm: Arm | None, pairs: set[tuple[str, str]], rates: Iterable[PairRate]
) -> dict[tuple[str, str], float]:
    direct = arm is not Arm.STAGED
    best: dict[tuple[str, str], float] = {}
    for one in rates:
        pair = (one.src, one.dst)
        same = one.arm is not None and (one.arm is not Arm.STAGED) is direct
        if (
            one.operation is Operation.COPY
            and same
            and one.concurrency == "alone"
            and pair in pairs
        ):
            best[pair] = max(best.get(pair, 0.0), one.bytes_per_s)
    return best
