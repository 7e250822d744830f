"""Which copies to run together, from how the machine is wired: pure and listed by name (L3).

Rate together over rate alone is the share that each keeps.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations

from linkbound.links.live.rows import HOST
from linkbound.topology.types import DeviceKind, Machine
from linkbound.values import Value

PEER = "ce_push"
"""Stands for whichever peer method the set is run with."""
_SHARED = (DeviceKind.SWITCH_PORT, DeviceKind.ROOT_PORT, DeviceKind.HOST_BRIDGE, DeviceKind.SOCKET)
_WORDS = {
    DeviceKind.SWITCH_PORT: "switch",
    DeviceKind.ROOT_PORT: "root port",
    DeviceKind.HOST_BRIDGE: "host bridge",
    DeviceKind.SOCKET: "socket",
}
Copy = tuple[str, str, str]


class ContentionSet(Value, frozen=True, kw_only=True):
    """Copies that run together: (src, dst, method) each."""

    name: str
    members: tuple[Copy, ...]
    through_host: bool = False
    """Only host links take part: no peer access is needed."""


def contention_sets(machine: Machine, labels: Sequence[str]) -> tuple[ContentionSet, ...]:
    """Sets of these GPUs, each set of copies once, under the first name that fits."""
    kept: dict[frozenset[Copy], ContentionSet] = {}
    for one in _all_sets(machine, labels):
        if len(one.members) > 1:
            kept.setdefault(frozenset(one.members), one)
    return tuple(kept.values())


def _all_sets(machine: Machine, labels: Sequence[str]) -> Iterator[ContentionSet]:
    yield from _shared_device_sets(machine, labels)
    yield from _across(machine, labels)
    for gpu in labels:
        others = [one for one in labels if one != gpu]
        yield _peer_set(f"fan-in to {gpu}", ((one, gpu) for one in others))
        yield _peer_set(f"fan-out from {gpu}", ((gpu, one) for one in others))
    yield _peer_set("disjoint pairs", disjoint_pairs(labels))
    yield _peer_set("all to all", permutations(labels, 2))
    yield _peer_set("ring shift by 1", zip(labels, [*labels[1:], *labels[:1]], strict=True))
    yield _host_set("host to all GPUs", [(HOST, gpu, "h2d") for gpu in labels])
    yield _host_set("all GPUs to host", [(gpu, HOST, "d2h") for gpu in labels])
    yield from _with_host_traffic(labels)


def disjoint_pairs(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Neighbours two by two, each GPU in at most one pair."""
    return list(zip(labels[::2], labels[1::2], strict=False))


def _with_host_traffic(labels: Sequence[str]) -> Iterator[ContentionSet]:
    """Copies between GPUs while the host feeds, or drains, both of them."""
    for src, dst in disjoint_pairs(labels)[:1]:
        for way, name in (("h2d", "host to both"), ("d2h", "both to host")):
            legs = [(HOST, gpu, way) if way == "h2d" else (gpu, HOST, way) for gpu in (src, dst)]
            yield ContentionSet(
                name=f"{src} -> {dst} with {name}", members=((src, dst, PEER), *legs)
            )


def _shared_device_sets(machine: Machine, labels: Sequence[str]) -> Iterator[ContentionSet]:
    """All ordered pairs inside one switch, root port, host bridge or socket, and its host legs."""
    kinds = {device.key: device.kind for device in machine.devices}
    names = {device.key: device.label for device in machine.devices}
    below = gpus_below(machine, labels)
    for key, gpus in below.items():
        if kinds[key] not in _SHARED or len(gpus) < 2:
            continue
        where = f"{_WORDS[kinds[key]]} {names[key]}"
        yield _peer_set(f"all pairs under {where}", permutations(gpus, 2))
        yield _host_set(f"host to all under {where}", [(HOST, gpu, "h2d") for gpu in gpus])
        yield _host_set(f"all to host under {where}", [(gpu, HOST, "d2h") for gpu in gpus])


def _across(machine: Machine, labels: Sequence[str]) -> Iterator[ContentionSet]:
    """Pairs whose ends hang on different sockets, one GPU of each with one of the other."""
    kinds = {device.key: device.kind for device in machine.devices}
    below = gpus_below(machine, labels)
    sides = [gpus for key, gpus in below.items() if kinds[key] is DeviceKind.SOCKET]
    for n, near in enumerate(sides):
        for far in sides[n + 1 :]:
            pairs = list(zip(near, far, strict=False))
            yield _peer_set("one way across sockets", pairs)
            yield _peer_set(
                "both ways across sockets", [*pairs, *((dst, src) for src, dst in pairs)]
            )


def gpus_below(machine: Machine, labels: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For each device of the tree, nearest to the GPUs first, the GPUs below it."""
    parents = {device.key: device.parent for device in machine.devices}
    found: dict[str, list[str]] = defaultdict(list)
    depth: dict[str, int] = {}
    for label in labels:
        key, height = machine.gpu(label).parent, 1
        while key is not None and key in parents and label not in found[key]:
            found[key].append(label)
            depth[key] = max(depth.get(key, 0), height)
            key, height = parents[key], height + 1
    return {key: tuple(found[key]) for key in sorted(found, key=lambda one: depth.get(one, 0))}


def _peer_set(name: str, pairs: Iterable[tuple[str, str]]) -> ContentionSet:
    return ContentionSet(name=name, members=tuple((src, dst, PEER) for src, dst in pairs))


def _host_set(name: str, members: Iterable[Copy]) -> ContentionSet:
    return ContentionSet(name=name, members=tuple(members), through_host=True)
