"""Which splits of a machine with many GPUs are worth judging one by one (D1).

A machine of eight has dozens of splits in three arms. A number of GPUs stays if its best split is
faster than every one on fewer, and all GPUs stay; of each number the fastest splits and the copies
of one GPU. `linkbound search` compares all of them.
"""

from collections.abc import Iterable

from linkbound.predict.types import Forecast
from linkbound.splits.types import Split

FEW_GPUS = 4
"""Up to so many GPUs every split is judged."""
FASTEST = 2
"""Splits of each number of GPUs that stay."""


def shortlist(forecasts: Iterable[Forecast], n_gpus: int) -> frozenset[Split]:
    """Splits that stay, of those that were priced on up to `n_gpus`."""
    best: dict[Split, float] = {}
    for one in forecasts:
        split, seconds = one.plan.split, one.latency_s.value
        best[split] = min(seconds, best.get(split, seconds))
    if n_gpus <= FEW_GPUS:
        return frozenset(best)
    kept: set[Split] = set()
    fastest = float("inf")
    for count in sorted({split.gpus for split in best}):
        ranked = sorted(
            (split for split in best if split.gpus == count),
            key=lambda split: (best[split], split.name),
        )
        if best[ranked[0]] < fastest or count == n_gpus:
            kept.update(ranked[:FASTEST])
            kept.update(split for split in ranked if split == Split(replicas=count))
        fastest = min(fastest, best[ranked[0]])
    return frozenset(kept)
