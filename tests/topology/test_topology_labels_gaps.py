"""A listing with gaps gives no labels: a missing bridge could make PIX out of PXB."""

from linkbound.topology.labels import derive_pairs
from linkbound.topology.sniff import read_machine
from linkbound.topology.types import Device, DeviceKind, Gpu


def test_bar_lines_alone_reach_the_lspci_reader() -> None:
    found = read_machine(b"\tBAR 1: current size: 32GB, supported: 64MB 32GB\n", "bar.txt")
    assert [gpu.label for gpu in found.gpus] == ["GPU0"]


def test_chains_cut_at_bridges_of_one_node_have_no_label() -> None:
    devices = tuple(
        Device(key=key, kind=DeviceKind.BRIDGE, label=key, numa_node=0) for key in ("b0", "b1")
    )
    gpus = tuple(
        Gpu(key=f"g{one}", label=f"GPU{one}", parent=f"b{one}", numa_node=0) for one in (0, 1)
    )
    assert all(path.kind is None for path in derive_pairs(gpus, devices, ports_shown=True))
