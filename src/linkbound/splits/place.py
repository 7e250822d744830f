"""Which GPUs hold which ranks: tensor-parallel groups on the best-linked ones (D4, first form)."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from linkbound.errors import UsageError
from linkbound.splits.types import Placement, Split
from linkbound.topology.types import Gpu, Machine, PathKind

_ORDER = {kind: index for index, kind in enumerate(PathKind)}
_UNKNOWN = (len(_ORDER), 0)
_NO_LINK = (-1, 0)
Cost = tuple[int, int]
"""Lower is better: kind of the path in the order of PathKind, then minus the number of links."""


def place(split: Split, machine: Machine, excluded: Collection[str] = ()) -> Placement:
    """GPUs of `machine` in rank order, none of the `excluded` keys or labels among them.

    Among equal links GPUs with more memory come first. Raises UsageError where too few are left.
    """
    free = [gpu for gpu in machine.gpus if not {gpu.key, gpu.label} & set(excluded)]
    if split.gpus > len(free):
        raise UsageError(
            f"{split.name} needs {split.gpus} GPUs, {len(free)} of {len(machine.gpus)} are free.",
            why="A rank needs a GPU of its own.",
            hint="Name a smaller split.",
        )
    costs = _costs(machine)
    order = {gpu.key: index for index, gpu in enumerate(machine.gpus)}
    groups: list[list[Gpu]] = []
    while len(groups) * split.tp < split.gpus:
        group = _best_group(free, split.tp, costs, order)
        free = [gpu for gpu in free if gpu not in group]
        groups.append(sorted(group, key=lambda gpu: order[gpu.key]))
    groups.sort(key=lambda group: order[group[0].key])
    return placement_of([gpu for group in _chained(groups, split.pp, costs) for gpu in group])


def _chained(
    groups: Sequence[list[Gpu]], stages: int, costs: Mapping[tuple[str, str], Cost]
) -> list[list[Gpu]]:
    """Pipelines of `stages` groups: each starts at the first that is left, then takes the nearest.

    Ranks send to the rank of their number, so that a group is as near as its worst such pair.
    """
    left, chained = list(groups), []
    while left:
        chained.append(left.pop(0))
        for _ in range(stages - 1):
            following = min(left, key=partial(_worst, costs, chained[-1]))
            left.remove(following)
            chained.append(following)
    return chained


def _worst(
    costs: Mapping[tuple[str, str], Cost], senders: Sequence[Gpu], receivers: Sequence[Gpu]
) -> Cost:
    pairs = zip(senders, receivers, strict=True)
    return max(costs.get((src.key, dst.key), _UNKNOWN) for src, dst in pairs)


def placement_of(gpus: Sequence[Gpu]) -> Placement:
    """These GPUs in rank order, with the processors and memory that are near each."""
    return Placement(
        gpus=tuple(gpu.key for gpu in gpus),
        cores={gpu.key: gpu.cpu_affinity for gpu in gpus if gpu.cpu_affinity is not None},
        numa_nodes={gpu.key: gpu.numa_node for gpu in gpus if gpu.numa_node is not None},
    )


def _costs(machine: Machine) -> Mapping[tuple[str, str], Cost]:
    return {
        (path.pair.src, path.pair.dst): (_ORDER[path.kind], -(path.nvlink_count or 0))
        for path in machine.pairs
        if path.kind is not None
    }


def _best_group(
    free: Sequence[Gpu],
    size: int,
    costs: Mapping[tuple[str, str], Cost],
    order: Mapping[str, int],
) -> list[Gpu]:
    """Of the groups grown from each GPU by nearest neighbours, the one whose worst link is best.

    Growing looks at about n^2 x size links; all groups of 8 in 16 GPUs would be 360,000.
    """

    if size == 1 or not costs:
        # Nothing to choose by but memory.
        return sorted(free, key=lambda gpu: (-(gpu.memory_bytes or 0), order[gpu.key]))[:size]

    def rank(candidate: tuple[Cost, list[Gpu]]) -> tuple[Cost, int, list[int]]:
        worst, group = candidate
        least = min(gpu.memory_bytes or 0 for gpu in group)
        return worst, -least, sorted(order[gpu.key] for gpu in group)

    return min((_grow(seed, free, size, costs, order) for seed in free), key=rank)[1]


def _grow(
    seed: Gpu,
    free: Sequence[Gpu],
    size: int,
    costs: Mapping[tuple[str, str], Cost],
    order: Mapping[str, int],
) -> tuple[Cost, list[Gpu]]:
    """`seed` and its nearest neighbours, one after another, with the worst link among them."""
    group, worst = [seed], _NO_LINK
    reach = {gpu.key: _NO_LINK for gpu in free}
    outside = {gpu.key: gpu for gpu in free if gpu is not seed}
    while len(group) < size:
        newest = group[-1].key
        for key in outside:
            there = costs.get((newest, key), _UNKNOWN)
            reach[key] = max(reach[key], there, costs.get((key, newest), _UNKNOWN))
        following = min(
            outside.values(),
            key=lambda gpu: (reach[gpu.key], -(gpu.memory_bytes or 0), order[gpu.key]),
        )
        worst = max(worst, reach[following.key])
        group.append(outside.pop(following.key))
    return worst, group
