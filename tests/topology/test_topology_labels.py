"""PIX, PXB, PHB, NODE, SYS and NV# as nvidia-smi would print them for a tree."""

from linkbound.topology.labels import derive_nic_paths, derive_pairs
from linkbound.topology.types import Device, DeviceKind, Gpu, NvLink

KINDS = {
    "s": DeviceKind.SOCKET,
    "n": DeviceKind.NUMA_NODE,
    "h": DeviceKind.HOST_BRIDGE,
    "r": DeviceKind.ROOT_PORT,
    "u": DeviceKind.SWITCH_PORT,
    "b": DeviceKind.BRIDGE,
}


def tree(*chains: str) -> tuple[list[Gpu], list[Device]]:
    """Each chain is `n0 h1 u2`: a GPU below u2, below h1, below n0."""
    devices: dict[str, Device] = {}
    gpus = []
    for at, chain in enumerate(chains):
        parent = None
        for key in chain.split():
            node = int(key[1:]) if key[0] == "n" else None
            devices[key] = Device(
                key=key, kind=KINDS[key[0]], label=key, parent=parent, numa_node=node
            )
            parent = key
        gpus.append(Gpu(key=f"g{at}", label=f"GPU{at}", parent=parent))
    return gpus, list(devices.values())


def label(*chains: str, ports_shown: bool) -> str | None:
    pairs = derive_pairs(*tree(*chains), ports_shown=ports_shown)
    labels = {path.label for path in pairs}
    assert len(labels) <= 1, "a tree is symmetric"
    return labels.pop() if labels else None


def test_ports_of_a_switch_are_one_switch() -> None:
    assert label("n0 h0 r0 u0 u1", "n0 h0 r0 u0 u2", ports_shown=True) == "PIX"
    assert label("n0 h0 r0 u0 u1 u3 u4", "n0 h0 r0 u0 u2", ports_shown=True) == "PXB"


def test_a_bridge_is_a_switch_in_ncclxml() -> None:
    assert label("n0 b0", "n0 b0", ports_shown=False) == "PIX"
    assert label("n0 b0 b1", "n0 b0 b2", ports_shown=False) == "PXB"
    assert label("n0 b0 b1", "n0 b0", ports_shown=False) == "PXB"
    assert label("n0 b0", "n0 b1", ports_shown=False) == "PHB"


def test_host_bridges() -> None:
    assert label("n0 h0 r0", "n0 h0 r1", ports_shown=True) == "PHB"
    assert label("n0 h0 r0", "n0 h1 r1", ports_shown=True) == "NODE"
    assert label("s0 n0 h0", "s0 n1 h1", ports_shown=True) == "SYS"
    assert label("s0 n0 h0", "s1 n1 h1", ports_shown=True) == "SYS"


def test_no_tree_no_label() -> None:
    assert label("", "", ports_shown=True) is None
    assert label("n0 h0", "", ports_shown=True) is None
    assert label("h0", "h1", ports_shown=True) is None


def test_circle_ends() -> None:
    devices = [
        Device(key="a", kind=DeviceKind.BRIDGE, label="a", parent="b"),
        Device(key="b", kind=DeviceKind.BRIDGE, label="b", parent="a"),
    ]
    gpus = [Gpu(key=f"g{at}", label=f"GPU{at}", parent="a") for at in range(2)]
    assert {path.label for path in derive_pairs(gpus, devices, ports_shown=False)} == {"PIX"}


def links(*remotes: str, active: bool | None = None) -> tuple[NvLink, ...]:
    return tuple(
        NvLink(index=at, remote=remote, active=active) for at, remote in enumerate(remotes)
    )


def test_direct_links_count_one_way() -> None:
    a = Gpu(key="a", label="GPU0", nvlinks=links("b", "b", "c"))
    b = Gpu(key="b", label="GPU1", nvlinks=links("a"))
    pairs = derive_pairs([a, b], [], ports_shown=True)
    assert [path.label for path in pairs] == ["NV2", "NV1"]


def test_common_switches_and_dead_links() -> None:
    on = links("nvswitch 1", "nvswitch 1", "nvswitch 2")
    off = links("nvswitch 1", "nvswitch 2", active=False)
    gpus = [
        Gpu(key="a", label="GPU0", nvlinks=on),
        Gpu(key="b", label="GPU1", nvlinks=on[:2]),
        Gpu(key="c", label="GPU2", nvlinks=off),
    ]
    labels = {
        (path.pair.src, path.pair.dst): path.label
        for path in derive_pairs(gpus, [], ports_shown=True)
    }
    assert labels == {("a", "b"): "NV2", ("b", "a"): "NV2"}


def test_nic_paths() -> None:
    gpus, devices = tree("n0 b0", "n1 b1")
    nic = Device(key="nic", kind=DeviceKind.NIC, label="nic", bus_id="0000:01:00.0", parent="b0")
    loose = Device(key="eth0", kind=DeviceKind.NIC, label="eth0", parent="n0")
    paths = derive_nic_paths(gpus, [*devices, nic, loose], ports_shown=False)
    assert [(path.gpu, path.nic, path.kind.value) for path in paths] == [
        ("g0", "nic", "PIX"),
        ("g1", "nic", "SYS"),
    ]
