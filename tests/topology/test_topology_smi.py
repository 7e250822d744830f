"""`nvidia-smi -q` and the plain table: values, excerpts, "N/A", and other text."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.parse_smi_q import parse_smi_q
from linkbound.topology.parse_smi_table import parse_smi_table
from linkbound.topology.types import PcieLink

TESTS = Path(__file__).parents[1]
H200 = TESTS / "machines" / "h200-pair"
MIB = 1024**2


def test_whole_listing_of_the_h200_pair() -> None:
    machine = parse_smi_q((H200 / "smi-q.txt").read_text(), "smi-q.txt")
    assert machine.host == {
        "driver": "580.159.04",
        "cuda": "13.0",
        "gpu_virtualisation": "Pass-Through",
    }
    first, second = machine.gpus
    assert first.uuid == first.key == "GPU-00000000-0000-0000-0000-000000000001"
    assert second.uuid == "GPU-00000000-0000-0000-0000-000000000002"
    assert (first.label, second.label) == ("GPU0", "GPU1")
    assert (first.bus_id, second.bus_id) == ("0000:00:06.0", "0000:00:07.0")
    assert (first.model, first.device_id) == ("NVIDIA H200", "10de:2335")
    assert first.memory_bytes == 143771 * MIB
    assert first.bar1_bytes == 262144 * MIB
    assert first.pcie == PcieLink(gt_per_s=32.0, width=16, max_gt_per_s=32.0, max_width=16)
    assert first.mig is False
    assert first.numa_node is None
    assert first.facts["Persistence Mode"] == "Enabled"
    assert first.facts["Fabric / State"] == "Completed"
    assert first.facts["Fabric / Status"] == "Success"
    assert first.facts["GPU Power Readings / Max Power Limit"] == "700.00 W"
    assert first.facts["Clocks / SM"] == "345 MHz"
    assert first.facts["PCI / GPU Link Info / PCIe Generation / Device Max"] == "5"
    assert machine.notes == ()


def test_what_is_not_available_is_absent() -> None:
    machine = parse_smi_q((H200 / "smi-q.txt").read_text(), "smi-q.txt")
    assert "PCI / GPU Link Info / PCIe Generation / Host Max" not in machine.gpus[0].facts
    assert "N/A" not in machine.gpus[0].facts.values()


def test_excerpt_of_one_section_is_one_gpu_without_a_name() -> None:
    folder = TESTS / "cases" / "060-aikitoria22-4x3090-bar1-256m"
    machine = parse_smi_q((folder / "bar1.txt").read_text(), "bar1.txt")
    (gpu,) = machine.gpus
    assert gpu.bar1_bytes == 256 * MIB
    assert (gpu.key, gpu.memory_bytes, gpu.vendor) == ("GPU0", None, None)
    assert machine.notes == ("bar1.txt names no GPU: its lines are taken for one GPU's.",)


OLD = """\
Driver Version                            : 470.57.02
CUDA Version                              : 11.4

Attached GPUs                             : 1
GPU 00000000:65:00.0
    Product Name                          : NVIDIA GeForce GTX 1080 Ti
    MIG Mode
        Current                           : N/A
    GPU UUID                              : GPU-00000000-0000-0000-0000-000000000000
    PCI
        Device Id                         : 0x1B0610DE
        GPU Link Info
            PCIe Generation
                Max                       : Gen 3
                Current                   : Gen 1
            Link Width
                Max                       : 16x
                Current                   : N/A
    FB Memory Usage
        Total                             : 11178 MiB
    BAR1 Memory Usage
        Total                             : N/A
    GPU NUMA Node                         : 1
"""


def test_old_wording_idle_link_and_a_placeholder_uuid() -> None:
    (gpu,) = parse_smi_q(OLD, "old.txt").gpus
    assert (gpu.uuid, gpu.key) == (None, "0000:65:00.0")
    assert gpu.pcie == PcieLink(gt_per_s=2.5, width=None, max_gt_per_s=8.0, max_width=16)
    assert (gpu.mig, gpu.bar1_bytes, gpu.numa_node) == (None, None, 1)
    assert gpu.memory_bytes == 11178 * MIB


def test_plain_table_of_the_h200_pair() -> None:
    machine = parse_smi_table((H200 / "nvidia-smi.txt").read_text(), "nvidia-smi.txt")
    assert machine.host == {"driver": "580.159.04", "cuda": "13.0"}
    assert [(gpu.label, gpu.bus_id, gpu.model) for gpu in machine.gpus] == [
        ("GPU0", "0000:00:06.0", "NVIDIA H200"),
        ("GPU1", "0000:00:07.0", "NVIDIA H200"),
    ]
    assert all(gpu.memory_bytes == 143771 * MIB for gpu in machine.gpus)
    assert all(gpu.mig is False for gpu in machine.gpus)
    assert machine.gpus[0].facts["Persistence Mode"] == "On"


def test_three_lines_of_a_table_are_enough() -> None:
    folder = TESTS / "cases" / "068-nccltests338-h20-vm-fm-version-mismatch"
    machine = parse_smi_table((folder / "nvidia-smi.txt").read_text(), "nvidia-smi.txt")
    assert machine.host == {"driver": "550.54.14", "cuda": "12.4"}
    (gpu,) = machine.gpus
    assert (gpu.model, gpu.bus_id) == ("NVIDIA H20", "0000:09:00.0")
    assert (gpu.memory_bytes, gpu.mig) == (97871 * MIB, None)


def test_a_name_cut_to_the_column_is_no_model() -> None:
    row = "|   0  GeForce RTX 208...  Off  | 00000000:3D:00.0 Off |                  N/A |\n"
    (gpu,) = parse_smi_table(row, "old.txt").gpus
    assert gpu.model is None
    assert gpu.facts["Name"] == "GeForce RTX 208..."
    assert gpu.bus_id == "0000:3d:00.0"


def test_heading_alone_says_that_no_gpu_is_listed() -> None:
    line = "| NVIDIA-SMI 550.54.14   Driver Version: 550.54.14   CUDA Version: 12.4  |"
    machine = parse_smi_table(line, "x.txt")
    assert machine.gpus == ()
    assert machine.notes == ("x.txt lists no GPU.",)


@pytest.mark.parametrize("parse", [parse_smi_q, parse_smi_table])
@pytest.mark.parametrize("text", ["", "\x00\x01", "hello", "GPU0 GPU1\n", "a : b\n", "<x/>"])
def test_other_text_is_one_clear_error(parse, text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "some.txt")
    assert "some.txt" in caught.value.seen
    assert caught.value.why
    assert caught.value.hint


def test_deep_indentation_is_read_without_recursion() -> None:
    text = "GPU 00000000:01:00.0\n" + "".join(" " * n + "a\n" for n in range(1, 3000))
    assert parse_smi_q(text, "x").gpus[0].bus_id == "0000:01:00.0"


@given(cut=st.integers(0, 20000), junk=st.text(max_size=30))
@settings(max_examples=50, deadline=None)
def test_damaged_listings_raise_only_our_error(cut: int, junk: str) -> None:
    for parse, name in ((parse_smi_q, "smi-q.txt"), (parse_smi_table, "nvidia-smi.txt")):
        text = (H200 / name).read_text()
        for damaged in (text[:cut], text[cut:], text[:cut] + junk + text[cut:], junk):
            try:
                parse(damaged, "x")
            except InputError:
                continue
