"""The live machine behind a seam: a fake map and a fake environment."""

from pathlib import Path

import pytest
from msgspec import structs

from linkbound.doctor import Environment, Symptom, diagnose_live
from linkbound.doctor.probe import probe_environment
from linkbound.topology.types import (
    Capability,
    Gpu,
    Machine,
    NvLink,
    Pair,
    PairPath,
    PathKind,
    PcieLink,
    PeerStatus,
)

QUIET = Environment(variables={}, shm_bytes=64 * 1024**3)


def card(index: int, model: str = "NVIDIA L40S") -> Gpu:
    return Gpu(
        key=f"GPU-{index}",
        label=f"GPU{index}",
        bus_id=f"0000:{index + 65:02x}:00.0",
        vendor="NVIDIA",
        model=model,
        memory_bytes=46 * 1024**3,
        bar1_bytes=64 * 1024**3,
        pcie=PcieLink(gt_per_s=16.0, width=16, max_gt_per_s=16.0, max_width=16),
        mig=False,
    )


def pair(src: int, dst: int, status: PeerStatus = PeerStatus.OK) -> PairPath:
    return PairPath(
        pair=Pair(src=f"GPU-{src}", dst=f"GPU-{dst}"),
        kind=PathKind.NODE,
        status={Capability.READ: status, Capability.ATOMICS: PeerStatus.NOT_SUPPORTED},
    )


HEALTHY = Machine(sources=("NVML", "/sys"), gpus=(card(0), card(1)), pairs=(pair(0, 1), pair(1, 0)))


def found(machine: Machine, environment: Environment = QUIET) -> set[tuple[str, str]]:
    diagnosis = diagnose_live(machine, environment)
    return {(one.code, one.level.value) for one in diagnosis.findings}


def with_gpu(**changes: object) -> Machine:
    return structs.replace(HEALTHY, gpus=(structs.replace(card(0), **changes), card(1)))


def test_a_healthy_machine_has_no_finding() -> None:
    assert found(HEALTHY) == set()


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (with_gpu(bar1_bytes=256 * 1024**2), ("bar1-too-small", "seen")),
        (
            with_gpu(pcie=PcieLink(gt_per_s=16.0, width=4, max_gt_per_s=16.0, max_width=16)),
            ("link-width-reduced", "seen"),
        ),
        (
            with_gpu(pcie=PcieLink(gt_per_s=2.5, width=16, max_gt_per_s=16.0, max_width=16)),
            ("link-speed-idle", "healthy"),
        ),
        (with_gpu(mig=True), ("mig-no-p2p", "seen")),
        (with_gpu(model="NVIDIA L4"), ("mixed-gpu-models", "seen")),
        (with_gpu(facts={"iommu_group_type": "DMA-FQ"}), ("iommu-translating", "seen")),
        (
            structs.replace(HEALTHY, pairs=(pair(0, 1), pair(1, 0, PeerStatus.GPU_NOT_SUPPORTED))),
            ("p2p-denied-gns", "seen"),
        ),
        (
            structs.replace(HEALTHY, host={"virtualisation": "WSL2", "kernel": "5.15-microsoft"}),
            ("wsl", "seen"),
        ),
        (
            structs.replace(HEALTHY, host={"virtualisation": "hypervisor"}),
            ("virtual-topology", "seen"),
        ),
        (
            with_gpu(
                model="NVIDIA H200",
                nvlinks=tuple(NvLink(index=n, active=n != 5) for n in range(18)),
            ),
            ("nvlink-down", "seen"),
        ),
    ],
)
def test_what_the_map_shows(machine: Machine, expected: tuple[str, str]) -> None:
    assert expected in found(machine)


def test_one_denied_direction_is_named_alone() -> None:
    denied = structs.replace(
        HEALTHY, pairs=(pair(0, 1), pair(1, 0, PeerStatus.TOPOLOGY_NOT_SUPPORTED))
    )
    (finding,) = diagnose_live(denied, QUIET).findings
    assert finding.seen == "TNS for GPU1->GPU0 (NVML)."


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"variables": {"NCCL_P2P_DISABLE": "1"}}, {("p2p-disabled-by-env", "seen")}),
        ({"variables": {"NCCL_P2P_LEVEL": "LOC"}}, {("p2p-disabled-by-env", "seen")}),
        ({"variables": {"NCCL_P2P_DISABLE": "0"}}, set()),
        ({"shm_bytes": 64 * 1024**2}, {("shm-too-small", "seen")}),
        ({"shm_bytes": None}, set()),
        ({"command_line": "root=/dev/sda1 iommu=pt"}, {("iommu-passthrough", "healthy")}),
        ({"command_line": "root=/dev/sda1 intel_iommu=on"}, {("iommu-translating", "seen")}),
        ({"command_line": "root=/dev/sda1 quiet"}, set()),
    ],
)
def test_what_the_environment_shows(
    environment: dict[str, object], expected: set[tuple[str, str]]
) -> None:
    assert found(HEALTHY, structs.replace(QUIET, **environment)) == expected


def test_a_missing_option_matters_where_an_iommu_is_at_work() -> None:
    machine = structs.replace(HEALTHY, host={"iommu": "48 groups (DMA)"})
    line = structs.replace(QUIET, command_line="root=/dev/sda1 quiet")
    assert ("iommu-pt-missing", "seen") in found(machine, line)


def test_nvlink_carries_the_traffic_past_the_iommu() -> None:
    links = tuple(NvLink(index=n, active=True, remote="nvswitch") for n in range(18))
    gpus = tuple(
        structs.replace(card(n, "NVIDIA H200"), nvlinks=links, facts={"iommu_group_type": "DMA"})
        for n in range(2)
    )
    paths = tuple(
        structs.replace(one, kind=PathKind.NVLINK, nvlink_count=18) for one in HEALTHY.pairs
    )
    machine = structs.replace(HEALTHY, gpus=gpus, pairs=paths)
    findings = {one.code: one for one in diagnose_live(machine, QUIET).findings}
    assert findings["iommu-translating"].severity == "info"
    assert "nvlink-whole" in findings


def test_notes_of_the_map_are_passed_on() -> None:
    machine = structs.replace(HEALTHY, notes=("NVML refused a fact.",))
    diagnosis = diagnose_live(machine, QUIET, Symptom.HANG)
    assert diagnosis.remarks == ("NVML refused a fact.",)
    assert "p2p-hang" in {one.code for one in diagnosis.findings}


def test_probing_the_environment(tmp_path: Path) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text("root=/dev/sda1 iommu=pt\n", encoding="utf-8")
    variables = {"NCCL_DEBUG": "INFO", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0"}
    seen = probe_environment(tmp_path, variables)
    assert seen.variables == {"CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO"}
    assert seen.command_line == "root=/dev/sda1 iommu=pt"
    assert seen.shm_bytes is not None
    assert seen.shm_bytes > 0
    empty = probe_environment(tmp_path / "nothing", {})
    assert (empty.shm_bytes, empty.command_line) == (None, None)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ({"virtualisation": "hypervisor"}, "Virtualisation: hypervisor (/proc/cpuinfo)."),
        ({"virtualisation": "xen"}, "Virtualisation: xen (/sys/hypervisor/type)."),
        ({"gpu_virtualisation": "VGPU"}, "Virtualisation: VGPU (NVML)."),
    ],
)
def test_a_guest_is_named_by_the_source_that_said_it(host: dict[str, str], said: str) -> None:
    findings = diagnose_live(structs.replace(HEALTHY, host=host), QUIET).findings
    assert [one.seen for one in findings if one.code == "virtual-topology"] == [said]
