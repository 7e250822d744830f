"""Several sources of one machine: gaps are filled, disagreements are kept with both claims."""

from pathlib import Path

import pytest
from msgspec import structs

from linkbound.topology.fingerprint import fingerprint
from linkbound.topology.merge import merge
from linkbound.topology.sniff import read_machine
from linkbound.topology.types import (
    Capability,
    Device,
    DeviceKind,
    Gpu,
    Machine,
    NicPath,
    NumaNode,
    NvLink,
    Pair,
    PairPath,
    PathKind,
    PcieLink,
    PeerStatus,
)

TESTS = Path(__file__).parents[1]
H200 = TESTS / "machines" / "h200-pair"
(CASE_013,) = (TESTS / "cases").glob("013-*")


def read(folder: Path, *names: str) -> Machine:
    return merge([read_machine((folder / name).read_bytes(), name) for name in names])


def claims(machine: Machine) -> dict[str, list[tuple[str, str]]]:
    return {
        one.what: [(claim.source, claim.value) for claim in one.claims]
        for one in machine.contradictions
    }


def host(source: str, *gpus: Gpu, **fields: object) -> Machine:
    return Machine(sources=(source,), gpus=gpus, **fields)  # type: ignore[arg-type]


def test_recorded_pair_from_seven_files() -> None:
    names = ("nccl-topo.xml", "smi-q.txt", "nvlink-status.txt", "sysfs.json", "topo-m.txt")
    machine = read(H200, *names, "topo-p2p-r.txt", "topo-p2p-w.txt")
    assert [gpu.label for gpu in machine.gpus] == ["GPU0", "GPU1"]
    gpu = machine.gpus[0]
    assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000000001" == gpu.key
    assert gpu.bus_id == "0000:00:06.0"
    assert gpu.memory_bytes == 143_771 * 2**20
    assert gpu.compute_capability == "9.0"
    assert gpu.cpu_affinity == "0-31"
    assert gpu.pcie == PcieLink(gt_per_s=32.0, width=16, max_gt_per_s=32.0, max_width=16)
    assert len(gpu.nvlinks) == 18
    assert {link.bytes_per_s for link in gpu.nvlinks} == {26.562e9}
    path = machine.path("GPU0", "GPU1")
    assert path.label == "NV18"
    assert not path.derived
    assert path.status == {Capability.READ: PeerStatus.OK, Capability.WRITE: PeerStatus.OK}
    assert claims(machine) == {
        f"NUMA node of GPU{at}": [
            ("topo-m.txt", "0"),
            ("nccl-topo.xml", "-1 (unknown)"),
            ("sysfs.json", "-1 (unknown)"),
        ]
        for at in range(2)
    }


def test_order_of_the_sources_changes_no_fact() -> None:
    names = ["nccl-topo.xml", "smi-q.txt", "topo-m.txt", "topo-p2p-r.txt"]
    one, other = read(H200, *names), read(H200, *reversed(names))
    assert fingerprint(one) == fingerprint(other)
    assert [path.label for path in one.pairs] == [path.label for path in other.pairs]
    assert len(one.contradictions) == len(other.contradictions)


def test_driver_grants_what_the_runtime_refuses() -> None:
    machine = read(CASE_013, "topo-m.txt", "topo-p2p.txt", "p2p-test.txt")
    assert machine.gpu("GPU1").bus_id == "0000:09:00.0"
    assert machine.gpu("GPU1").numa_node == 0
    assert sorted(claims(machine)) == [
        "peer access GPU0 -> GPU1",
        "peer access GPU0 -> GPU2",
        "peer access GPU1 -> GPU0",
        "peer access GPU2 -> GPU0",
    ]
    assert claims(machine)["peer access GPU0 -> GPU1"] == [
        ("topo-p2p.txt", "driver says read OK"),
        ("p2p-test.txt", "CUDA runtime says access denied"),
    ]


def test_domains_are_spelled_in_many_ways() -> None:
    spelled = ["00000000:01:00.0", "0000:01:00.0", "01:00.0", "1000"]
    machine = merge([host(bus, Gpu(key=bus, label="GPU0", bus_id=bus)) for bus in spelled])
    assert [gpu.bus_id for gpu in machine.gpus] == ["0000:01:00.0"]
    assert machine.contradictions == ()


def test_uuid_beats_label() -> None:
    a = host("a", Gpu(key="u1", label="GPU0", uuid="u1"), Gpu(key="u2", label="GPU1", uuid="u2"))
    b = host(
        "b",
        Gpu(key="u2", label="GPU0", uuid="u2", numa_node=1),
        Gpu(key="u1", label="GPU1", uuid="u1", numa_node=0),
    )
    machine = merge([a, b])
    assert [(gpu.label, gpu.uuid, gpu.numa_node) for gpu in machine.gpus] == [
        ("GPU0", "u1", 0),
        ("GPU1", "u2", 1),
    ]
    assert claims(machine) == {
        "number of u1": [("a", "GPU0"), ("b", "GPU1")],
        "number of u2": [("a", "GPU1"), ("b", "GPU0")],
    }


def test_visible_devices_are_not_guessed() -> None:
    everything = host(
        "all", *(Gpu(key=f"k{at}", label=f"GPU{at}", bus_id=f"0{at + 1}:00.0") for at in range(3))
    )
    visible = host(
        "visible",
        Gpu(key="x", label="GPU0", bus_id="02:00.0"),
        Gpu(key="y", label="GPU1", bus_id="09:00.0"),
    )
    machine = merge([everything, visible])
    assert [gpu.label for gpu in machine.gpus] == ["GPU0", "GPU1", "GPU2", "0000:09:00.0"]
    assert claims(machine) == {
        "number of GPUs": [("all", "3"), ("visible", "2")],
        "number of 0000:02:00.0": [("all", "GPU1"), ("visible", "GPU0")],
    }


def test_guest_and_host_ids_meet_by_label_and_are_shown() -> None:
    machine = merge(
        [
            host("guest", Gpu(key="a", label="GPU0", bus_id="00:06.0")),
            host("host", Gpu(key="b", label="GPU0", bus_id="17:00.0")),
        ]
    )
    assert len(machine.gpus) == 1
    assert claims(machine) == {
        "bus id of GPU0": [("guest", "0000:00:06.0"), ("host", "0000:17:00.0")]
    }


def test_other_count_is_a_contradiction() -> None:
    names = [Gpu(key=f"GPU{at}", label=f"GPU{at}") for at in range(4)]
    machine = merge([host("two", *names[:2]), host("none"), host("four", *names)])
    assert len(machine.gpus) == 4
    assert claims(machine) == {"number of GPUs": [("two", "2"), ("four", "4")]}


def path(kind: PathKind, count: int | None = None, *, derived: bool = False) -> PairPath:
    pair = Pair(src="GPU0", dst="GPU1")
    return PairPath(pair=pair, kind=kind, nvlink_count=count, derived=derived)


GPUS = (Gpu(key="GPU0", label="GPU0"), Gpu(key="GPU1", label="GPU1"))
LINKED = tuple(structs.replace(gpu, nvlinks=(NvLink(index=0),)) for gpu in GPUS)


@pytest.mark.parametrize(
    ("first", "second", "label", "disagree"),
    [
        (path(PathKind.PHB, derived=True), path(PathKind.NODE), "NODE", False),
        (path(PathKind.PHB), path(PathKind.NODE), "PHB", True),
        (path(PathKind.SYS, derived=True), path(PathKind.NVLINK, 4), "NV4", False),
        (path(PathKind.NVLINK, 4), path(PathKind.SYS, derived=True), "NV4", False),
        (path(PathKind.SYS), path(PathKind.NVLINK, 4), "SYS", True),
        (path(PathKind.NVLINK, 4), path(PathKind.NVLINK, 2), "NV4", True),
        (path(PathKind.NVLINK), path(PathKind.NVLINK, 2), "NV2", False),
        (path(PathKind.PIX, derived=True), path(PathKind.SYS), "PIX", True),
    ],
)
def test_labels(first: PairPath, second: PairPath, label: str, disagree: bool) -> None:
    machine = merge([host("a", *GPUS, pairs=(first,)), host("b", *GPUS, pairs=(second,))])
    assert machine.path("GPU0", "GPU1").label == label
    assert machine.path("GPU1", "GPU0").label is None
    assert bool(machine.contradictions) is disagree


def test_tree_that_knows_nvlinks_and_shows_none_disagrees() -> None:
    tree = host("tree", *LINKED, pairs=(path(PathKind.SYS, derived=True),))
    machine = merge([tree, host("matrix", *GPUS, pairs=(path(PathKind.NVLINK, 4),))])
    assert claims(machine) == {"link GPU0 -> GPU1": [("tree", "SYS"), ("matrix", "NV4")]}


def test_spellings_that_agree() -> None:
    a = Gpu(
        key="GPU0",
        label="GPU0",
        model="NVIDIA GeForce RTX 3090",
        vendor="NVIDIA",
        device_id="10de:2204",
        cpu_affinity="0-3,8",
        memory_bytes=25_757_220_864,
        facts={"power": "350 W"},
    )
    b = structs.replace(
        a,
        model="GA102 [GeForce RTX 3090]",
        vendor="NVIDIA Corporation",
        device_id="0x2204",
        cpu_affinity="8,0-3",
        memory_bytes=25_769_803_776,
        facts={"power": "300 W"},
    )
    machine = merge([host("a", a), host("b", b)])
    assert machine.contradictions == ()
    assert machine.gpus[0].model == "NVIDIA GeForce RTX 3090"
    assert machine.gpus[0].facts == {"power": "350 W", "power (b)": "300 W"}


def test_link_speed_now_may_differ_and_its_maximum_may_not() -> None:
    idle = PcieLink(gt_per_s=2.5, width=16, max_gt_per_s=16.0, max_width=16)
    busy = PcieLink(gt_per_s=16.0, width=16, max_gt_per_s=16.0, max_width=8)
    gpus = [Gpu(key="GPU0", label="GPU0", pcie=link) for link in (idle, busy)]
    machine = merge([host("idle", gpus[0]), host("busy", gpus[1])])
    assert machine.gpus[0].pcie == idle
    assert claims(machine) == {"PCIe maximum width of GPU0": [("idle", "16"), ("busy", "8")]}


def test_host_and_numa_facts() -> None:
    a = host("a", host={"driver": "580"}, numa_nodes=(NumaNode(index=0, cpus="0-3"),))
    b = host(
        "b",
        host={"driver": "570", "kernel": "6.1"},
        numa_nodes=(NumaNode(index=0, cpus="3,0-2", memory_bytes=7), NumaNode(index=1)),
    )
    machine = merge([a, b])
    assert machine.host == {"driver": "580", "kernel": "6.1"}
    assert machine.numa_nodes == (
        NumaNode(index=0, cpus="0-3", memory_bytes=7),
        NumaNode(index=1),
    )
    assert claims(machine) == {"host driver": [("a", "580"), ("b", "570")]}


def test_nics_meet_by_name_and_ports_stay_apart() -> None:
    def nic(key: str, **fields: object) -> Device:
        return Device(key=key, kind=DeviceKind.NIC, label=key, **fields)  # type: ignore[arg-type]

    matrix = host(
        "matrix",
        GPUS[0],
        devices=(
            nic("NIC0", facts={"name": "mlx5_0"}),
            nic("NIC1", facts={"name": "mlx5_1"}),
        ),
        nic_paths=(NicPath(gpu="GPU0", nic="NIC0", kind=PathKind.NODE),),
    )
    tree = host(
        "tree",
        GPUS[0],
        devices=(
            nic("p0", bus_id="0c:00.0", facts={"name": "mlx5_0"}),
            nic("p1", bus_id="0c:00.0", facts={"name": "mlx5_1"}),
        ),
        nic_paths=(NicPath(gpu="GPU0", nic="p0", kind=PathKind.PHB, derived=True),),
    )
    machine = merge([tree, matrix])
    assert [(device.key, device.facts["name"]) for device in machine.devices] == [
        ("p0", "mlx5_0"),
        ("p1", "mlx5_1"),
    ]
    assert machine.nic_paths == (NicPath(gpu="GPU0", nic="p0", kind=PathKind.NODE),)
    assert machine.contradictions == ()


def test_one_source_is_itself_and_none_is_our_mistake() -> None:
    machine = host("a", *GPUS)
    assert merge([machine]) is machine
    with pytest.raises(ValueError, match="at least one"):
        merge([])


def test_fingerprint_holds_only_what_is_known() -> None:
    machine = read(H200, "topo-m.txt")
    assert fingerprint(machine).identity == {"links": "2x NV18"}
    assert fingerprint(machine).condition == {}
    full = fingerprint(read(H200, "smi-q.txt", "nvlink-status.txt", "topo-m.txt"))
    assert full.identity == {
        "gpus": "2x NVIDIA H200",
        "gpu_memory": "2x 140 GiB",
        "links": "2x NV18",
        "nvlinks": "2x 18 links",
    }
    assert full.condition["driver"] == "580.159.04"
    assert full.condition["slots"] == "2x 32 GT/s x16"
    assert len(full.id) == 16


def test_fingerprint_ignores_numbering_and_driver() -> None:
    a = host("a", Gpu(key="a", label="GPU0", model="A"), Gpu(key="b", label="GPU1", model="B"))
    b = host(
        "b",
        Gpu(key="b", label="GPU0", model="B"),
        Gpu(key="a", label="GPU1", model="A"),
        host={"driver": "1"},
    )
    assert fingerprint(a).id == fingerprint(b).id
    assert fingerprint(a).condition != fingerprint(b).condition
