"""Rules on machines that are in no case: other names, counts and figures."""

import doctor_texts as texts
import pytest

from linkbound.doctor import Symptom, diagnose
from linkbound.evidence.types import Finding, Level, Severity


def found(*contents: str, symptom: str | None = None) -> dict[tuple[str, str], Finding]:
    """Findings by code and level; inputs are named a.txt, b.txt, ..."""
    inputs = [(f"{'abcdef'[at]}.txt", text.encode()) for at, text in enumerate(contents)]
    diagnosis = diagnose(inputs, None if symptom is None else Symptom(symptom))
    return {(one.code, one.level.value): one for one in diagnosis.findings}


def codes(*contents: str, symptom: str | None = None) -> set[str]:
    return {code for code, _ in found(*contents, symptom=symptom)}


# IOMMU and ACS

COMMAND_LINE = "BOOT_IMAGE=/boot/vmlinuz-6.8.0 root=UUID=0000-1111 ro quiet "


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("iommu=pt", {("iommu-passthrough", "healthy")}),
        ("amd_iommu=on iommu=pt", {("iommu-passthrough", "healthy")}),
        ("intel_iommu=on iommu=pt", {("iommu-passthrough", "healthy")}),
        ("intel_iommu=off", {("iommu-passthrough", "healthy")}),
        ("intel_iommu=on", {("iommu-translating", "seen")}),
        ("intel_iommu=on,sm_on", {("iommu-translating", "seen")}),
        ("amd_iommu=on", set()),
        ("splash", {("iommu-pt-missing", "seen")}),
        (
            "iommu=pt pcie_acs_override=downstream",
            {("iommu-passthrough", "healthy"), ("acs-override-set", "seen")},
        ),
    ],
)
def test_kernel_command_lines(options: str, expected: set[tuple[str, str]]) -> None:
    assert found(COMMAND_LINE + options).keys() == expected


def test_a_boot_loader_counts_only_where_the_line_in_use_is_not_shown() -> None:
    grub = 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"\n'
    assert found(grub).keys() == {("iommu-passthrough", "healthy")}
    in_use = COMMAND_LINE + "intel_iommu=on"
    assert found(grub, in_use).keys() == {("iommu-translating", "seen")}
    assert codes("#" + grub) == set()


def test_prose_about_options_is_no_command_line() -> None:
    assert codes("Somebody told me to boot with iommu=pt and root= but it did not help.\n") == set()


def test_faults_are_a_gpus_only_where_the_input_says_so() -> None:
    fault = (
        "[9.1] DMAR: [DMA Write] Request device [5e:00.0] fault addr ffff0000 [fault reason 05]\n"
    )
    assert found(fault).keys() == {("iommu-translating", "suspected")}
    named = "[1.0] nvidia 0000:5e:00.0: enabling device (0000 -> 0003)\n"
    seen = found(named + fault * 3)["iommu-translating", "seen"]
    assert "3 DMAR faults of 0000:5e:00.0 (a.txt:2, 3, 4)" in seen.seen
    disk = "nvme 0000:03:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0001 address=0x0]\n"
    assert codes(disk) == set()


PORT = """{bus}:00.0 PCI bridge: PLX Technology, Inc. PEX 8747 (rev ca)
\tBus: primary={bus}, secondary={below}, subordinate={below}, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{sign} CmpltRedir{sign} UpstreamFwd+ EgressCtrl-
"""
CARD = "{bus}:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 40GB] (rev a1)\n"
DISK = "{bus}:00.0 Non-Volatile memory controller: Samsung Electronics Co Ltd Device a80a\n"


def test_redirect_counts_above_gpus_only() -> None:
    above = PORT.format(bus="40", below="41", sign="+") + CARD.format(bus="41")
    finding = found(above)["acs-redirect", "seen"]
    assert "0000:40:00.0 (a.txt:3)" in finding.seen
    beside = PORT.format(bus="60", below="61", sign="+") + DISK.format(bus="61")
    clear = PORT.format(bus="40", below="41", sign="-") + CARD.format(bus="41")
    assert not {"acs-redirect", "acs-clear"} & codes(beside + clear)
    assert ("acs-clear", "healthy") in found(clear)


def test_an_excerpt_without_headings_counts() -> None:
    line = (
        "ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir+ UpstreamFwd- EgressCtrl- DirectTrans-\n"
    )
    assert ("acs-redirect", "seen") in found(line)
    assert codes(line.replace("ACSCtl", "ACSCap")) == set()


# Grants


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("GNS", "p2p-denied-gns"),
        ("CNS", "p2p-denied-cns"),
        ("TNS", "p2p-denied-tns"),
        ("DR", "p2p-denied-regkey"),
        ("NS", "p2p-not-granted"),
    ],
)
def test_refusals_of_the_peer_matrix(status: str, code: str) -> None:
    table = texts.peers(3, lambda src, dst: status if {src, dst} == {0, 2} else "OK")
    finding = found(table)[code, "seen"]
    assert "GPU0->GPU2, GPU2->GPU0" in finding.seen
    assert codes(texts.peers(3, lambda _src, _dst: "OK")) == set()


def test_grants_disagree_only_within_one_machine() -> None:
    ok = texts.peers(2, lambda _src, _dst: "OK")
    cuda = texts.devices(["NVIDIA L40"] * 2) + texts.access(2, lambda src, _dst: src == 0)
    finding = found(ok, cuda)["grant-disagrees", "seen"]
    assert "GPU1->GPU0: OK in a.txt, refused by CUDA in b.txt" in finding.seen
    assert "GPU0->GPU1" not in finding.seen
    assert "grant-disagrees" not in codes(texts.peers(4, lambda _src, _dst: "OK"), cuda)


def test_mixed_models_within_one_listing() -> None:
    one, other = "GPU 0: NVIDIA A40\nGPU 1: NVIDIA A40\n", "GPU 0: NVIDIA L4\nGPU 1: NVIDIA L4\n"
    assert "mixed-gpu-models" not in codes(one, other)
    assert "mixed-gpu-models" in codes(one.replace("1: NVIDIA A40", "1: NVIDIA A10"))


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("NCCL_P2P_DISABLE=1", True),
        ("export NCCL_P2P_DISABLE=1", True),
        ("      - NCCL_P2P_DISABLE=1", True),
        ('  "NCCL_P2P_DISABLE": "1",', True),
        ("$ NCCL_P2P_DISABLE=1 vllm serve model", True),
        ("hostA:1:1 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to LOC", True),
        ("hostA:1:1 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS", False),
        ("hostA:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 0", False),
        ("# NCCL_P2P_DISABLE=1", False),
        ("NCCL_P2P_DISABLE=0", False),
        ("You could try to set NCCL_P2P_DISABLE=1 and see.", False),
    ],
)
def test_the_environment_that_switches_peers_off(line: str, seen: bool) -> None:
    assert (("p2p-disabled-by-env", "seen") in found(line + "\n")) is seen


def test_the_launcher_is_named() -> None:
    finding = found("command: torchrun train.py\nNCCL_P2P_DISABLE=1\n")[
        "p2p-disabled-by-env", "seen"
    ]
    assert "names torchrun" in finding.seen


def test_policy_off_by_level_and_by_the_library_itself() -> None:
    staged = texts.channel(0, 1, "SHM/direct/direct") + texts.channel(1, 0, "SHM/direct/direct")
    level = "hostA:1:1 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to {}\n"
    map_ = texts.topo(2, lambda _src, _dst: "NODE")
    assert ("p2p-policy-off", "seen") in found(level.format("PXB") + staged, map_)
    assert "p2p-policy-off" not in codes(level.format("SYS") + staged, map_)
    itself = "hostA:1:1 [0] NCCL INFO Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 1\n"
    assert ("p2p-policy-off", "seen") in found(itself + staged)
    assert "p2p-policy-off" not in codes(itself + level.format("LOC") + staged)
    assert ("p2p-policy-off", "suspected") in found(staged, map_)


def test_an_nvlinked_pair_on_shared_memory_is_suspicious() -> None:
    staged = texts.channel(0, 1, "SHM/direct")
    assert ("p2p-disabled-by-env", "suspected") in found(staged, texts.topo(2, lambda *_: "NV4"))


def test_waived_tests_need_two_gpus() -> None:
    run = "nvbandwidth Version: v0.8\n{}\nWaiving device_to_device_memcpy_read_ce.\n"
    two = run.format("Device 0: NVIDIA L4\nDevice 1: NVIDIA L4\n")
    assert ("waived-no-p2p", "seen") in found(two)
    assert found(run.format("Device 0: NVIDIA L4\n")).keys() == {("single-gpu-run", "healthy")}


def test_registry_keys() -> None:
    option = 'options nvidia NVreg_RegistryDwords="{}"\n'
    assert ("p2p-denied-regkey", "seen") in found(option.format("ForceP2P=0"))
    assert codes(option.format("ForceP2P=0x11;PeerMappingOverride=1")) == set()


# NVLink


def test_links_by_what_the_product_has() -> None:
    part = texts.nvlink("NVIDIA H100 80GB HBM3", [number not in (3, 11) for number in range(18)])
    assert "16 of 18 links active, link 3, 11 inactive" in found(part)["nvlink-down", "seen"].seen
    paired = texts.nvlink("NVIDIA H200 NVL", [number < 12 for number in range(18)])
    assert found(paired).keys() == {("nvlink-absent-by-design", "healthy")}
    assert found(texts.nvlink("NVIDIA RTX A5000", [False] * 4)).keys() == {
        ("nvlink-absent-by-design", "healthy")
    }
    assert found(texts.nvlink("NVIDIA RTX A5000", [True, True, False, True])).keys() == {
        ("nvlink-down", "suspected")
    }
    assert codes(texts.nvlink("NVIDIA H200", [True] * 18)) == set()


def test_fewer_links_than_the_siblings() -> None:
    pair = texts.nvlink("NVIDIA A40", [True] * 4, "14.062") + texts.nvlink(
        "NVIDIA A40", [True, True, True, False], "14.062", index=1
    )
    assert "3 links active, 4 on its siblings" in found(pair)["nvlink-down", "seen"].seen


@pytest.mark.parametrize("slow", [0, 3, 7])
def test_one_gpu_of_a_switch_with_fewer_links(slow: int) -> None:
    table = texts.topo(8, lambda src, dst: "NV16" if slow in (src, dst) else "NV18")
    result = found(table)
    assert f"GPU{slow}: NV16 to its peers" in result["nvlink-down", "seen"].seen
    assert ("nvlink-whole", "healthy") not in result


def test_islands_and_whole_machines() -> None:
    pairs = texts.topo(6, lambda src, dst: "NV4" if src // 2 == dst // 2 else "PHB")
    islands = found(pairs)["nvlink-islands", "seen"].seen
    assert "{GPU0, GPU1}, {GPU2, GPU3}, {GPU4, GPU5}" in islands
    single = texts.topo(3, lambda src, dst: "NV4" if 2 not in (src, dst) else "PHB")
    assert "{GPU2}" in found(single)["nvlink-islands", "seen"].seen
    assert found(texts.topo(4, lambda *_: "NV6")).keys() == {("nvlink-whole", "healthy")}


def test_a_whole_matrix_alone_is_called_whole() -> None:
    whole = found(texts.topo(4, lambda *_: "NV6"))["nvlink-whole", "healthy"]
    assert "all 6 printed pairs" in whole.seen
    assert "any group of them has the direct link" in whole.why
    cut = "\n".join(texts.topo(16, lambda *_: "NV6").splitlines()[:5]) + "\n"
    part = found(cut)["nvlink-whole", "healthy"]
    assert "all 54 printed pairs" in part.seen  # 4 rows: 15 + 14 + 13 + 12
    assert "of 66 other pairs nothing is known" in part.why
    assert part.remedy != "Nothing to do."


def test_the_cube_mesh_has_twelve_pairs_without_a_link() -> None:
    def label(src: int, dst: int) -> str:
        if src // 4 == dst // 4:
            return "NV2" if {src % 4, dst % 4} in ({0, 3}, {1, 2}) else "NV1"
        return "NV2" if src % 4 == dst % 4 else "SYS"

    mesh = found(texts.topo(8, label))["nvlink-whole", "healthy"]
    assert "16 of 28 pairs are linked" in mesh.seen
    assert "any group" not in mesh.why
    assert "four of the other seven" in mesh.why
    assert "{GPU0, GPU1, GPU2, GPU3}, {GPU4, GPU5, GPU6, GPU7}" in mesh.remedy


def test_no_links_on_the_layout_of_modules() -> None:
    head = "\t".join(f"GPU{n}" for n in range(8)) + "\t" + "\t".join(f"NIC{n}" for n in range(8))
    rows = [
        "\t".join(
            (
                f"GPU{src}",
                *("X" if src == dst else "SYS" for dst in range(8)),
                *("PIX" if src == nic else "SYS" for nic in range(8)),
            )
        )
        for src in range(8)
    ]
    nics = [
        f"NIC{nic}\t" + "\t".join("X" if at == nic + 8 else "SYS" for at in range(16))
        for nic in range(8)
    ]
    assert ("nvlink-down", "suspected") in found("\n".join(("\t" + head, *rows, *nics, "")))


def test_a_module_without_links_in_the_map_points_to_the_fabric_manager() -> None:
    listing = "".join(f"GPU {n}: NVIDIA A100-SXM4-40GB\n" for n in range(4))
    result = found(listing + texts.topo(4, lambda *_: "SYS"))
    assert ("fabric-manager-down", "suspected") in result


def test_fabric_manager_lines() -> None:
    mismatch = (
        "nv-fabricmanager[9]: fabric manager NVIDIA GPU driver interface version 550.1 don't match "
        "with driver version 550.2. Please update\n"
    )
    assert ("fabric-manager-down", "seen") in found(mismatch)
    failed = "systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.\n"
    assert ("fabric-manager-down", "suspected") in found(failed)
    assert ("fabric-manager-not-needed", "healthy") in found(failed, "GPU 0: NVIDIA L40\n")
    assert ("fabric-manager-down", "seen") in found(failed, "GPU 0: NVIDIA H200\n")
    error = "RuntimeError: Error 802: system not yet initialized\n"
    assert ("fabric-manager-down", "seen") in found(error)
    assert "fabric-manager-down" not in codes(error, "GPU 0: NVIDIA GeForce RTX 4090\n")


def test_multicast() -> None:
    line = "hostA:1:1 [0] NCCL INFO NVLS multicast support is {}available on dev 0\n"
    assert found(line.format("")).keys() == {("nvls-used", "healthy")}
    assert found(line.format("not ")).keys() == {("nvls-absent", "healthy")}
    failed = "hostA:1:2 [0] transport/nvls.cc:250 NCCL WARN Cuda failure 1 'invalid argument'\n"
    assert found(failed).keys() == {("nvls-failed", "seen")}


def test_graph_lines_of_the_library() -> None:
    line = "NCCL INFO GPU/{0}000 :GPU/{0}000 (0/5000.0/LOC) GPU/{1}000 (1/40.0/{2})\n"
    whole = line.format("1", "2", "NVL") + line.format("2", "1", "NVL")
    assert ("nvlink-whole", "healthy") in found(whole)
    through = whole.replace("NVL", "NVB")
    assert "no direct link" in found(through)["nvlink-whole", "healthy"].why
    part = whole.replace("NVL)", "NVL) GPU/3000 (1/40.0/NVL)", 1)
    assert "of 1 other pairs nothing is known" in found(part)["nvlink-whole", "healthy"].why
    far = line.format("1", "2", "SYS") + line.format("2", "1", "SYS")
    assert "1000->2000, 2000->1000: SYS" in found(far)["cross-socket-path", "seen"].seen


# PCIe


def test_query_rows() -> None:
    head = "index, name, pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, {}\n"
    full = head.format("pcie.link.width.max")
    rows = "0, NVIDIA A10, 1, 4, 16, 16\n1, NVIDIA A10, 4, 4, 2, 16\n"
    result = found(full + rows)
    assert "GPU1 x2 of x16 (a.txt:3)" in result["link-width-reduced", "seen"].seen
    assert "GPU0 Gen1 of Gen4" in result["link-speed-idle", "healthy"].seen
    loaded = head.format("utilization.gpu [%]") + "0, NVIDIA A10, 1, 4, 16, 97 %\n"
    assert ("link-width-reduced", "seen") in found(loaded)


@pytest.mark.parametrize("name", ["amdgpu", "nvidia"])
def test_a_link_limited_by_the_kernel(name: str) -> None:
    line = (
        f"{name} 0000:21:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x4 "
        "link at 0000:20:01.1 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)\n"
    )
    finding = found(line)["link-width-reduced", "seen"]
    assert "8 GT/s x4 of 16 GT/s x16, limited at 0000:20:01.1 (a.txt:1)" in finding.seen
    assert codes(line.replace(name, "nvme")) == {"link-width-reduced"}
    assert ("link-width-reduced", "suspected") in found(line.replace(name, "nvme"))


def test_an_x8_card_in_an_x16_port_is_complete() -> None:
    listing = """00:01.0 PCI bridge: Intel Corporation Device 460d (rev 02)
\tBus: primary=00, secondary=01, subordinate=01, sec-latency=0
\t\tLnkCap:\tPort #2, Speed 32GT/s, Width x16
\t\tLnkSta:\tSpeed 16GT/s, Width x8 (downgraded)
01:00.0 VGA compatible controller: NVIDIA Corporation AD106 [GeForce RTX 4060 Ti] (rev a1)
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x8
\t\tLnkSta:\tSpeed 16GT/s, Width x8
"""
    assert "link-width-reduced" not in codes(listing)
    assert "link-width-reduced" in codes(
        listing.replace(
            "Speed 16GT/s, Width x8\n\t\tLnkSta:\tSpeed 16GT/s, Width x8\n",
            "Speed 16GT/s, Width x8\n\t\tLnkSta:\tSpeed 16GT/s, Width x4 (downgraded)\n",
        )
    )


def test_slots_of_the_chipset_by_name_and_by_place() -> None:
    listing = """00:1c.4 PCI bridge: {} (rev f1)
\tBus: primary=00, secondary=02, subordinate=02, sec-latency=0
02:00.0 VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)
"""
    assert ("chipset-slot", "seen") in found(listing.format("Intel Corporation Device 7abc"))
    named = listing.format("Advanced Micro Devices, Inc. [AMD] 600 Series Chipset PCIe Switch Port")
    assert ("chipset-slot", "seen") in found(named.replace("00:1c.4", "00:02.1"))
    cpu = listing.format("Intel Corporation Device 460d").replace("00:1c.4", "00:01.0")
    assert "chipset-slot" not in codes(cpu)


def test_bar1_against_the_memory() -> None:
    smi = (
        "GPU 00000000:41:00.0\n    Product Name                  : NVIDIA RTX 4000\n"
        "    FB Memory Usage\n        Total                     : 20475 MiB\n"
        "    BAR1 Memory Usage\n        Total                     : {} MiB\n"
    )
    assert "BAR1 256 MiB for 20.00 GiB" in found(smi.format(256))["bar1-too-small", "seen"].seen
    assert ("bar1-too-small", "seen") in found(smi.format(16384))
    assert "bar1-too-small" not in codes(smi.format(32768))
    excerpt = "\t\tBAR 1: current size: {}, supported: 64MB 128MB 256MB\n"
    assert ("bar1-too-small", "seen") in found(excerpt.format("256MB"))
    assert "bar1-too-small" not in codes(excerpt.format("16GB"))


# Rates


def near_and_far(near: float, far: float, size: int) -> str:
    return texts.enabled(4, lambda src, dst: near if src // size == dst // size else far)


def test_neighbours_that_are_slower() -> None:
    map_ = texts.topo(4, lambda src, dst: "PIX" if src // 2 == dst // 2 else "NODE")
    granted = texts.devices(["NVIDIA L40"] * 4) + texts.access(4)
    result = found(granted + near_and_far(12.4, 24.9, 2), map_)
    assert (
        "PIX pairs 12.40 GB/s, NODE pairs 24.90 GB/s" in result["near-slower-than-far", "seen"].seen
    )
    assert ("acs-redirect", "suspected") in result
    assert not {"near-slower-than-far"} & codes(granted + near_and_far(24.9, 22.1, 2), map_)
    blocks = texts.enabled(6, lambda src, dst: 7.0 if src // 3 == dst // 3 else 9.5)
    assert {("near-slower-than-far", "seen"), ("p2p-not-granted", "suspected")} <= found(
        blocks
    ).keys()


@pytest.mark.parametrize("gpus", [3, 5, 8])
def test_one_slow_device(gpus: int) -> None:
    slow = gpus - 1
    table = texts.enabled(gpus, lambda src, dst: 40.0 if slow in (src, dst) else 54.0)
    assert f"GPU{slow}: 40.00 GB/s" in found(table)["one-slow-device", "seen"].seen
    assert "one-slow-device" not in codes(texts.enabled(gpus, lambda _src, _dst: 54.0))
    one_way = texts.enabled(gpus, lambda src, _dst: 40.0 if src == slow else 54.0)
    assert "one-slow-device" not in codes(one_way)


def test_peer_copies_slower_than_staging() -> None:
    head = texts.devices(["NVIDIA L40"] * 3) + texts.access(3, lambda src, dst: 2 not in (src, dst))
    slow = head + texts.disabled(3, lambda *_: 20.0) + texts.enabled(3, lambda *_: 12.0)
    finding = found(slow)["p2p-slower-than-staging", "seen"]
    assert "2 of 2 pairs" in finding.seen
    alike = head + texts.disabled(3, lambda *_: 20.0) + texts.enabled(3, lambda *_: 19.0)
    assert "p2p-slower-than-staging" not in codes(alike)


def test_equal_matrices_without_access_lines() -> None:
    both = texts.disabled(2, lambda *_: 11.0) + texts.enabled(2, lambda *_: 11.1)
    slow = texts.latency("Disabled", 2, lambda *_: 15.0) + texts.latency(
        "Enabled", 2, lambda *_: 14.8
    )
    fast = texts.latency("Disabled", 2, lambda *_: 15.0) + texts.latency(
        "Enabled", 2, lambda *_: 1.3
    )
    assert ("p2p-not-granted", "suspected") in found(both + slow)
    assert "p2p-not-granted" not in codes(both + fast)


def test_a_rate_beyond_the_stated_link() -> None:
    cards = texts.devices(["NVIDIA GeForce RTX 4090"] * 2) + texts.access(2)
    rows = "index, pcie.link.gen.max, pcie.link.width.current, pcie.link.width.max\n"
    rows += "0, 3, 8, 8\n1, 3, 8, 8\n"
    over = found(cards + texts.enabled(2, lambda *_: 13.1), rows)
    assert (
        "13.10 GB/s (a.txt), the stated link carries 7.88 GB/s"
        in over["link-budget-exceeded", "seen"].seen
    )
    assert ("pcie-rate-normal", "healthy") not in over
    assert "link-budget-exceeded" not in codes(cards + texts.enabled(2, lambda *_: 7.1), rows)
    linked = cards.replace("RTX 4090", "RTX 3090") + texts.enabled(2, lambda *_: 50.0)
    assert "link-budget-exceeded" not in codes(linked, rows)


def test_writes_that_collapse_together() -> None:
    head = "nvbandwidth Version: v0.8\n"
    head += "".join(f"Device {n}: NVIDIA RTX PRO 6000\n" for n in range(4)) + "\n"
    single = texts.bandwidths(
        "device_to_device_memcpy_write_ce", "GPU(row) <- GPU(column)", 4, lambda *_: 54.0
    )
    writes = texts.bandwidths(
        "all_to_one_write_ce", "GPU(row) <- GPU(column)", 4, lambda *_: 17.0, rows=1
    )
    reads = texts.bandwidths(
        "all_to_one_read_ce", "GPU(row) -> GPU(column)", 4, lambda *_: 53.0, rows=1
    )
    assert ("posted-write-collapse", "seen") in found(head + single + writes + reads)
    assert "incomplete-output" not in codes(head + single + writes + reads)
    assert "posted-write-collapse" not in codes(head + single + reads)


@pytest.mark.parametrize(
    ("rate", "normal"), [(13.1, True), (26.2, True), (55.6, True), (6.1, False), (20.0, False)]
)
def test_normal_pcie_rates(rate: float, normal: bool) -> None:
    assert (("pcie-rate-normal", "healthy") in found(texts.enabled(3, lambda *_: rate))) is normal


def test_a_slow_link_to_the_host() -> None:
    run = "nvbandwidth Version: v0.8\n\n" + texts.bandwidths(
        "host_to_device_memcpy_ce",
        "CPU(row) -> GPU(column)",
        4,
        lambda _, gpu: 6.2 if gpu == 1 else 25.0,
        rows=1,
    )
    assert "GPU1 6.20 GB/s" in found(run)["link-width-reduced", "suspected"].seen


# Paths


def test_sockets_and_nodes() -> None:
    two = texts.topo(
        4, lambda src, dst: "NODE" if src // 2 == dst // 2 else "SYS", lambda gpu: str(gpu // 2)
    )
    assert "GPU0-GPU2" in found(two)["cross-socket-path", "seen"].seen
    within = texts.topo(3, lambda *_: "SYS", lambda _gpu: "0")
    assert found(within).keys() == {("sys-within-node", "seen")}
    own = texts.topo(4, lambda *_: "SYS", lambda gpu: str(gpu))
    assert found(own).keys() == {("sys-within-node", "suspected")}
    pair = texts.topo(2, lambda *_: "SYS", lambda gpu: str(gpu))
    assert found(pair).keys() == {("cross-socket-path", "seen")}


def test_tables_that_contradict_themselves() -> None:
    odd = texts.topo(3, lambda src, dst: "SYS" if (src, dst) == (0, 2) else "PHB")
    assert "GPU0->GPU2 SYS, back PHB" in found(odd)["inconsistent-matrix", "seen"].seen
    surplus = texts.topo(2, lambda *_: "PHB") + "GPU2\tPHB\tPHB\n"
    assert "a row for GPU2" in found(surplus)["inconsistent-matrix", "seen"].seen


# Host, guest, container


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.", "gpu-xid"),
        ("NVRM: GPU1 kbusCreateStaticBar1_HAL: cannot map", "bar1-mapping-missing"),
        ("pci: Warning: PCIe ACS overrides enabled; This may allow", "acs-override-set"),
        ("Linux box 5.15.153.1-microsoft-standard-WSL2 #1 SMP", "wsl"),
        ("  MIG 1g.10gb     Device  0: (UUID: MIG-00)", "mig-no-p2p"),
        ("set_mempolicy: Operation not permitted", "container-limits"),
        (
            "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
            "container-limits",
        ),
        ("<hostdev mode='subsystem' type='pci' managed='yes'>", "virtual-topology"),
        ("hostpci0: 0000:81:00,pcie=1", "virtual-topology"),
        ("Hypervisor vendor:   KVM", "virtual-topology"),
        (
            "[0] NCCL INFO Could not find a path for pattern 4, falling back to simple order",
            "nccl-path-fallback",
        ),
        (
            "OSError: unable to write to file </torch_1_2>: No space left on device (28)",
            "shm-too-small",
        ),
        (
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "collective-crash",
        ),
    ],
)
def test_lines_with_one_meaning(line: str, code: str) -> None:
    assert found(line + "\n").keys() == {(code, "seen")}
    assert codes(f"# {line}\n") == set()


@pytest.mark.parametrize(
    "line",
    [
        "r8169 0000:05:00.0 eth0: RTL8168h/8111h, 02:00:00:00:00:01, XID 541, IRQ 59",
        "/var/lib/docker: No space left on device",
        "hostA:1:1 [0] NCCL INFO P2P plugin IBext_v8",
        "[0] NCCL INFO Could not find real path of /sys/class/pci_bus/fffffff/../../fffffff:ff:f",
    ],
)
def test_lines_that_look_alike_and_mean_nothing(line: str) -> None:
    assert codes(line + "\n") == set()


def test_guests() -> None:
    bridge = "00:01.0 PCI bridge: Red Hat, Inc. QEMU PCIe Root port\n"
    bridge += "\tBus: primary=00, secondary=01, subordinate=01, sec-latency=0\n"
    assert ("virtual-topology", "seen") in found(bridge + CARD.format(bus="01"))
    short = "hostA:1:1 [0] NCCL INFO Channel 00 : 0[180] -> 1[190] via direct shared memory\n"
    assert ("virtual-topology", "suspected") in found(short)


# Library and runs


def test_transports() -> None:
    log = texts.channel(0, 1, "P2P/IPC/read") + texts.channel(1, 2, "NET/IB/0/GDRDMA")
    assert {("transport-direct", "seen"), ("transport-net", "seen")} <= found(log).keys()
    assert "net-no-gdr" not in codes(log)
    assert ("net-no-gdr", "seen") in found(texts.channel(1, 2, "NET/IB/0/Shared"))
    assert "net-no-gdr" not in codes(texts.channel(1, 2, "NET/Socket/0"))


def test_a_version_below_the_gpus() -> None:
    run = texts.nccl_tests(["NVIDIA GeForce RTX 5080"] * 2, "#wrong", "0")
    version = "hostA:1:1 [0] NCCL INFO NCCL version {}+cuda12.8\n"
    assert ("nccl-too-old", "seen") in found(run + version.format("2.24.3"))
    assert "nccl-too-old" not in codes(run + version.format("2.27.3"))


def test_verified_and_failed_runs() -> None:
    cards = ["NVIDIA A100-PCIE-40GB"] * 2
    wrong = found(texts.nccl_tests(cards, "#wrong", "7"))["wrong-values", "seen"]
    assert "7+7 wrong at 67108864 B" in wrong.seen
    assert wrong.severity is Severity.ERROR
    assert ("wrong-values", "seen") in found(texts.nccl_tests(cards, "error", "2e+00"))
    assert ("rounding-not-corruption", "healthy") in found(
        texts.nccl_tests(cards, "error", "5e-07")
    )
    assert codes(texts.nccl_tests(cards, "#wrong", "0")) == set()
    assert ("single-gpu-run", "healthy") in found(texts.nccl_tests(cards[:1], "#wrong", "0"))


def test_peer_memory_read_at_its_owner() -> None:
    probe = "pair 2 -> 3 writer wrote: deadbeef 00000001\npair 2 -> 3 owner reads: {}\n"
    bad = found(probe.format("deadbeef 00000000"))["p2p-corruption", "seen"]
    assert (
        "2 -> 3: written deadbeef 00000001, the owner reads deadbeef 00000000 (a.txt:2)" in bad.seen
    )
    assert codes(probe.format("deadbeef 00000001")) == set()
    sample = "Run kernel on GPU1, taking source data from GPU0 and writing to GPU1...\n"
    failed = sample + "Verification error @ element 7: val = 0.000000, ref = 28.000000\n"
    assert "0 -> 1: element 7 is 0.000000" in found(failed)["p2p-corruption", "seen"].seen
    assert codes(sample + "Test passed\n") == set()


def test_time_outs() -> None:
    line = (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 1 ms\n"
    )
    assert ("p2p-hang", "suspected") in found(line)
    assert ("p2p-hang", "seen") in found(line + texts.channel(0, 1, "P2P/CUMEM"))
    assert "p2p-hang" not in codes(line + texts.channel(0, 1, "NET/Socket/0"))


def test_logs_that_end_in_their_set_up() -> None:
    begun = "hostA:1:1 [0] NCCL INFO Channel 00/02 :    0   1\n"
    assert ("incomplete-output", "seen") in found(begun)
    own = (
        "hostA:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 busId 41000 "
        "commId 0x2 - Init COMPLETE\n"
    )
    assert "incomplete-output" not in codes(begun + own + texts.channel(0, 1, "P2P/IPC"))


# Suspicions


LOST = {"iommu-translating", "acs-redirect"}


@pytest.mark.parametrize(("symptom", "own"), [("hang", "p2p-hang"), ("corrupt", "p2p-corruption")])
def test_suspicions_need_a_symptom_and_room(symptom: str, own: str) -> None:
    map_ = texts.topo(2, lambda *_: "PHB")
    assert codes(map_) == set()
    assert codes(map_, symptom=symptom) == LOST | {own}
    assert codes(texts.topo(4, lambda *_: "NV12"), symptom=symptom) == {"nvlink-whole"}
    refused = texts.peers(2, lambda *_: "GNS")
    assert codes(refused, symptom=symptom) == {"p2p-denied-gns"}
    assert codes("GPU 0: NVIDIA L4\nGPU 1: NVIDIA T4\n", symptom=symptom) == {"mixed-gpu-models"}
    hosts = texts.nccl_tests(["NVIDIA L4"] * 2, "#wrong", "0", hosts=["hostA", "hostB"])
    assert codes(hosts, symptom=symptom) == {"transport-net"}


def test_a_pci_tree_beside_an_nvlink_map_leaves_no_room() -> None:
    linked, tree = texts.topo(2, lambda *_: "NV4"), texts.topo(2, lambda *_: "PHB")
    assert codes(linked, tree, symptom="hang") == {"nvlink-whole"}
    other = texts.topo(4, lambda *_: "PHB")
    assert "p2p-hang" in codes(linked, other, symptom="hang")


def test_what_rules_a_cause_out_ends_its_suspicion() -> None:
    map_ = texts.topo(2, lambda *_: "PHB")
    assert "iommu-translating" not in codes(map_, COMMAND_LINE + "iommu=pt", symptom="hang")
    clear = "ACSCtl: SrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl-\n"
    assert "acs-redirect" not in codes(map_, clear, symptom="hang")
    ok = texts.peers(2, lambda *_: "OK")
    assert "bar1-mapping-missing" in codes(ok, symptom="hang")
    keys = 'options nvidia NVreg_RegistryDwords="RMForceStaticBar1=1;PeerMappingOverride=1"\n'
    assert "bar1-mapping-missing" not in codes(ok, keys, symptom="hang")


def test_slow_across_sockets() -> None:
    map_ = texts.topo(2, lambda *_: "SYS")
    log = texts.channel(0, 1, "P2P/CUMEM") + texts.channel(1, 0, "P2P/CUMEM")
    assert ("p2p-slower-than-staging", "suspected") in found(log, map_, symptom="slow")
    assert "p2p-slower-than-staging" not in codes(log, map_)


def test_a_contradicted_symptom_is_said() -> None:
    run = texts.nccl_tests(["NVIDIA A100-PCIE-40GB"] * 2, "#wrong", "0").encode()
    remarks = diagnose([("run.txt", run)], Symptom.CORRUPT).remarks
    assert remarks == ("Against the symptom: run.txt: 1 sizes on 2 GPUs were verified, 0 wrong.",)


def test_levels_and_severities() -> None:
    for finding in found(
        COMMAND_LINE + "iommu=pt", texts.topo(2, lambda *_: "PHB"), symptom="hang"
    ).values():
        if finding.level is Level.HEALTHY:
            assert finding.severity is Severity.INFO
        if finding.level is Level.SUSPECTED:
            assert finding.severity is not Severity.ERROR
            assert finding.remedy.startswith("To be sure: ")
