"""hwloc's NVLinkBandwidth matrix as links: which GPU reaches what over how many (M1 M4).

hwloc counts active links and multiplies by a fixed rate of its own, so the matrix is nominal.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from xml.etree.ElementTree import Element

from linkbound.topology.labels import NVSWITCH
from linkbound.topology.types import Gpu, NvLink, PairPath, PathKind

_NAME = "NVLinkBandwidth"
_NUMBER = re.compile(r"^\d{1,12}$")
# What hwloc's NVML backend multiplies by, in MB/s: NVLink 1, and NVLink 2 to 4.
_FIRST_GENERATION = 20_000
_LATER_GENERATIONS = 25_000
MAX_OBJECTS = 1024
MAX_LINKS = 64
"""More links than any GPU has to one place; a larger quotient is no count of links."""

EndOf = Callable[[str], tuple[str, bool] | None]


def nvlinks_of(root: Element, end_of: EndOf) -> tuple[dict[str, tuple[NvLink, ...]], str | None]:
    """Links by the bus id they start at, and what to know of them; `end_of` resolves a gp_index."""
    matrix = next(
        (item for item in root if item.tag.startswith("distances2") and item.get("name") == _NAME),
        None,
    )
    if matrix is None:
        return {}, None
    ends = [end_of(word.rsplit(":", 1)[-1]) for word in _words(matrix, "indexes")]
    values = [int(word) for word in _words(matrix, "u64values") if _NUMBER.match(word)]
    if not ends or len(ends) > MAX_OBJECTS or len(values) != len(ends) ** 2:
        return {}, f"hwloc's {_NAME} matrix is not complete: no NVLink is taken from it."
    unit = _unit(values, len(ends))
    if unit is None:
        return {}, f"hwloc's {_NAME} matrix is in no rate that hwloc is known to use: not counted."
    links: dict[str, tuple[NvLink, ...]] = {}
    for row, end in enumerate(ends):
        if end is not None:
            counts = [value // unit for value in values[row * len(ends) : (row + 1) * len(ends)]]
            counts[row] = 0
            links[end[0]] = tuple(_links(counts, ends))
    return links, (
        f"NVLinks are counted from hwloc's {_NAME} matrix, which is nominal: active links x "
        f"{unit // 1000} GB/s a direction, neither measured nor said by the GPUs."
    )


def without_unseen_switches(
    gpus: Sequence[Gpu], pairs: Sequence[PairPath]
) -> tuple[tuple[PairPath, ...], str | None]:
    """The pairs without those that only links between NVSwitches could join, and a note on them.

    The tree's label for such a pair speaks of PCIe, which is not what its traffic takes.
    """
    on_switch = {
        gpu.key
        for gpu in gpus
        if any((link.remote or "").startswith(NVSWITCH) for link in gpu.nvlinks)
    }
    kept = tuple(
        path
        for path in pairs
        if path.kind is PathKind.NVLINK or not {path.pair.src, path.pair.dst} <= on_switch
    )
    if len(kept) == len(pairs):
        return kept, None
    return kept, (
        f"{len(pairs) - len(kept)} ordered pairs hang on different NVSwitches: hwloc does not "
        "show links between switches, so how these pairs are joined is unknown."
    )


def _words(matrix: Element, tag: str) -> Iterator[str]:
    for part in matrix:
        if part.tag == tag:
            yield from (part.text or "").split()


def _unit(values: list[int], size: int) -> int | None:
    """The rate of one link, told by what divides every value off the diagonal."""
    apart = {value for at, value in enumerate(values) if at % (size + 1) and value}
    for unit in (_LATER_GENERATIONS, _FIRST_GENERATION):
        if all(value % unit == 0 and value // unit <= MAX_LINKS for value in apart):
            return unit
    return None


def _links(counts: list[int], ends: list[tuple[str, bool] | None]) -> Iterator[NvLink]:
    index = 0
    for count, end in zip(counts, ends, strict=True):
        for _ in range(count):
            remote = None if end is None else f"{NVSWITCH} {end[0]}" if end[1] else end[0]
            yield NvLink(index=index, active=True, remote=remote)
            index += 1
