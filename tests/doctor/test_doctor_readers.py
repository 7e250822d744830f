"""Readers of the doctor: exact facts, and only our own error whatever the bytes."""

import doctor_texts as texts
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkbound.doctor import Symptom, diagnose
from linkbound.doctor.groups import fast_groups, slow_groups
from linkbound.doctor.parse_gaps import parse_gaps, parse_surplus
from linkbound.doctor.parse_gpu_list import parse_gpu_list
from linkbound.doctor.parse_kernel_arguments import parse_kernel_arguments
from linkbound.doctor.parse_kernel_log import parse_kernel_log, with_domain
from linkbound.doctor.parse_link_query import parse_link_query
from linkbound.doctor.parse_messages import WORDINGS, parse_messages
from linkbound.doctor.parse_module_options import parse_module_options
from linkbound.doctor.parse_peer_checks import parse_peer_checks
from linkbound.doctor.parse_rate_matrix import parse_rate_matrix
from linkbound.doctor.rules_budget import pcie_bytes_per_s
from linkbound.doctor.types import DmaFault, LimitedLink, PciLine, Place
from linkbound.topology.types import PcieLink

FRAGMENTS = (
    "0000:07:00.0",
    "AMD-Vi: Event logged [IO_PAGE_FAULT ",
    "DMAR: [DMA Write] Request device [07:00.0]",
    "Command line: ",
    "GRUB_CMDLINE_LINUX=",
    "iommu=pt",
    "root=x",
    "ACSCtl: ReqRedir+",
    "07:00.0 PCI bridge: x",
    "Bus: primary=00, secondary=01, subordinate=01",
    "pcie.link.width.current, pcie.link.gen.max",
    "1, 2",
    "D\\D 0 1",
    "0 1.0 2.0",
    "\tGPU0\tGPU1\tNIC0",
    "GPU0 X PHB SYS",
    "GPU 0: NVIDIA A40",
    "dir 0->1 writer read-back: c0ffee00",
    "dir 0->1 owner local read: 00000000",
    "Verification error @ element 0: val = nan, ref = 1",
    "NVreg_RegistryDwords=ForceP2P=99999999999",
    "P2P Connectivity Matrix",
    "NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/IPC",
    "NCCL INFO GPU/1000 :GPU/2000 (1/1.0/NVL)",
    "Device=0 CAN Access Peer Device=1",
    "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)",
    "Link 0: <inactive>",
    "<system><cpu numaid='0' affinity='zz'><pci busid='ffff:ff:01.0'/></cpu>",
    "No space left on device /dev/shm",
    "-+-[0000:00]-",
    "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
    "Running device_to_device_memcpy_write_ce.",
)
SYMPTOMS = (None, *Symptom)


@given(data=st.binary(max_size=400), symptom=st.sampled_from(SYMPTOMS))
def test_any_bytes_give_a_diagnosis(data: bytes, symptom: Symptom | None) -> None:
    diagnosis = diagnose([("file", data)], symptom)
    assert len(diagnosis.read) + len(diagnosis.unread) == 1


@settings(max_examples=200)
@given(
    lines=st.lists(
        st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=4).map(" ".join),
        max_size=14,
    ),
    symptom=st.sampled_from(SYMPTOMS),
)
def test_any_mixture_of_known_lines_gives_a_diagnosis(
    lines: list[str], symptom: Symptom | None
) -> None:
    diagnosis = diagnose([("file", "\n".join(lines).encode())], symptom)
    assert all(finding.seen and finding.remedy for finding in diagnosis.findings)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\1\2",
        b"\xff\xfe\xfa",
        b"a" * (64 * 1024**2 + 1),
        b"{" * 100_000,
        b"<system>" + b"<pci>" * 50_000,
        b'<!DOCTYPE x [<!ENTITY a "a"><!ENTITY b "&a;&a;">]><system>&b;</system>',
    ],
    ids=["empty", "binary", "encoding", "huge", "json", "nested", "entities"],
)
def test_hostile_inputs_are_named_with_one_reason(data: bytes) -> None:
    (unread,) = diagnose([("bad.txt", data)]).unread
    assert unread.name == "bad.txt"
    assert unread.reason.startswith("bad.txt")
    assert len(unread.reason) < 300


def test_a_bad_input_leaves_the_others() -> None:
    diagnosis = diagnose([("bad", b""), ("good", b"NVRM: Xid (PCI:0000:41:00): 79, x\n")])
    assert [finding.code for finding in diagnosis.findings] == ["gpu-xid"]
    assert [one.name for one in diagnosis.unread] == ["bad"]


def test_kernel_arguments_with_their_line() -> None:
    text = "# /proc/cmdline\nBOOT_IMAGE=/vmlinuz root=/dev/sda1 quiet iommu=pt\n"
    (line,) = parse_kernel_arguments(text, "c.txt")
    assert (str(line.place), line.in_use) == ("c.txt:2", True)
    assert line.words == ("BOOT_IMAGE=/vmlinuz", "root=/dev/sda1", "quiet", "iommu=pt")
    (entry,) = parse_kernel_arguments("options root=LABEL=x rw intel_iommu=on\n", "entry.conf")
    assert (entry.in_use, entry.words[-1]) == (False, "intel_iommu=on")


def test_kernel_log_facts() -> None:
    text = (
        "[1.2] pci 0000:41:00.0: [10de:2204] type 00 class 0x030000 PCIe Legacy Endpoint\n"
        "Jan  1 00:00:00 host kernel: nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT "
        "domain=0x0003 address=0x80000040 flags=0x0020]\n"
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=42:00.0 domain=0x000e address=0x0 flags=0x0]\n"
        "[2.0] pci 0000:41:00.0: 8.000 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x4 "
        "link at 0000:40:01.1 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)\n"
    )
    place = [Place(source="d", line=number) for number in range(1, 5)]
    assert parse_kernel_log(text, "d") == (
        PciLine(place=place[0], bus_id="0000:41:00.0", device_id="10de:2204", class_code=0x0300),
        DmaFault(place=place[1], device="0000:41:00.0", driver="nvidia", unit="AMD-Vi"),
        DmaFault(place=place[2], device="0000:42:00.0", driver=None, unit="AMD-Vi"),
        LimitedLink(
            place=place[3],
            device="0000:41:00.0",
            driver=None,
            at="0000:40:01.1",
            gt_per_s=2.5,
            width=4,
            capable_gt_per_s=16.0,
            capable_width=16,
        ),
    )


@pytest.mark.parametrize(
    ("printed", "whole"),
    [
        ("07:00.0", "0000:07:00.0"),
        ("0000:07:00.0", "0000:07:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("0009:01:00.0", "0009:01:00.0"),
    ],
)
def test_bus_ids(printed: str, whole: str) -> None:
    assert with_domain(printed) == whole


def test_rows_of_a_link_query() -> None:
    text = (
        "index, pcie.link.gen.max, pcie.link.width.current, utilization.gpu [%]\n"
        "3, 4, 8, 88 %\n4, [N/A], 16, [N/A]\n"
    )
    first, second = parse_link_query(text, "q.csv")
    assert (first.gpu, first.max_generation, first.width, first.busy) == ("GPU3", 4, 8, True)
    assert (second.gpu, second.max_generation, second.width, second.busy) == (
        "GPU4",
        None,
        16,
        None,
    )


def test_a_matrix_without_title() -> None:
    text = "P2P writes, bidirectional\n      0     1\n 0   \u2014   50.5\n 1  49.5   \u2014\n"
    (matrix,) = parse_rate_matrix(text, "m")
    assert matrix.both_ways is True
    assert matrix.cells == {("GPU0", "GPU1"): 50.5e9, ("GPU1", "GPU0"): 49.5e9}
    assert parse_rate_matrix(text.replace("49.5", ""), "m") == ()


def test_registry_keys_of_a_module() -> None:
    option = "options nvidia NVreg_RegistryDwords="
    text = f'#{option}"A=1"\n{option}"Ab=0x1;Cd=2"\n'
    keys = [(one.key, one.value, str(one.place)) for one in parse_module_options(text, "m")]
    assert keys == [("Ab", "0x1", "m:2"), ("Cd", "2", "m:2")]


def test_lists_of_gpus() -> None:
    text = "GPU 0: NVIDIA A40 (UUID: GPU-aa)\nGPU 1: NVIDIA A16 (UUID: GPU-bb)\n"
    (machine,) = parse_gpu_list(text, "l")
    assert [(gpu.label, gpu.model, gpu.uuid) for gpu in machine.gpus] == [
        ("GPU0", "NVIDIA A40", "GPU-aa"),
        ("GPU1", "NVIDIA A16", "GPU-bb"),
    ]
    assert parse_gpu_list("GPU 0: 45 C\n", "l") == ()


def test_peer_checks_with_both_results() -> None:
    text = "0->1 writer: aa bb\n0->1 owner: aa bb\n1->0 writer: aa bb\n1->0 owner: aa 00\n"
    checks = parse_peer_checks(text, "v")
    assert [(one.pair, one.correct, str(one.place)) for one in checks] == [
        ("0 -> 1", True, "v:2"),
        ("1 -> 0", False, "v:4"),
    ]


def test_gaps_of_tables_and_trees() -> None:
    nics = "\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tCPU Affinity\nGPU0\tX\tPHB\tSYS\tSYS\t0-3\n"
    nics += "GPU1\tPHB\tX\tSYS\tSYS\t0-3\nmlx5_0\tSYS\tSYS\tX\tPIX\n"
    assert [gap.text for gap in parse_gaps(nics, "t")] == ["no row for mlx5_1"]
    assert parse_gaps(nics + "mlx5_1\tSYS\tSYS\tPIX\tX\n", "t") == ()
    tree = "-+-[0000:40]-+-00.0\n |           \\-01.1-[41]----00.0\n"
    assert "is not closed" in parse_gaps(tree, "t")[0].text
    assert parse_gaps(tree + " \\-[0000:00]-+-00.0\n", "t") == ()
    run = texts.bandwidths(
        "device_to_device_memcpy_read_ce", "GPU(row) -> GPU(column)", 3, lambda *_: 1
    )
    assert parse_gaps(run, "t") == ()
    cut = run[: run.rindex(" 2 ")]
    assert "2 of 3 rows" in parse_gaps(cut, "t")[0].text


def test_surplus_rows() -> None:
    assert parse_surplus(texts.topo(3, lambda *_: "PHB"), "t") == ()
    (extra,) = parse_surplus(texts.topo(2, lambda *_: "PHB") + "GPU5\tPHB\tSYS\n", "t")
    assert extra.text == "a row for GPU5, but columns for GPU0 to GPU1 only"


def test_every_wording_has_needles_and_a_kind_of_its_own() -> None:
    assert all(wording.needles for wording in WORDINGS)
    kinds = [wording.kind for wording in WORDINGS]
    assert len(set(kinds)) == len(kinds)


def test_messages_are_quoted_once_and_with_their_line() -> None:
    (message,) = parse_messages("x\n\tNVRM: Xid (PCI:0000:41:00): 79,   pid\n", "d")
    assert (str(message.place), message.kind) == ("d:2", "xid")
    assert message.text == "NVRM: Xid (PCI:0000:41:00): 79, pid"


def test_blocks_of_rates() -> None:
    cells = {
        (str(a), str(b)): 6.0 if a // 2 == b // 2 else 9.0
        for a in range(4)
        for b in range(4)
        if a != b
    }
    assert slow_groups(cells) == [{"0", "1"}, {"2", "3"}]
    assert fast_groups(cells) == []
    assert fast_groups({pair: 15.0 - rate for pair, rate in cells.items()}) == [
        {"0", "1"},
        {"2", "3"},
    ]
    assert slow_groups(dict.fromkeys(cells, 9.0)) == []


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [(2.5, 16, 4e9), (5.0, 8, 4e9), (8.0, 4, 3.938e9), (16.0, 16, 31.51e9), (64.0, 16, 128e9)],
)
def test_what_a_link_carries(speed: float, width: int, expected: float) -> None:
    rate = pcie_bytes_per_s(PcieLink(max_gt_per_s=speed, width=width))
    assert rate == pytest.approx(expected, rel=1e-3)
    assert pcie_bytes_per_s(PcieLink(width=width)) is None
