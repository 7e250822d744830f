"""One way to place copies on a machine too large for a list of all: from the inside out (D4).

Every module is filled with whole copies; what is left over of it joins at the next larger one.
"""

from linkbound.splits.layouts import Layout, Unit, layout_of
from linkbound.splits.modules import Module
from linkbound.splits.tree import Group, Tree


def aligned(tree: Tree, unit: Unit) -> tuple[Layout, ...]:
    """As many copies as there is room for, those inside the smallest modules first."""
    found: list[tuple[int, tuple[Group, ...]]] = []
    _fill(tree.root, unit, 0, found)
    found.sort(key=lambda one: -one[0])
    return tuple(layout_of(tree, unit, groups) for _, groups in found)


def _fill(
    module: Module, unit: Unit, depth: int, found: list[tuple[int, tuple[Group, ...]]]
) -> tuple[list[int], list[Group]]:
    """GPUs and groups of the module that no copy uses yet; copies go to `found`."""
    gpus: list[int] = [] if module.children else list(module.gpus)
    groups: list[Group] = []
    for child in module.children:
        more_gpus, more_groups = _fill(child, unit, depth + 1, found)
        gpus += more_gpus
        groups += more_groups
    while len(gpus) >= unit.tp:
        groups.append(tuple(gpus[: unit.tp]))
        del gpus[: unit.tp]
    size = unit.pp * unit.shared
    while len(groups) >= size:
        found.append((depth, tuple(groups[:size])))
        del groups[:size]
    return gpus, groups
