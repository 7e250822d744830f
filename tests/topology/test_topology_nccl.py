"""NCCL and RCCL topology files of real machines and cloud vendors give those machines."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.parse_nccl_xml import parse_nccl_xml
from linkbound.topology.types import DeviceKind, Machine, PathKind

TESTS = Path(__file__).parents[1]
CASES = TESTS / "cases"
H200 = TESTS / "machines" / "h200-pair"


def read(name: str) -> Machine:
    (file,) = CASES.glob(f"*/{name}")
    return parse_nccl_xml(file.read_text(), name)


def nics(machine: Machine) -> list[str]:
    return [device.label for device in machine.devices if device.kind is DeviceKind.NIC]


@pytest.mark.parametrize(
    ("name", "gpus", "nic_count", "labels", "numa"),
    [
        ("ncv4-topo.xml", 4, 1, {"SYS": 12}, [0, 1, 2, 3]),
        ("ndv2-topo.xml", 8, 1, {"PHB": 24, "SYS": 32}, [0] * 4 + [1] * 4),
        ("ndv4-topo.xml", 8, 8, {"PIX": 8, "SYS": 48}, [1, 1, 0, 0, 3, 3, 2, 2]),
        ("ndv5-topo.xml", 8, 8, {"PHB": 24, "SYS": 32}, [0] * 4 + [1] * 4),
        ("H100-topology.xml", 8, 16, {"NV18": 56}, [0] * 4 + [1] * 4),
        ("topo-flattened.xml", 8, 8, {"PIX": 8, "SYS": 48}, [3, 3, 1, 1, 7, 7, 5, 5]),
        ("topo-flattened-b4.xml", 8, 8, {"PIX": 8, "SYS": 48}, [3, 3, 1, 1, 7, 7, 5, 5]),
        ("topo_3p_pcie.xml", 3, 1, {"PHB": 2, "SYS": 4}, [0, 1, 1]),
        ("topo_8p_rome_pcie.xml", 8, 2, {"PHB": 24, "SYS": 32}, [0] * 4 + [1] * 4),
        ("topo_8p_90a.xml", 8, 1, {"XGMI": 24, "PHB": 32}, [0] * 8),
        ("topo_8p_940.xml", 8, 8, {"XGMI": 56}, [0] * 4 + [1] * 4),
        ("topo_8p_940vm.xml", 8, 8, {"XGMI": 56}, [0] * 4 + [1] * 4),
        ("topo.xml-fragment.txt", 5, 0, {"PHB": 20}, [None] * 5),
    ],
)
def test_file(
    name: str, gpus: int, nic_count: int, labels: dict[str, int], numa: list[int | None]
) -> None:
    machine = read(name)
    assert [gpu.label for gpu in machine.gpus] == [f"GPU{at}" for at in range(gpus)]
    assert len(nics(machine)) == nic_count
    assert Counter(path.label for path in machine.pairs) == labels
    assert [gpu.numa_node for gpu in machine.gpus] == numa
    assert all(path.derived for path in machine.pairs)


def test_recorded_pair() -> None:
    machine = parse_nccl_xml((H200 / "nccl-topo.xml").read_text(), "nccl-topo.xml")
    gpu = machine.gpu("GPU0")
    assert (gpu.bus_id, gpu.vendor, gpu.device_id) == ("0000:00:06.0", "NVIDIA", "10de:2335")
    assert gpu.compute_capability == "9.0"
    assert len(gpu.nvlinks) == 18
    assert gpu.pcie is not None
    assert gpu.pcie.max_gt_per_s == 32.0
    assert gpu.pcie.max_width is None
    assert gpu.numa_node is None
    assert gpu.facts["numa_node"] == "-1"
    assert machine.path("GPU1", "GPU0").label == "NV18"
    assert machine.numa_nodes == ()
    assert nics(machine) == ["eth0"]
    assert machine.nic_paths == ()


def test_oci_h100_tree() -> None:
    machine = read("H100-topology.xml")
    near = {(p.gpu, p.nic): p.kind for p in machine.nic_paths}
    gpu = machine.gpu("GPU0").key
    assert near[gpu, "nic:mlx5_0"] is PathKind.PXB
    assert near[gpu, "nic:mlx5_3"] is PathKind.PHB
    assert near[gpu, "nic:mlx5_17"] is PathKind.SYS
    assert [node.cpus for node in machine.numa_nodes] == ["0-55,112-167", "56-111,168-223"]
    bridges = [device for device in machine.devices if device.kind is DeviceKind.BRIDGE]
    assert len(bridges) == 24


def test_invented_bridges_and_unknown_nvlinks_are_said() -> None:
    notes = " ".join(read("ndv4-topo.xml").notes)
    assert "4 bridges have invented bus ids" in notes
    assert "nothing on NVLinks" in notes
    assert "invented" not in " ".join(read("H100-topology.xml").notes)


def test_links_that_lead_to_themselves_are_not_links() -> None:
    machine = read("ncv4-topo.xml")
    assert all(gpu.nvlinks == () for gpu in machine.gpus)
    assert "0001:00:00.0: 12 links that lead to itself; not used." in machine.notes


def test_numbers_of_a_reordered_guest() -> None:
    machine = read("topo_8p_940vm.xml")
    assert machine.gpu("GPU0").bus_id == "0011:00:00.0"
    assert machine.gpu("GPU1").bus_id == "0021:00:00.0"
    assert machine.gpu("GPU0").vendor == "AMD"
    assert machine.gpu("GPU0").compute_capability is None
    assert machine.gpu("GPU0").facts["gcn"] == "gfx942"


def test_mi200_links_only_where_they_are() -> None:
    machine = read("topo_8p_90a.xml")
    neighbours = {
        other.label
        for other in machine.gpus[1:]
        if machine.path("GPU0", other.label).kind is PathKind.XGMI
    }
    assert neighbours == {"GPU1", "GPU2", "GPU6"}
    assert machine.path("GPU0", "GPU1").hops == 1


def test_overlapping_masks_are_a_fault() -> None:
    cpu = '<cpu numaid="{}" affinity="0000ffff,0000ffff"><pci busid="{}" class="0x030200"/></cpu>'
    text = f"<system>{cpu.format(0, '01:00.0')}{cpu.format(1, '02:00.0')}</system>"
    notes = parse_nccl_xml(text, "a").notes
    assert any("nodes 0 and 1 overlap in 32 CPUs (0-15,32-47)" in note for note in notes)
    assert not any("overlap" in note for note in read("ndv2-topo.xml").notes)


def test_fragment_says_so() -> None:
    assert "before it is complete" in read("topo.xml-fragment.txt").notes[0]
    with pytest.raises(InputError, match="no complete GPU in this fragment"):
        parse_nccl_xml('<system version="1"><cpu numaid="0">', "a")


def test_fragment_that_begins_inside() -> None:
    text = '<cpu numaid="1"><pci busid="0000:01:00.0" class="0x030200"/></cpu>'
    machine = parse_nccl_xml(text, "a")
    assert machine.gpus[0].numa_node == 1
    assert machine.notes[0] == "a is a fragment: it begins with <cpu>, not with <system>."


def test_graph_file_is_no_machine() -> None:
    machine = read("ncv4-graph.xml")
    assert machine.gpus == ()
    assert machine.notes[0].startswith("ncv4-graph.xml is an NCCL graph file")
    assert "typeintra SYS, typeinter PIX; 4 GPUs" in machine.notes[1]
    recorded = parse_nccl_xml((H200 / "nccl-graph-p2p-on.xml").read_text(), "g.xml")
    assert "nchannels 12" in recorded.notes[1]
    assert "typeintra NVL" in recorded.notes[1]


def test_one_way_link_is_one_way() -> None:
    pci = '<pci busid="{}" class="0x030200"><gpu dev="{}">{}</gpu></pci>'
    link = '<nvlink target="0000:02:00.0" count="2" tclass="0x030200"/>'
    text = (
        '<system><cpu numaid="0">'
        + pci.format("0000:01:00.0", 0, link)
        + pci.format("0000:02:00.0", 1, "")
        + "</cpu></system>"
    )
    machine = parse_nccl_xml(text, "a")
    assert machine.path("GPU0", "GPU1").label == "NV2"
    assert machine.path("GPU1", "GPU0").label == "PHB"


def test_too_many_gpus() -> None:
    pci = "".join(f'<pci busid="{at:x}:00:00.0" class="0x030200"/>' for at in range(600))
    with pytest.raises(InputError, match="600 GPUs"):
        parse_nccl_xml(f'<system><cpu numaid="0">{pci}</cpu></system>', "a")


@pytest.mark.parametrize("text", ["<html/>", "<system/>", "", "<system><cpu/></system>"])
def test_no_machine(text: str) -> None:
    with pytest.raises(InputError):
        parse_nccl_xml(text, "a")


NAMES = [
    "numaid",
    "affinity",
    "busid",
    "class",
    "dev",
    "count",
    "target",
    "tclass",
    "sm",
    "name",
    "link_speed",
    "link_width",
    "vendor",
    "device",
    "familyid",
    "modelid",
]
VALUES = [
    "-1",
    "0",
    "1",
    "99999999999",
    "0x030200",
    "0x068000",
    "0x060400",
    "0x020000",
    "0000:01:00.0",
    "ff,ff",
    "x",
    "16",
    "NaN",
    "\N{ARABIC-INDIC DIGIT ZERO}",
]
ATTRIBUTES = st.dictionaries(
    st.sampled_from(NAMES), st.sampled_from(["", "32.0 GT/s PCIe", *VALUES]), max_size=5
)
ELEMENTS = st.recursive(
    st.tuples(st.sampled_from(["gpu", "nvlink", "net", "c2c", "pci"]), ATTRIBUTES, st.just([])),
    lambda inner: st.tuples(
        st.sampled_from(["cpu", "pci", "gpu", "nic", "system", "xgmi"]),
        ATTRIBUTES,
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)


def to_xml(element: tuple[str, dict[str, str], list]) -> str:  # type: ignore[type-arg]
    tag, attributes, children = element
    words = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<{tag}{words}>{''.join(map(to_xml, children))}</{tag}>"


@given(st.lists(ELEMENTS, max_size=4))
def test_any_elements_give_a_machine_or_our_error(elements: list) -> None:  # type: ignore[type-arg]
    try:
        machine = parse_nccl_xml(f"<system>{''.join(map(to_xml, elements))}</system>", "a")
    except InputError:
        return
    keys = [gpu.key for gpu in machine.gpus] + [device.key for device in machine.devices]
    assert len(set(keys)) == len(keys)
    assert len({gpu.label for gpu in machine.gpus}) == len(machine.gpus)


@given(st.integers(0, 13_294))
def test_cut_anywhere(length: int) -> None:
    (file,) = CASES.glob("*/H100-topology.xml")
    try:
        machine = parse_nccl_xml(file.read_text()[:length], "a")
    except InputError:
        return
    assert 1 <= len(machine.gpus) <= 8
    assert {path.label for path in machine.pairs} <= {"NV18"}
