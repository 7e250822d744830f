"""Which links beside PCIe to draw: one line for each pair, or one bar for a whole group (M1).

Eight GPUs on NVSwitch have 28 equal pairs; a bar says the same as 28 lines.
"""

from linkbound.topology.types import Machine, PathKind
from linkbound.values import Value

MIN_BAR = 3
"""Fewer GPUs than this are a line, not a bar."""
_KINDS = (PathKind.NVLINK, PathKind.XGMI, PathKind.C2C)


class Fabric(Value, frozen=True, kw_only=True):
    """GPUs of which every two are joined alike, and the words for it."""

    gpus: tuple[str, ...]
    text: str


def fabrics(machine: Machine) -> tuple[Fabric, ...]:
    """The groups in the order of their first GPU, shorter ones first."""
    order = {gpu.key: at for at, gpu in enumerate(machine.gpus)}
    words = _pair_words(machine, order)
    left = dict(words)
    found = []
    for first in order:
        for group in _groups_from(first, order, left):
            word = left[(group[0], group[1])]
            for pair in _pairs(group):
                del left[pair]
            text = word if len(group) == 2 else f"{word} between every two"
            found.append(Fabric(gpus=group, text=text))
    return tuple(sorted(found, key=lambda one: order[one.gpus[-1]] - order[one.gpus[0]]))


def _pair_words(machine: Machine, order: dict[str, int]) -> dict[tuple[str, str], str]:
    """The word of each pair with a fabric link; both directions where they differ."""
    labels = {
        (path.pair.src, path.pair.dst): path.label for path in machine.pairs if path.kind in _KINDS
    }
    words: dict[tuple[str, str], str] = {}
    for src, dst in labels:
        pair = (src, dst) if order[src] < order[dst] else (dst, src)
        there, back = labels.get(pair), labels.get((pair[1], pair[0]))
        words[pair] = there if there and there == back else f"{there or '?'} / {back or '?'}"
    return words


def _groups_from(
    first: str, order: dict[str, int], left: dict[tuple[str, str], str]
) -> list[tuple[str, ...]]:
    """Groups that begin with this GPU: a bar where three or more are joined alike, else pairs."""
    groups: list[tuple[str, ...]] = []
    used: set[str] = set()
    for second in order:
        word = left.get((first, second))
        if word is None or second in used:
            continue
        group = [first, second]
        for third in order:
            if third not in group and all(
                left.get((a, third) if order[a] < order[third] else (third, a)) == word
                for a in group
            ):
                group.append(third)
        members = tuple(sorted(group, key=order.__getitem__))
        if len(members) < MIN_BAR or members[0] != first:
            members = (first, second)
        used.update(members)
        groups.append(members)
    return groups


def _pairs(group: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(a, b) for at, a in enumerate(group) for b in group[at + 1 :]]
