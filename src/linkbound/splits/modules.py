"""Which GPUs of a machine are interchangeable: a tree of modules of GPUs (D4).

A module is a set of GPUs that every GPU outside is joined to alike: an NVLink island, the GPUs
below a switch, those of a socket. Where all parts of a module are joined to each other alike, parts
of one form may change places, and no plan becomes another plan by it. Modules are found by merging
twins, GPUs or modules that all others are joined to alike, until none are left (the decomposition
of 2-structures by Ehrenfeucht and Rozenberg, 1990; its prime parts stay as they are).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import permutations

from linkbound.links.types import Arm, Operation, PairRate, PeerAccess
from linkbound.topology.types import Capability, Gpu, Machine, PairPath
from linkbound.values import Value

SAME_RATE = 1.15
"""Measured rates of two pairs up to this factor apart are of one kind: short tests differ so."""


class Module(Value, frozen=True, kw_only=True):
    """GPUs by their place in the machine's list; one GPU has no children."""

    gpus: tuple[int, ...]
    kind: str = ""
    """Of one GPU: what tells it from others."""
    children: tuple["Module", ...] = ()
    links: tuple[tuple[str, ...], ...] = ()
    """How child i is joined to child j; one row of one cell where all are joined alike."""

    @property
    def alike(self) -> bool:
        """Whether any two children are joined as any other two."""
        return len(self.links) < 2

    def link(self, one: int, other: int) -> str:
        """How two children are joined, by their numbers."""
        return self.links[0][0] if self.alike else self.links[one][other]


def modules_of(
    machine: Machine,
    excluded: Collection[str] = (),
    access: Iterable[PeerAccess] = (),
    rates: Iterable[PairRate] = (),
) -> Module:
    """The tree of the GPUs whose label is not excluded; numbers are those of `machine.gpus`."""
    used = [number for number, gpu in enumerate(machine.gpus) if gpu.label not in excluded]
    joined = _joints(machine, used, access, rates)
    nodes = [Module(gpus=(number,), kind=_kind(machine.gpus[number])) for number in used]
    while len(nodes) > 1:
        merged = _merge(nodes, joined)
        if len(merged) == len(nodes):
            links = tuple(
                tuple(_text(one, other, joined) if one != other else "" for other in nodes)
                for one in nodes
            )
            return Module(gpus=_gpus(nodes), children=tuple(nodes), links=links)
        nodes = merged
    return nodes[0]


def _kind(gpu: Gpu) -> str:
    """Model, memory, and the slot at its best: an idle link shows less."""
    slot = "" if gpu.pcie is None else f"{gpu.pcie.max_gt_per_s} x{gpu.pcie.width}"
    return f"{gpu.model}, {gpu.memory_bytes}, {slot}"


def _joints(
    machine: Machine,
    used: Sequence[int],
    access: Iterable[PeerAccess],
    rates: Iterable[PairRate],
) -> Mapping[tuple[int, int], str]:
    """What is known of every ordered pair, as one word."""
    number = {gpu.key: at for at, gpu in enumerate(machine.gpus)}
    labels = {gpu.label: at for at, gpu in enumerate(machine.gpus)}
    found: dict[tuple[int, int], list[str]] = {pair: [] for pair in permutations(used, 2)}
    for path in machine.pairs:
        key = (number[path.pair.src], number[path.pair.dst])
        if key in found:
            found[key].append(_path_word(path))
    for one in access:
        key = (labels.get(one.src, -1), labels.get(one.dst, -1))
        if key in found:
            found[key].append("granted" if one.granted else "refused")
    for (src, dst), kind in _rate_kinds(rates).items():
        key = (labels.get(src, -1), labels.get(dst, -1))
        if key in found:
            found[key].append(f"rate {kind}")
    return {key: " ".join(words) for key, words in found.items()}


def _path_word(path: PairPath) -> str:
    status = path.status.get(Capability.READ)
    return f"{path.label or '?'} {'' if status is None else status.value}".strip()


def _rate_kinds(rates: Iterable[PairRate]) -> Mapping[tuple[str, str], int]:
    """Pairs by what a direct copy reaches: a new kind wherever the next rate is a step higher."""
    best: dict[tuple[str, str], float] = {}
    for one in rates:
        if one.operation is Operation.COPY and one.arm is Arm.P2P and one.concurrency == "alone":
            pair = (one.src, one.dst)
            best[pair] = max(best.get(pair, 0.0), one.bytes_per_s)
    kinds: dict[tuple[str, str], int] = {}
    kind, last = 0, 0.0
    for pair, rate in sorted(best.items(), key=lambda item: item[1]):
        if last and rate > last * SAME_RATE:
            kind += 1
        kinds[pair], last = kind, rate
    return kinds


def _merge(nodes: Sequence[Module], joined: Mapping[tuple[int, int], str]) -> list[Module]:
    """Twins put together; all others as they are."""
    groups: list[list[Module]] = []
    for node in nodes:
        for group in groups:
            if _twins(group[0], node, nodes, joined):
                group.append(node)
                break
        else:
            groups.append([node])
    return [
        group[0]
        if len(group) == 1
        else Module(
            gpus=_gpus(group),
            children=tuple(group),
            links=((_text(group[0], group[1], joined),),),
        )
        for group in groups
    ]


def _twins(
    one: Module,
    other: Module,
    nodes: Sequence[Module],
    joined: Mapping[tuple[int, int], str],
) -> bool:
    """Whether all others are joined to both alike, and both to each other alike both ways."""
    a, b = one.gpus[0], other.gpus[0]
    if joined[a, b] != joined[b, a]:
        return False
    rest = (node.gpus[0] for node in nodes if node is not one and node is not other)
    return all(
        joined[a, each] == joined[b, each] and joined[each, a] == joined[each, b] for each in rest
    )


def _text(one: Module, other: Module, joined: Mapping[tuple[int, int], str]) -> str:
    return joined[one.gpus[0], other.gpus[0]]


def _gpus(nodes: Sequence[Module]) -> tuple[int, ...]:
    return tuple(sorted(gpu for node in nodes for gpu in node.gpus))
