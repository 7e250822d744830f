"""`lspci`: trees, verbose listings, excerpts of one device."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.parse_lspci import parse_lspci
from linkbound.topology.parse_pci_tree import parse_pci_tree
from linkbound.topology.types import DeviceKind, Machine, PcieLink

CASES = Path(__file__).parents[1] / "cases"
GIB = 1024**3
MIB = 1024**2


def read(case: str, name: str) -> Machine:
    return parse_lspci((CASES / case / name).read_text(), name)


def test_h100_listing_gives_links_windows_nodes_and_acs() -> None:
    machine = read("023-gpud-h100-lspci-acs-clear", "lspci-vv.txt")
    assert [gpu.bus_id for gpu in machine.gpus] == ["0000:19:00.0", "0000:3b:00.0"]
    for gpu in machine.gpus:
        assert gpu.pcie == PcieLink(gt_per_s=32.0, width=16, max_gt_per_s=32.0, max_width=16)
        assert gpu.bar1_bytes == 128 * GIB
        assert (gpu.device_id, gpu.model, gpu.numa_node) == ("10de:2330", None, 0)
    assert machine.gpus[0].parent == "0000:17:01.0"
    controls = {device.key: device.facts.get("ACSCtl") for device in machine.devices}
    assert len([text for text in controls.values() if text]) == 5
    assert all("ReqRedir-" in text for text in controls.values() if text)
    assert controls["0000:00:0c.0"] == (
        "SrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"
    )


def test_bridges_that_are_not_listed_are_named_and_no_pair_is_derived() -> None:
    machine = read("023-gpud-h100-lspci-acs-clear", "lspci-vv.txt")
    parents = {device.key: device.parent for device in machine.devices}
    assert parents["0000:00:0c.0"] == "pci0000:00"
    assert parents["0000:01:00.0"] == "0000:00:0c.0"
    assert parents["0000:17:01.0"] == "0000:15:01.0"
    assert parents["0000:15:01.0"] is None
    assert machine.gpus[1].parent is None
    assert any("0000:17 is not listed" in note for note in machine.notes)
    assert any("above bus 0000:3b" in note for note in machine.notes)
    assert machine.pairs == ()


def test_downgraded_management_links_are_facts_of_their_devices() -> None:
    machine = read("023-gpud-h100-lspci-acs-clear", "lspci-vv.txt")
    nic = next(device for device in machine.devices if device.kind is DeviceKind.NIC)
    assert nic.pcie == PcieLink(gt_per_s=5.0, width=1, max_gt_per_s=5.0, max_width=2)
    assert nic.facts["LnkSta"] == "Speed 5GT/s (ok), Width x1 (downgraded)"
    assert not any("downgraded" in note for note in machine.notes)


def test_resizable_bar_excerpt_gives_the_second_window_of_one_gpu() -> None:
    machine = read("059-aikitoria25-8-simplep2p-nan", "lspci-vv.txt")
    assert [gpu.key for gpu in machine.gpus] == ["GPU0"]
    assert machine.gpus[0].bar1_bytes == 32 * GIB
    assert machine.gpus[0].bus_id is None
    assert machine.notes == ("lspci-vv.txt names no device: its lines are taken for one GPU's.",)


def test_short_listing_gives_the_window_and_the_node_of_its_flags() -> None:
    machine = read("060-aikitoria22-4x3090-bar1-256m", "lspci-v-8x4090.txt")
    (gpu,) = machine.gpus
    assert (gpu.bus_id, gpu.device_id) == ("0000:52:00.0", "10de:2684")
    assert (gpu.bar1_bytes, gpu.numa_node, gpu.pcie) == (256 * MIB, 0, None)


def test_idle_link_is_kept_as_printed() -> None:
    machine = read("066-jan183-tinygrad6-idle-gen1-is-not-a-fault", "lspci-vv.txt")
    (gpu,) = machine.gpus
    assert gpu.pcie == PcieLink(gt_per_s=2.5, width=16, max_gt_per_s=16.0, max_width=16)
    assert gpu.facts["LnkSta"] == "Speed 2.5GT/s (downgraded), Width x16 (ok)"


def test_nameless_tree_has_its_three_roots_and_no_guessed_gpu() -> None:
    machine = read("063-club3090-1229-2x5090-gns", "lspci-tv.txt")
    roots = [d.key for d in machine.devices if d.kind is DeviceKind.HOST_BRIDGE]
    assert roots == ["pci0000:00", "pci0000:20", "pci0000:40"]
    ports = [d.key for d in machine.devices if d.kind is DeviceKind.ROOT_PORT]
    assert ports == [
        "0000:00:01.1",
        "0000:00:03.1",
        "0000:00:07.1",
        "0000:00:08.1",
        "0000:20:07.1",
        "0000:20:08.1",
        "0000:40:07.1",
        "0000:40:08.1",
    ]
    parents = {device.key: device.parent for device in machine.devices}
    assert parents["0000:01:00.1"] == "0000:00:01.1"
    assert parents["0000:02:00.0"] == "0000:00:03.1"
    assert parents["0000:22:00.4"] == "0000:20:08.1"
    assert parents["0000:40:00.0"] == "pci0000:40"
    assert machine.gpus == ()
    assert "which of its functions are GPUs is not known" in machine.notes[0]
    assert len(parents) == 3 + 38 - 1


TREE = r"""
-+-[0001:80]---01.0-[81-84]----00.0-[82-84]--+-04.0-[83]----00.0  NVIDIA Corporation GH100 [H100]
 |                                           +-08.0-[84]--+-00.0  NVIDIA Corporation Device 2331
 |                                           |            \-00.1  NVIDIA Corporation Device 22ba
 |                                           \-0c.0-[85]--
 \-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Starship/Matisse Root Complex
             +-01.1-[01]--+-00.0  NVIDIA Corporation GB202 [GeForce RTX 5090]
             |            \-00.1  NVIDIA Corporation GB202 High Definition Audio Controller
             +-02.1-[02]----00.0  Advanced Micro Devices, Inc. [AMD/ATI] [Radeon RX 7900]
             +-03.1-[03]----00.0  Mellanox Technologies MT2892 Family [ConnectX-6 Dx]
             \-14.0  Advanced Micro Devices, Inc. [AMD] FCH SMBus Controller
"""


def test_tree_with_names_gives_gpus_switch_ports_and_nics() -> None:
    machine = parse_lspci(TREE, "tree.txt")
    assert [(gpu.label, gpu.bus_id, gpu.model) for gpu in machine.gpus] == [
        ("GPU0", "0000:01:00.0", "GeForce RTX 5090"),
        ("GPU1", "0001:83:00.0", "H100"),
        ("GPU2", "0001:84:00.0", None),
        ("GPU3", "0000:02:00.0", "Radeon RX 7900"),
    ]
    kinds = {device.key: device.kind for device in machine.devices}
    assert kinds["0001:80:01.0"] is DeviceKind.ROOT_PORT
    assert kinds["0001:81:00.0"] is DeviceKind.SWITCH_PORT
    assert kinds["0001:82:0c.0"] is DeviceKind.SWITCH_PORT
    assert kinds["0001:84:00.1"] is DeviceKind.OTHER
    assert kinds["0000:01:00.1"] is DeviceKind.OTHER
    assert kinds["0000:03:00.0"] is DeviceKind.NIC
    assert machine.path("GPU1", "GPU2").label == "PIX"
    assert machine.path("GPU0", "GPU3").label == "PHB"
    assert machine.path("GPU0", "GPU1").label is None
    assert machine.notes == ()


WHOLE = """\
00:00.0 Host bridge [0600]: Intel Corporation Device [8086:09a2]
00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:352a] (rev 04)
\tNUMA node: 0
\tBus: primary=00, secondary=01, subordinate=01, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #1, Speed 32GT/s, Width x16
\t\tLnkSta:\tSpeed 32GT/s, Width x16
01:00.0 VGA compatible controller [0300]: NVIDIA Corporation [GeForce RTX 4090] [10de:2684]
\tNUMA node: 0
\tIOMMU group: 17
\tRegion 0: Memory at b8000000 (32-bit, non-prefetchable) [size=16M]
\tRegion 1: Memory at 10ffc0000000 (64-bit, prefetchable) [size=32G]
\tRegion 3: Memory at 10ffb8000000 (64-bit, prefetchable) [size=32M]
\tRegion 5: I/O ports at 3000 [size=128]
\tKernel driver in use: vfio-pci
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16
\t\tLnkSta:\tSpeed 16GT/s, Width x0
80:01.0 PCI bridge [0604]: Intel Corporation Device [8086:352a] (rev 04)
\tNUMA node: 1
\tBus: primary=80, secondary=81, subordinate=81, sec-latency=0
81:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 80GB] [10de:20b5] (rev a1)
"""


def test_whole_listing_places_every_function_and_derives_the_pair() -> None:
    machine = parse_lspci(WHOLE, "whole.txt")
    assert machine.notes == ()
    first, second = machine.gpus
    assert (first.model, first.device_id) == ("GeForce RTX 4090", "10de:2684")
    assert first.bar1_bytes == 32 * GIB
    assert first.facts["Kernel driver in use"] == "vfio-pci"
    assert first.facts["IOMMU group"] == "17"
    assert first.pcie == PcieLink(gt_per_s=16.0, width=None, max_gt_per_s=16.0, max_width=16)
    assert (second.parent, second.pcie) == ("0000:80:01.0", None)
    kinds = {device.key: device.kind for device in machine.devices}
    assert kinds["0000:00:01.0"] is DeviceKind.ROOT_PORT
    assert kinds["0000:80:01.0"] is DeviceKind.ROOT_PORT
    assert machine.path("GPU0", "GPU1").label == "SYS"


@pytest.mark.parametrize("text", ["", "\x00\xff", "hello\nworld\n", "00:00.0\n", "{}", "<a/>"])
def test_other_text_is_one_clear_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_lspci(text, "some.txt")
    assert "some.txt" in caught.value.seen
    assert caught.value.why
    assert caught.value.hint


def test_tree_reader_refuses_text_without_a_root() -> None:
    with pytest.raises(InputError, match="no PCI tree"):
        parse_pci_tree("+-01.0", "some.txt")


def test_deep_trees_are_read_without_recursion() -> None:
    line = "-[0000:00]-+-01.0" + "-[01]----00.0" * 5_000
    assert len(parse_lspci(line, "deep.txt").devices) == 5_002


def test_more_functions_than_any_machine_has_are_refused() -> None:
    line = "-[0000:00]-+-01.0" + "-[01]----00.0" * 20_000
    with pytest.raises(InputError, match="20,001 PCI functions"):
        parse_lspci(line, "deep.txt")
    cards = "".join(
        f"{bus:02x}:00.{f} 3D controller: NVIDIA Corporation X\n"
        for bus in range(256)
        for f in range(3)
    )
    with pytest.raises(InputError, match="768 of them GPUs"):
        parse_lspci(cards, "many.txt")


ALPHABET = "-+\\|[]:.0123456789abcdef \t\nxGTs(),=KMGLnkCapSta NVIDIA"


@given(st.text(alphabet=ALPHABET, max_size=300) | st.text(max_size=100))
@settings(max_examples=200, deadline=None)
def test_any_text_raises_only_our_error(text: str) -> None:
    for candidate in (text, "-[0000:00]-+-00.0\n" + text, "01:00.0 3D controller: X\n" + text):
        try:
            parse_lspci(candidate, "x")
        except InputError:
            continue


@given(cut=st.integers(0, 4894), junk=st.text(max_size=10))
@settings(max_examples=50, deadline=None)
def test_damaged_listings_raise_only_our_error(cut: int, junk: str) -> None:
    text = (CASES / "023-gpud-h100-lspci-acs-clear" / "lspci-vv.txt").read_text()
    try:
        parse_lspci(text[:cut] + junk + text[cut:], "x")
    except InputError:
        return
