"""The live probe on a fake /sys, a fake NVML, and on a host without either."""

import builtins
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from linkbound.topology import probe
from linkbound.topology.nvml import read_nvml
from linkbound.topology.nvml_ask import NvmlRefused
from linkbound.topology.types import Capability, DeviceKind, PcieLink, PeerStatus

GIB = 1024**3


class FakeNvml:
    """Two GPUs on NVSwitch whose answers are plain values; `refuse` names what it refuses."""

    def __init__(self, count: int = 2, refuse: dict[str, str] | None = None) -> None:
        self.count = count
        self.refuse = refuse or {}
        self.links = 3
        self.status = {0: 0, 1: 0, 2: 0, 3: 0, 4: 5}
        self.remote_kind = 2
        self.remote_bus = "FFFFFFFF:FF:FF.0"
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def ask(self, function: str, *arguments: Any) -> Any:
        self.asked.append((function, arguments))
        if function in self.refuse:
            raise NvmlRefused(function, self.refuse[function])
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlSystemGetDriverVersion": lambda: "580.159.04",
            "nvmlSystemGetNVMLVersion": lambda: b"13.580.159.04",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
            "nvmlDeviceGetName": lambda _: "NVIDIA H200",
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-00000000-0000-0000-0000-00000000000{gpu + 1}",
            "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(
                busId=f"00000000:00:0{gpu + 6}.0", pciDeviceId=0x233510DE
            ),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=141 * GIB),
            "nvmlDeviceGetBAR1MemoryInfo": lambda _: SimpleNamespace(bar1Total=256 * GIB),
            "nvmlDeviceGetMigMode": lambda _: [0, 0],
            "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
            "nvmlDeviceGetCpuAffinity": lambda _, words: [0xFFFFFFFF, *[0] * (words - 1)],
            "nvmlDeviceGetMemoryAffinity": lambda _, words, _scope: [0b1, *[0] * (words - 1)],
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 1,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 16,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
            "nvmlDeviceGetPersistenceMode": lambda _: 1,
            "nvmlDeviceGetVirtualizationMode": lambda _: 1,
            "nvmlDeviceGetNvLinkState": self.link_state,
            "nvmlDeviceGetFieldValues": self.fields,
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda _gpu, _link: self.remote_kind,
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda _gpu, _link: SimpleNamespace(
                busId=self.remote_bus
            ),
            "nvmlDeviceGetTopologyCommonAncestor": lambda _src, _dst: 30,
            "nvmlDeviceGetP2PStatus": lambda _src, _dst, index: self.status[index],
        }
        return answers[function](*arguments)

    def link_state(self, _gpu: int, link: int) -> int:
        if link >= self.links:
            raise NvmlRefused("nvmlDeviceGetNvLinkState", "Invalid Argument")
        return 0 if link == 2 else 1

    @staticmethod
    def fields(_gpu: int, wanted: list[tuple[int, int]]) -> list[SimpleNamespace]:
        answers = {164: 26562, 161: 0, 162: 0, 163: 4, 170: None}
        return [
            SimpleNamespace(
                nvmlReturn=0 if answers[field] is not None else 3,
                valueType=1,
                value=SimpleNamespace(uiVal=answers[field]),
            )
            for field, _ in wanted
        ]


def test_nvml_gives_every_fact_of_a_gpu() -> None:
    machine = read_nvml(FakeNvml())
    first = machine.gpus[0]
    assert first.key == first.uuid == "GPU-00000000-0000-0000-0000-000000000001"
    assert (first.label, first.bus_id, first.device_id) == ("GPU0", "0000:00:06.0", "10de:2335")
    assert (first.model, first.vendor) == ("NVIDIA H200", "NVIDIA")
    assert (first.memory_bytes, first.bar1_bytes) == (141 * GIB, 256 * GIB)
    assert first.pcie == PcieLink(gt_per_s=2.5, width=16, max_gt_per_s=32.0, max_width=16)
    assert (first.compute_capability, first.mig) == ("9.0", False)
    assert (first.numa_node, first.cpu_affinity) == (0, "0-31")
    assert first.facts == {"Persistence Mode": "Enabled", "virtualisation": "Pass-Through"}
    assert machine.host == {
        "driver": "580.159.04",
        "nvml": "13.580.159.04",
        "cuda": "13.0",
        "gpu_virtualisation": "Pass-Through",
    }
    assert machine.notes == ()


def test_nvml_links_keep_the_inactive_one_and_meet_at_the_unseen_switch() -> None:
    machine = read_nvml(FakeNvml())
    links = machine.gpus[0].nvlinks
    assert [link.active for link in links] == [True, True, False]
    assert [link.bytes_per_s for link in links] == [26.562e9, 26.562e9, None]
    assert [link.remote for link in links] == ["nvswitch", "nvswitch", None]
    assert machine.path("GPU0", "GPU1").label == "NV2"


def test_nvml_links_keep_their_error_counts() -> None:
    links = read_nvml(FakeNvml()).gpus[1].nvlinks
    assert [link.errors for link in links] == [{"replay": 0, "recovery": 0, "crc": 4}] * 3


def test_coherent_links_are_a_fact_where_there_are_any() -> None:
    nvml = FakeNvml()
    nvml.fields = lambda _gpu, wanted: [  # type: ignore[method-assign]
        SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=10)) for _ in wanted
    ]
    assert read_nvml(nvml).gpus[0].facts["C2C links"] == "10"
    assert "C2C links" not in read_nvml(FakeNvml()).gpus[0].facts


def test_nvml_far_end_on_another_gpu() -> None:
    nvml = FakeNvml()
    nvml.remote_kind, nvml.remote_bus = 0, "00000000:00:07.0"
    machine = read_nvml(nvml)
    assert machine.gpus[0].nvlinks[0].remote == "0000:00:07.0"
    assert machine.path("GPU0", "GPU1").label == "NV2"


def test_nvml_asks_every_ordered_pair_by_plain_numbers() -> None:
    nvml = FakeNvml()
    machine = read_nvml(nvml)
    asked = [arguments for name, arguments in nvml.asked if name == "nvmlDeviceGetP2PStatus"]
    assert sorted(asked) == [(a, b, i) for a, b in ((0, 1), (1, 0)) for i in range(5)]
    assert all(type(index) is int for _, _, index in asked)
    for path in machine.pairs:
        assert path.status[Capability.READ] is PeerStatus.OK
        assert path.status[Capability.NVLINK] is PeerStatus.OK
        assert path.status[Capability.PCI] is PeerStatus.NOT_SUPPORTED


def test_without_nvlink_the_common_ancestor_is_the_label() -> None:
    machine = read_nvml(FakeNvml(refuse={"nvmlDeviceGetNvLinkState": "Not Supported"}))
    assert all(gpu.nvlinks == () for gpu in machine.gpus)
    assert machine.path("GPU0", "GPU1").label == "PHB"
    assert machine.notes == ()


ONE_FACT = {
    "nvmlDeviceGetName": "model",
    "nvmlDeviceGetBAR1MemoryInfo": "bar1_bytes",
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetCpuAffinity": "cpu_affinity",
    "nvmlDeviceGetMemoryAffinity": "numa_node",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetPciInfo": "bus_id",
}


@pytest.mark.parametrize(("function", "field"), ONE_FACT.items())
def test_a_refused_fact_is_none_with_a_note_and_nothing_else_is_lost(
    function: str, field: str
) -> None:
    whole = read_nvml(FakeNvml()).gpus[0]
    machine = read_nvml(FakeNvml(refuse={function: "Unknown Error"}))
    gpu = machine.gpus[0]
    assert getattr(gpu, field) is None
    follows = {"key", "device_id"}
    for name in set(gpu.__struct_fields__) - {field} - follows:
        assert getattr(gpu, name) == getattr(whole, name), name
    assert machine.notes == (f"NVML, {function}: Unknown Error (GPU0, GPU1): left unknown.",)


def test_refused_status_leaves_the_pair_with_its_label() -> None:
    machine = read_nvml(FakeNvml(refuse={"nvmlDeviceGetP2PStatus": "Not Supported"}))
    assert [path.label for path in machine.pairs] == ["NV2", "NV2"]
    assert all(path.status == {} for path in machine.pairs)
    assert "GPU0 -> GPU1, GPU1 -> GPU0" in machine.notes[0]


def test_unknown_status_code_is_unknown() -> None:
    nvml = FakeNvml()
    nvml.status[3] = 17
    path = read_nvml(nvml).pairs[0]
    assert path.status[Capability.ATOMICS] is PeerStatus.UNKNOWN


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


@pytest.fixture
def fake_sys(tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    devices = root / "devices" / "pci0000:15"
    port = devices / "0000:15:01.0"
    card = port / "0000:16:00.0"
    write(port, vendor="0x8086", device="0x352a", numa_node="1", max_link_speed="32.0 GT/s PCIe")
    write(port, **{"class": "0x060400"})
    write(card, vendor="0x10de", device="0x2330", numa_node="1", current_link_width="8")
    write(card, max_link_width="16", current_link_speed="2.5 GT/s PCIe")
    write(card, **{"class": "0x030200", "max_link_speed": "32.0 GT/s PCIe"})
    write(root / "kernel/iommu_groups/7", type="DMA-FQ")
    (card / "iommu_group").symlink_to(root / "kernel/iommu_groups/7")
    (card / "driver").symlink_to("../../../bus/pci/drivers/vfio-pci")
    bus = root / "bus/pci/devices"
    bus.mkdir(parents=True)
    for device in (port, card):
        (bus / device.name).symlink_to(device)
    nodes = root / "devices/system/node"
    write(nodes / "node0", cpulist="0-15", meminfo="Node 0 MemTotal:       1024 kB")
    write(nodes / "node1", cpulist="", meminfo="Node 1 MemTotal:       2048 kB")
    return root


def test_sysfs_gives_tree_links_groups_and_nodes(fake_sys: Path) -> None:
    machine = probe.read_sysfs(fake_sys)
    (gpu,) = machine.gpus
    assert (gpu.bus_id, gpu.parent, gpu.numa_node) == ("0000:16:00.0", "0000:15:01.0", 1)
    assert gpu.pcie == PcieLink(gt_per_s=2.5, width=8, max_gt_per_s=32.0, max_width=16)
    assert gpu.facts["iommu_group"] == "7"
    assert gpu.facts["iommu_group_type"] == "DMA-FQ"
    assert gpu.facts["driver"] == "vfio-pci"
    parents = {device.key: device.parent for device in machine.devices}
    assert parents["0000:15:01.0"] == "pci0000:15"
    port = next(device for device in machine.devices if device.key == "0000:15:01.0")
    assert port.kind is DeviceKind.ROOT_PORT
    assert [(n.index, n.cpus, n.memory_bytes) for n in machine.numa_nodes] == [
        (0, "0-15", 1024 * 1024),
        (1, None, 2048 * 1024),
    ]
    assert machine.host == {"iommu": "1 groups (DMA-FQ)"}


def test_a_host_without_pci_says_so(tmp_path: Path) -> None:
    machine = probe.read_sysfs(tmp_path)
    assert (machine.gpus, machine.devices, machine.numa_nodes) == ((), (), ())
    assert "no PCI tree is known" in machine.notes[0]


def test_host_facts_come_from_files(tmp_path: Path) -> None:
    write(tmp_path / "proc/sys/kernel", osrelease="6.8.0-generic")
    write(tmp_path / "proc", cmdline="root=UUID=secret amd_iommu=on iommu=pt quiet")
    write(tmp_path / "proc", cpuinfo="processor : 0\nflags : fpu hypervisor sse")
    write(tmp_path / "sys/class/dmi/id", product_name="Standard PC (Q35 + ICH9, 2009)")
    write(tmp_path / "proc/1", cgroup="0::/kubepods/pod1")
    assert probe.read_host(tmp_path) == {
        "kernel": "6.8.0-generic",
        "product": "Standard PC (Q35 + ICH9, 2009)",
        "virtualisation": "hypervisor",
        "container": "kubepods",
        "iommu_arguments": "amd_iommu=on iommu=pt",
    }


def test_wsl_is_told_by_its_kernel(tmp_path: Path) -> None:
    write(tmp_path / "proc/sys/kernel", osrelease="5.15.90.1-microsoft-standard-WSL2")
    assert probe.read_host(tmp_path)["virtualisation"] == "WSL2"


def test_a_host_without_the_library_has_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_import = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "pynvml":
            raise ModuleNotFoundError(name)
        return whole_import(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    machine = probe.probe_machine()
    assert machine.notes[0] == ("nvidia-ml-py is not installed: NVIDIA's driver cannot be asked.")
    assert machine.sources == ("/sys",)


def test_a_host_without_the_driver_has_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def fail() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    fake = SimpleNamespace(nvmlInit=fail, NVMLError=NVMLError)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    machine = probe.probe_machine()
    assert machine.notes[0] == (
        "No NVIDIA driver answers (nvmlInit: NVML Shared Library Not Found): no GPU was asked."
    )


def test_a_function_that_the_library_lacks_is_refused() -> None:
    library = probe._Pynvml(SimpleNamespace())
    with pytest.raises(NvmlRefused, match="not in this nvidia-ml-py"):
        library.ask("nvmlDeviceGetTomorrow")
