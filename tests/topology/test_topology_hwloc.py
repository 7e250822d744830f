"""hwloc XML: the four recorded machines, format 1, and input that is not hwloc's."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.parse_hwloc import parse_hwloc_xml
from linkbound.topology.types import DeviceKind, Machine, PathKind

FOLDER = Path(__file__).parents[1] / "machines" / "hwloc"


def read(name: str) -> Machine:
    return parse_hwloc_xml((FOLDER / name).read_text(), name)


def kinds(machine: Machine) -> Counter[str]:
    return Counter(device.kind.value for device in machine.devices)


def test_dgx2_has_sixteen_gpus_and_twelve_switches() -> None:
    machine = read("nvidiaDGX2.xml")
    assert [gpu.label for gpu in machine.gpus] == [f"GPU{index}" for index in range(16)]
    # 60 Bridge objects: 4 host bridges, and 56 on PCI of which 4 are root ports.
    assert kinds(machine) == {
        "switch_port": 52,
        "nvswitch": 12,
        "host_bridge": 4,
        "root_port": 4,
        "socket": 2,
        "numa_node": 2,
    }
    first = machine.gpus[0]
    assert first.uuid == first.key == "GPU-d3977428-7a30-086b-2e20-5c1eeed647c6"
    assert (first.bus_id, first.device_id) == ("0000:34:00.0", "10de:1db8")
    assert (first.vendor, first.model) == ("NVIDIA", "Tesla V100-SXM3-32GB-H")
    assert (first.numa_node, first.cpu_affinity, first.parent) == (0, "0-1", "0000:33:00.0")
    assert machine.gpus[8].numa_node == 1
    assert [(node.index, node.cpus, node.memory_bytes) for node in machine.numa_nodes] == [
        (0, "0-1", 810234351616),
        (1, "24-25", 811737923584),
    ]
    assert machine.host["product"] == "NVIDIA DGX-2H"


def test_dgx2_links_go_to_the_six_switches_of_the_board() -> None:
    machine = read("nvidiaDGX2.xml")
    for gpu in machine.gpus:
        bus = "6" if gpu.numa_node == 0 else "c"
        expected = {f"nvswitch 0000:{bus}{slot}:00.0" for slot in "123567"}
        assert len(gpu.nvlinks) == 6
        assert {link.remote for link in gpu.nvlinks} == expected
        assert all(link.active and link.bytes_per_s is None for link in gpu.nvlinks)
    assert machine.path("GPU0", "GPU7").label == "NV6"
    assert machine.path("GPU15", "GPU8").label == "NV6"
    assert Counter(path.label for path in machine.pairs) == {"NV6": 112}


def test_dgx2_pairs_across_the_boards_are_unknown_and_the_matrix_is_called_nominal() -> None:
    machine = read("nvidiaDGX2.xml")
    assert machine.path("GPU0", "GPU8").kind is None
    nominal, unseen = machine.notes
    assert "nominal" in nominal
    assert "25 GB/s" in nominal
    assert unseen.startswith("128 ordered pairs hang on different NVSwitches")


def test_dgx2_link_speed_is_a_fact_and_not_a_generation() -> None:
    gpu = read("nvidiaDGX2.xml").gpus[3]
    assert gpu.pcie is None
    assert gpu.facts["pci_link_speed"] == "15.753846 GB/s"


def test_power8_pairs_are_joined_by_two_links_and_two_go_to_the_processor() -> None:
    machine = read("power8gpudistances.xml")
    assert len(machine.gpus) == 4
    assert Counter(link.remote for link in machine.gpus[0].nvlinks) == {
        "0003:01:00.0": 2,
        "socket:0": 2,
    }
    labels = {
        (path.pair.src[-4:], path.pair.dst[-4:]): path.label
        for path in machine.pairs
        if path.kind is PathKind.NVLINK
    }
    assert set(labels.values()) == {"NV2"}
    assert len(labels) == 4
    assert machine.path("GPU0", "GPU2").label == "SYS"
    assert machine.gpus[0].memory_bytes == 16671616 * 1024
    assert machine.gpus[0].model == "Tesla P100-SXM2-16GB"
    assert machine.numa_nodes[0].cpus == "0-1,8-9,16-17,24-25"
    assert machine.numa_nodes[1].cpus == "80-81,88-89,96-97,104-105"
    assert kinds(machine)["host_bridge"] == 4
    assert "20 GB/s" in machine.notes[0]


def test_two_socket_xeon_has_four_gpus_and_its_console_chip_is_none() -> None:
    machine = read("32em64t-2n8c2t-pci-wholeio.xml")
    assert [(gpu.bus_id, gpu.vendor, gpu.numa_node) for gpu in machine.gpus] == [
        ("0000:03:00.0", "NVIDIA", 0),
        ("0000:83:00.0", "NVIDIA", 1),
        ("0000:84:00.0", "NVIDIA", 1),
        ("0000:84:00.1", "AMD", 1),
    ]
    assert machine.gpus[2].model == "Tesla K40m"
    assert machine.gpus[2].memory_bytes == 11796032 * 1024
    assert machine.gpus[3].memory_bytes == 3087360 * 1024
    nics = [device for device in machine.devices if device.kind is DeviceKind.NIC]
    assert [nic.label for nic in nics] == ["mlx5_0", "eth0", "eth1"]
    assert kinds(machine) == {
        "root_port": 6,
        "host_bridge": 2,
        "socket": 2,
        "numa_node": 2,
        "nic": 3,
        "other": 3,
    }
    console = next(device for device in machine.devices if device.bus_id == "0000:05:03.0")
    assert console.kind is DeviceKind.OTHER
    assert machine.path("GPU0", "GPU1").label == "SYS"
    assert machine.path("GPU1", "GPU2").label == "PHB"
    assert machine.path("GPU2", "GPU3").label == "PIX"
    assert machine.host["kernel"] == "3.2.0-4-amd64"


def test_four_node_xeon_has_no_gpu_but_its_tree() -> None:
    machine = read("96em64t-4n4d3ca2co-pci.xml")
    assert machine.gpus == ()
    # The ATI ES1000 at 01:00.0 is a console chip.
    assert kinds(machine) == {
        "socket": 16,
        "root_port": 9,
        "switch_port": 3,
        "nic": 8,
        "other": 6,
        "host_bridge": 5,
        "numa_node": 4,
    }
    assert [node.cpus for node in machine.numa_nodes] == ["0-23", "24-47", "48-71", "72-95"]
    socket = next(device for device in machine.devices if device.key == "socket:4")
    assert socket.parent == "numa:1"


FORMAT_1 = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc.dtd">
<topology>
 <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000003">
  <object type="NUMANode" os_index="0" cpuset="0x3" nodeset="0x00000001" local_memory="1024">
   <object type="Socket" os_index="0" cpuset="0x3" nodeset="0x00000001"/>
   <object type="Bridge" os_index="0" bridge_type="0-1" depth="0" bridge_pci="0000:[00-04]">
    <object type="Bridge" bridge_type="1-1" depth="1" bridge_pci="0000:[02-02]"
      pci_busid="0000:00:02.0" pci_type="0604 [8086:3c04] [0000:0000] 07" pci_link_speed="8.0">
     <object type="PCIDev" os_index="8192" pci_busid="0000:02:00.0"
       pci_type="0302 [10de:06d2] [10de:0772] a3" pci_link_speed="8.000000">
      <object type="OSDev" name="cuda0" osdev_type="5">
       <info name="CoProcType" value="CUDA"/>
       <info name="GPUModel" value="Tesla M2050"/>
       <info name="CUDAGlobalMemorySize" value="2687296"/>
      </object>
     </object>
    </object>
   </object>
  </object>
  <object type="NUMANode" os_index="1" cpuset="0xc" nodeset="0x00000002"/>
 </object>
</topology>
"""


def test_format_1_puts_sockets_and_bridges_inside_numa_nodes() -> None:
    machine = parse_hwloc_xml(FORMAT_1, "old.xml")
    gpu = machine.gpus[0]
    assert (gpu.bus_id, gpu.model, gpu.memory_bytes) == (
        "0000:02:00.0",
        "Tesla M2050",
        2687296 * 1024,
    )
    assert (gpu.numa_node, gpu.cpu_affinity) == (0, "0-1")
    parents = {device.key: device.parent for device in machine.devices}
    assert parents["socket:0"] == "numa:0"
    assert parents["pci0000:00"] == "numa:0"
    assert parents["0000:00:02.0"] == "pci0000:00"
    assert machine.numa_nodes[1].memory_bytes is None


def test_a_matrix_that_is_not_complete_gives_no_links() -> None:
    text = (FOLDER / "power8gpudistances.xml").read_text()
    text = text.replace("0 0 40000 40000 0 1000000 ", "0 0 40000 ")
    machine = parse_hwloc_xml(text, "cut.xml")
    assert all(gpu.nvlinks == () for gpu in machine.gpus)
    assert "not complete" in machine.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\x01\x02",
        "<system version='1'/>",
        "<topology/>",
        "<topology><object type='Machine'>",
        '<!DOCTYPE t [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><topology>&b;</topology>',
        "<topology>" + "<object type='Group'>" * 5000,
    ],
)
def test_other_files_are_one_clear_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_hwloc_xml(text, "some.xml")
    assert "some.xml" in caught.value.seen
    assert caught.value.why
    assert caught.value.hint


@given(cut=st.integers(0, 19648), junk=st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_damaged_files_raise_only_our_error(cut: int, junk: str) -> None:
    text = (FOLDER / "power8gpudistances.xml").read_text()
    for damaged in (text[:cut], text[:cut] + junk + text[cut:]):
        try:
            parse_hwloc_xml(damaged, "x.xml")
        except InputError:
            continue


@given(
    attributes=st.dictionaries(
        st.sampled_from(
            ["type", "os_index", "nodeset", "cpuset", "pci_busid", "pci_type", "bridge_pci"]
        ),
        st.sampled_from(
            [
                *("", "NUMANode", "Package", "Bridge", "PCIDev", "OSDev", "0", "-1", "9" * 50),
                *("0x1", "0xf...f", ",,,", "0000:01:00.0", "0302 [10de:1db8]", "0000:[00-01]", "²"),
            ]
        ),
    ),
    depth=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_any_attributes_give_a_machine(attributes: dict[str, str], depth: int) -> None:
    words = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    text = "<topology>" + f"<object {words}>" * depth + "</object>" * depth + "</topology>"
    assert parse_hwloc_xml(text, "x.xml").sources == ("x.xml",)
