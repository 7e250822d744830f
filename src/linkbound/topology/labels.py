"""Works out PIX, PXB, PHB, NODE, SYS, NV# for every ordered pair from a tree and its links (M1).

The words are those of `nvidia-smi topo -m`; what a tree does not show stays out.
"""

from collections.abc import Iterable, Mapping, Sequence

from linkbound.errors import InputError
from linkbound.topology.types import (
    Device,
    DeviceKind,
    Gpu,
    NicPath,
    NvLink,
    Pair,
    PairPath,
    PathKind,
)

NVSWITCH = "nvswitch"
"""`NvLink.remote` begins with this word where the far end is a switch."""

MAX_GPUS = 512
MAX_DEVICES = 8192
"""Beyond the largest host, NVLink domain included: pairs are the square of this."""

_BRIDGES = frozenset((DeviceKind.BRIDGE, DeviceKind.SWITCH_PORT, DeviceKind.ROOT_PORT))


def check_size(gpus: Sequence[Gpu], devices: Sequence[Device], source: str) -> None:
    """Raises InputError where a file shows more than any host has."""
    if len(gpus) > MAX_GPUS or len(devices) > MAX_DEVICES:
        raise InputError(
            f"{source}: {len(gpus):,} GPUs and {len(devices):,} other devices.",
            why=f"No host has more than {MAX_GPUS} GPUs and {MAX_DEVICES:,} devices.",
            hint="Give the file of one host.",
        )


def derive_pairs(
    gpus: Sequence[Gpu], devices: Iterable[Device], *, ports_shown: bool
) -> tuple[PairPath, ...]:
    """One path for every ordered pair of GPUs about which the tree or the links say something.

    `ports_shown`: a switch is several bridges in this tree (one upstream, one for each port
    below it), as in sysfs, lspci and hwloc; False where one bridge is one switch (NCCL's XML).
    """
    tree = {device.key: device for device in devices}
    chains = {gpu.key: _chain(gpu.parent, tree) for gpu in gpus}
    paths = []
    for src in gpus:
        for dst in gpus:
            if src.key == dst.key:
                continue
            path = _fabric(src, dst)
            if path is None:
                kind = _tree_kind(chains[src.key], chains[dst.key], ports_shown)
                path = None if kind is None else _path(src, dst, kind)
            if path is not None:
                paths.append(path)
    return tuple(paths)


def derive_nic_paths(
    gpus: Sequence[Gpu], devices: Sequence[Device], *, ports_shown: bool
) -> tuple[NicPath, ...]:
    """How near each NIC that is a PCI function is to each GPU."""
    tree = {device.key: device for device in devices}
    chains = {gpu.key: _chain(gpu.parent, tree) for gpu in gpus}
    nics = [device for device in devices if device.kind is DeviceKind.NIC and device.bus_id]
    return tuple(
        NicPath(gpu=gpu.key, nic=nic.key, kind=kind, derived=True)
        for gpu in gpus
        for nic in nics
        if (kind := _tree_kind(chains[gpu.key], _chain(nic.parent, tree), ports_shown))
    )


def _path(src: Gpu, dst: Gpu, kind: PathKind, count: int | None = None) -> PairPath:
    return PairPath(
        pair=Pair(src=src.key, dst=dst.key),
        kind=kind,
        nvlink_count=count,
        hops=1 if count else None,
        derived=True,
    )


def _chain(key: str | None, tree: Mapping[str, Device]) -> list[Device]:
    """The devices above, nearest first; ends at the top or where a file's tree runs in a circle."""
    chain: list[Device] = []
    seen: set[str] = set()
    while key is not None and key in tree and key not in seen:
        seen.add(key)
        chain.append(tree[key])
        key = tree[key].parent
    return chain


def _fabric(src: Gpu, dst: Gpu) -> PairPath | None:
    """A direct link, or a switch that both hang on; links known to be down do not count."""
    up = [link for link in src.nvlinks if link.active is not False]
    direct = sum(1 for link in up if link.remote in (dst.key, dst.bus_id))
    if direct:
        kind = PathKind.XGMI if src.vendor == "AMD" else PathKind.NVLINK
        return _path(src, dst, kind, direct)
    ours, theirs = _switch_links(up), _switch_links(dst.nvlinks)
    common = ours.keys() & theirs.keys()
    count = min(sum(ours[switch] for switch in common), sum(theirs[switch] for switch in common))
    return _path(src, dst, PathKind.NVLINK, count) if count else None


def _switch_links(links: Iterable[NvLink]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for link in links:
        if link.active is not False and link.remote and link.remote.startswith(NVSWITCH):
            counts[link.remote] = counts.get(link.remote, 0) + 1
    return counts


def _tree_kind(ours: list[Device], theirs: list[Device], ports_shown: bool) -> PathKind | None:
    if not ours or not theirs:
        return None
    shared = {device.key for device in theirs}
    below = [device for device in ours if device.key not in shared]
    if len(below) == len(ours):
        return _between_nodes(ours, theirs)
    common = ours[len(below)]
    other = theirs[: [device.key for device in theirs].index(common.key)]
    if common.kind in _BRIDGES:
        allowed = 1 if ports_shown else 0
        single = len(below) <= allowed and len(other) <= allowed
        return PathKind.PIX if single else PathKind.PXB
    if common.kind is DeviceKind.HOST_BRIDGE:
        return PathKind.PHB
    if common.kind is DeviceKind.NUMA_NODE:
        # A tree without host bridges cannot tell PHB from NODE; NCCL says PHB then.
        bridged = DeviceKind.HOST_BRIDGE in {device.kind for device in (*below, *other)}
        return PathKind.NODE if bridged else PathKind.PHB
    return _between_nodes(ours, theirs)


_TOPS = (DeviceKind.SOCKET, DeviceKind.NUMA_NODE)


def _between_nodes(ours: list[Device], theirs: list[Device]) -> PathKind | None:
    """Paths that meet at a socket or nowhere: the NUMA nodes decide, if both are stated."""
    nodes = [_numa(chain) for chain in (ours, theirs)]
    if None not in nodes and nodes[0] != nodes[1]:
        return PathKind.SYS
    if None not in nodes:
        # Chains that end at a bridge are cut short: they may meet below the host bridges.
        return PathKind.NODE if _reach(ours, theirs, DeviceKind.HOST_BRIDGE, *_TOPS) else None
    return PathKind.SYS if _reach(ours, theirs, *_TOPS) else None


def _reach(ours: list[Device], theirs: list[Device], *tops: DeviceKind) -> bool:
    return all(any(device.kind in tops for device in chain) for chain in (ours, theirs))


def _numa(chain: list[Device]) -> int | None:
    return next((device.numa_node for device in chain if device.numa_node is not None), None)
