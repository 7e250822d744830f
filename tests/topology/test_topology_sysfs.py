"""Recorded attributes of /sys/bus/pci/devices: values, tree, unknown NUMA nodes, other text."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.parse_sysfs import machine_from_attributes, parse_sysfs_json
from linkbound.topology.types import DeviceKind, PcieLink

RECORD = Path(__file__).parents[1] / "machines" / "h200-pair" / "sysfs.json"
DEVICES = "/sys/devices/pci0000:15"


def test_h200_pair_is_flat_below_one_host_bridge() -> None:
    machine = parse_sysfs_json(RECORD.read_text(), "sysfs.json")
    assert [(gpu.label, gpu.bus_id) for gpu in machine.gpus] == [
        ("GPU0", "0000:00:06.0"),
        ("GPU1", "0000:00:07.0"),
    ]
    for gpu in machine.gpus:
        assert gpu.pcie == PcieLink(gt_per_s=32.0, width=16, max_gt_per_s=32.0, max_width=16)
        assert (gpu.vendor, gpu.device_id, gpu.parent) == ("NVIDIA", "10de:2335", "pci0000:00")
    assert machine.path("GPU0", "GPU1").label == "PHB"
    kinds = {device.key: device.kind for device in machine.devices}
    assert kinds["0000:00:03.0"] is DeviceKind.NIC
    assert kinds["pci0000:00"] is DeviceKind.HOST_BRIDGE
    assert len(kinds) == 5


def test_minus_one_is_no_node_but_is_kept_as_a_claim() -> None:
    machine = parse_sysfs_json(RECORD.read_text(), "sysfs.json")
    assert all(gpu.numa_node is None for gpu in machine.gpus)
    assert all(gpu.facts["numa_node"] == "-1" for gpu in machine.gpus)
    assert machine.notes == (
        "sysfs.json: numa_node is -1 for 6 of 6 PCI devices, which means unknown: other sources "
        "may name the node.",
    )


def bridge(path: str, **more: object) -> dict[str, object]:
    return {"class": "0x060400", "vendor": "0x1000", "device": "0xc030", "path": path, **more}


def gpu(path: str, node: int) -> dict[str, object]:
    return {
        "class": "0x030200",
        "vendor": "0x10de",
        "device": "0x2330",
        "numa_node": str(node),
        "path": path,
        "max_link_speed": "32.0 GT/s PCIe",
        "current_link_speed": "Unknown",
        "current_link_width": "0",
        "max_link_width": "255",
        "iommu_group": "42",
        "iommu_group_type": "DMA-FQ",
        "resource": (
            "0x00000000b8000000 0x00000000b8ffffff 0x0000000000040200\n"
            "0x000010ffc0000000 0x000010ffcfffffff 0x000000000014220c\n"
            "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
            "0x0000000000003000 0x000000000000307f 0x0000000000040101\n"
        ),
    }


SWITCHED = {
    "0000:15:01.0": bridge(f"{DEVICES}/0000:15:01.0", numa_node="1"),
    "0000:16:00.0": bridge(f"{DEVICES}/0000:15:01.0/0000:16:00.0"),
    "0000:17:00.0": bridge(f"{DEVICES}/0000:15:01.0/0000:16:00.0/0000:17:00.0"),
    "0000:17:01.0": bridge(f"{DEVICES}/0000:15:01.0/0000:16:00.0/0000:17:01.0"),
    "0000:18:00.0": gpu(f"{DEVICES}/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", 1),
    "0000:19:00.0": gpu(f"{DEVICES}/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", 1),
}


def test_device_folders_give_the_tree_and_the_pair_below_one_switch() -> None:
    machine = machine_from_attributes(SWITCHED, "sys")
    parents = {device.key: device.parent for device in machine.devices}
    assert parents == {
        "numa:1": None,
        "pci0000:15": "numa:1",
        "0000:15:01.0": "pci0000:15",
        "0000:16:00.0": "0000:15:01.0",
        "0000:17:00.0": "0000:16:00.0",
        "0000:17:01.0": "0000:16:00.0",
    }
    assert machine.path("GPU0", "GPU1").label == "PIX"
    assert machine.gpus[0].numa_node == 1
    assert machine.notes == ()


def test_unknown_speed_and_no_link_widths_are_absent() -> None:
    first = machine_from_attributes(SWITCHED, "sys").gpus[0]
    assert first.pcie == PcieLink(max_gt_per_s=32.0)


def test_second_memory_window_is_bar1_and_ports_do_not_count() -> None:
    first = machine_from_attributes(SWITCHED, "sys").gpus[0]
    assert first.bar1_bytes == 256 * 1024**2
    assert first.facts["iommu_group"] == "42"
    assert first.facts["iommu_group_type"] == "DMA-FQ"


def test_bridges_without_folders_leave_the_tree_unknown() -> None:
    record = {
        key: {name: value for name, value in said.items() if name != "path"}
        for key, said in SWITCHED.items()
    }
    machine = parse_sysfs_json(json.dumps(record), "sysfs.json")
    assert all(one.parent is None for one in machine.gpus)
    assert machine.pairs == ()
    assert machine.notes == (
        "sysfs.json: the device folders are not recorded: the PCI tree is not known.",
    )


def test_a_bridge_without_link_attributes_is_conventional() -> None:
    said = bridge(f"{DEVICES}/0000:15:1e.0", max_link_speed=None, max_link_width=None)
    machine = machine_from_attributes({"0000:15:1e.0": said}, "sys")
    assert machine.devices[-1].kind is DeviceKind.BRIDGE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00",
        "{",
        "[]",
        "{}",
        "null",
        '{"a": {}}',
        '{"0000:01:00.0": 1}',
        "[" * 100_000,
        "\ud800",
    ],
)
def test_other_text_is_one_clear_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sysfs_json(text, "some.json")
    assert "some.json" in caught.value.seen
    assert caught.value.why
    assert caught.value.hint


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
NAMES = st.sampled_from(
    [
        *("vendor", "device", "class", "numa_node", "current_link_speed", "max_link_width"),
        *("path", "resource", "iommu_group"),
    ]
)
LIKELY = st.sampled_from(["0x030200", "0x060400", "0x10de", "-1", "99999999999", "/", "pci0000:00"])


@given(
    st.dictionaries(
        st.sampled_from(["0000:00:00.0", "0000:01:00.0", "00000001:01:00.7"]),
        st.dictionaries(NAMES, SCALARS | LIKELY | st.lists(SCALARS, max_size=2), max_size=9),
        min_size=1,
    )
)
@settings(max_examples=80, deadline=None)
def test_any_attributes_give_a_machine(record: dict[str, dict[str, object]]) -> None:
    machine = machine_from_attributes(record, "x")
    assert len(machine.gpus) + len([d for d in machine.devices if d.bus_id]) == len(record)
    try:
        parse_sysfs_json(json.dumps(record), "x")
    except InputError:
        return
