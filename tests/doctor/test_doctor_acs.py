"""ACS control read from a tree of files like /sys."""

from pathlib import Path

import pytest

from linkbound.doctor import Environment, diagnose_live
from linkbound.doctor.probe_acs import AcsReading, probe_acs
from linkbound.topology.types import Machine

GPUS = ("0000:03:00.0", "0000:04:00.0")


def space(control: int | None) -> bytes:
    """4 KiB with an AER capability and, where a control word is given, ACS after it."""
    content = bytearray(4096)
    content[0x100:0x104] = (
        0x0001 | 1 << 16 | (0x148 << 20 if control is not None else 0)
    ).to_bytes(4, "little")
    if control is not None:
        content[0x148:0x150] = (
            (0x000D | 1 << 16).to_bytes(4, "little") + b"\x5f\0" + (control.to_bytes(2, "little"))
        )
    return bytes(content)


def host(tmp_path: Path, spaces: dict[str, bytes]) -> Path:
    """Two GPUs, each under a port of one switch, whose upstream port hangs at a root port."""
    root_port, upstream = "0000:00:01.0", "0000:01:00.0"
    ports = ("0000:02:00.0", "0000:02:01.0")
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    top = tmp_path / "devices/pci0000:00" / root_port / upstream
    for port, gpu in zip(ports, GPUS, strict=True):
        (top / port / gpu).mkdir(parents=True)
        (links / gpu).symlink_to(top / port / gpu)
    for name, content in spaces.items():
        next(path for path in tmp_path.rglob(name) if not path.is_symlink()).joinpath(
            "config"
        ).write_bytes(content)
    return tmp_path


def codes(reading: AcsReading) -> set[tuple[str, str]]:
    quiet = Environment(variables={}, shm_bytes=1 << 36)
    diagnosis = diagnose_live(Machine(sources=("NVML",)), quiet, acs=reading)
    return {(one.code, one.level.value) for one in diagnosis.findings}


# SrcValid+ alone (0x01) redirects nothing; ReqRedir is 0x04, CmpltRedir 0x08.
@pytest.mark.parametrize(
    ("control", "code"),
    [
        (0x00, ("acs-clear", "healthy")),
        (0x01, ("acs-clear", "healthy")),
        (0x04, ("acs-redirect", "seen")),
        (0x08, ("acs-redirect", "seen")),
        (0x1D, ("acs-redirect", "seen")),
    ],
)
def test_redirects_of_a_switch_are_seen(
    tmp_path: Path, control: int, code: tuple[str, str]
) -> None:
    spaces = {
        "0000:00:01.0": space(None),
        "0000:01:00.0": space(None),
        "0000:02:00.0": space(0x00),
        "0000:02:01.0": space(control),
    }
    reading = probe_acs(GPUS, host(tmp_path, spaces))
    assert [port.bus_id for port in reading.ports] == ["0000:02:00.0", "0000:02:01.0"]
    assert reading.denied == ()
    assert codes(reading) == {code}


def test_without_root_the_closed_ports_are_named(tmp_path: Path) -> None:
    spaces = {"0000:00:01.0": space(0x04)[:64], "0000:02:00.0": space(0x04)[:64]}
    reading = probe_acs(GPUS, host(tmp_path, spaces))
    assert reading.ports == ()
    assert set(reading.denied) == {"0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:02:01.0"}
    remarks = diagnose_live(
        Machine(sources=("NVML",)), Environment(variables={}, shm_bytes=1 << 36), acs=reading
    ).remarks
    assert any("0000:00:01.0" in remark and "root" in remark for remark in remarks)


def test_a_loop_of_capabilities_ends(tmp_path: Path) -> None:
    loop = bytearray(space(None))
    loop[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    reading = probe_acs(GPUS[:1], host(tmp_path, {"0000:02:00.0": bytes(loop)}))
    assert reading.ports == ()
    assert "0000:02:00.0" not in reading.denied


def test_a_gpu_that_sysfs_does_not_show(tmp_path: Path) -> None:
    assert probe_acs(["0000:09:00.0"], tmp_path) == AcsReading(ports=(), denied=())
