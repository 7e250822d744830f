"""Groups of GPUs that a matrix of rates shows by itself: blocks of alike pairs (L3)."""

from statistics import median

Cells = dict[tuple[str, str], float]
_APART = 1.1
"""Two levels of rates are told apart where the upper is a tenth above the lower."""


def slow_groups(cells: Cells) -> list[set[str]]:
    """Groups whose inner pairs are the slow ones; empty where there are no such blocks."""
    return _blocks(cells, slow=True)


def fast_groups(cells: Cells) -> list[set[str]]:
    """Groups whose inner pairs are the fast ones; empty where there are no such blocks."""
    return _blocks(cells, slow=False)


def _blocks(cells: Cells, *, slow: bool) -> list[set[str]]:
    gpus = list(dict.fromkeys(gpu for pair in cells for gpu in pair))
    if len(gpus) < 4 or len(cells) != len(gpus) * (len(gpus) - 1):
        return []
    middle = (min(cells.values()) + max(cells.values())) / 2
    near = {pair for pair, rate in cells.items() if (rate < middle) is slow}
    groups = _components(gpus, near)
    inside = {(a, b) for group in groups for a in group for b in group if a != b}
    if near != inside or len(groups) < 2 or any(len(group) < 2 for group in groups):
        return []
    ours = median(cells[pair] for pair in inside)
    theirs = median(rate for pair, rate in cells.items() if pair not in inside)
    return groups if max(ours, theirs) > _APART * min(ours, theirs) else []


def _components(gpus: list[str], near: set[tuple[str, str]]) -> list[set[str]]:
    groups: list[set[str]] = []
    for gpu in gpus:
        home = next(
            (g for g in groups if any((gpu, o) in near or (o, gpu) in near for o in g)), None
        )
        if home is None:
            groups.append({gpu})
        else:
            home.add(gpu)
    return groups
