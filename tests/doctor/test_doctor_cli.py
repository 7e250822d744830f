"""`linkbound doctor`: text, JSON, exit codes, and this host behind fakes."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from linkbound.cli import input_files
from linkbound.cli.doctor import command, named
from linkbound.doctor import Environment, vocabulary
from linkbound.doctor import probe as doctor_probe
from linkbound.errors import InputError, NothingToMeasure, UsageError
from linkbound.topology import probe as topology_probe
from linkbound.topology.types import Gpu, Machine

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
(TOPO,) = CASES.glob("051-*/topo-m.txt")
(LOG,) = CASES.glob("051-*/nccl.log")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def test_text_by_severity() -> None:
    result = run(str(TOPO), str(LOG), "--symptom", "slow")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "Warnings"
    assert lines[1] == "  cross-socket-path"
    assert "  p2p-slower-than-staging (suspected)" in lines
    assert lines.index("For information") < lines.index("  transport-direct")
    assert lines[-2:] == ["Read: topo-m.txt (topology)", "Read: nccl.log (NCCL log)"]
    assert max(map(len, lines)) <= 100


def test_json() -> None:
    result = run(str(TOPO), "--json")
    document = json.loads(result.output)
    assert (document["schema"], document["version"]) == ("linkbound.doctor", 1)
    assert {finding["code"] for finding in document["findings"]} == {
        "cross-socket-path",
        "incomplete-output",
    }
    keys = {"code", "level", "severity", "seen", "why", "remedy", "record_ids"}
    assert all(finding.keys() == keys for finding in document["findings"])
    assert document["read"] == [{"name": "topo-m.txt", "kinds": ["topology"]}]
    assert document["symptom"] is None


def test_unreadable_inputs(tmp_path: Path) -> None:
    bad = tmp_path / "bad.bin"
    bad.write_bytes(b"\0\1")
    result = run(str(bad))
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 2
    assert str(result.exception).startswith("bad.bin: the file is binary. None of the inputs")
    both = run(str(bad), str(TOPO))
    assert both.exit_code == 0
    assert "Not read: bad.bin: the file is binary." in both.output
    missing = run(str(tmp_path / "none.txt"))
    assert isinstance(missing.exception, InputError)
    assert "none.txt: cannot be read (No such file or directory)" in str(missing.exception)


def test_a_folder_inside_a_folder_is_said_to_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "topo-m.txt").write_bytes(TOPO.read_bytes())
    left_out = f"Not read: {tmp_path}/: folders in it are left out (logs); name them too."
    assert left_out in run(str(tmp_path)).output
    empty = run(str(tmp_path / "logs"))
    assert "no file is in it" in str(empty.exception)


def test_stdin_is_an_input(tmp_path: Path) -> None:
    words = ["-", "-C", str(tmp_path / "a.linkbound")]
    piped = CliRunner().invoke(command, ["-"], input=TOPO.read_bytes())
    assert "Read: stdin (topology)" in piped.output
    kept = CliRunner().invoke(command, words, input=TOPO.read_bytes())
    assert isinstance(kept.exception, UsageError)


def test_pipes_are_read_and_one_without_a_writer_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "PIPE_WAIT_S", 0.05)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    silent = run(str(fifo))
    assert isinstance(silent.exception, InputError)
    assert "nothing was written into this pipe" in str(silent.exception)
    reader, writer = os.pipe()
    os.write(writer, TOPO.read_bytes())
    os.close(writer)
    assert f"Read: /dev/fd/{reader} (topology)" in run(f"/dev/fd/{reader}").output
    os.close(reader)


def test_nothing_found_is_no_all_clear(tmp_path: Path) -> None:
    file = tmp_path / "topo.txt"
    file.write_text("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n", encoding="utf-8")
    assert run(str(file)).output.startswith("Nothing was found in these inputs; that is no proof")


def test_a_folder_and_equal_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("x", encoding="utf-8")
    files = named((tmp_path / "one", tmp_path / "two", TOPO))
    assert [name for name, _ in files] == [
        str(tmp_path / "one/a.txt"),
        str(tmp_path / "two/a.txt"),
        "topo-m.txt",
    ]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, Machine]:
    """This host is what the test puts into the dictionary."""
    fake = {"machine": Machine(sources=("NVML",), notes=("No NVIDIA driver answers.",))}
    environment = Environment(variables={}, shm_bytes=64 * 1024**2)
    monkeypatch.setattr(topology_probe, "probe_machine", lambda: fake["machine"])
    monkeypatch.setattr(doctor_probe, "probe_environment", lambda: environment)
    return fake


@pytest.mark.usefixtures("host")
def test_a_host_without_gpus_says_so_and_exits_3() -> None:
    result = run()
    assert isinstance(result.exception, NothingToMeasure)
    assert result.exception.exit_code == 3
    assert "shm-too-small" in result.output
    assert "Note: No NVIDIA driver answers." in result.output


def test_a_host_with_gpus(host: dict[str, Machine]) -> None:
    host["machine"] = Machine(
        sources=("NVML",), gpus=(Gpu(key="GPU-1", label="GPU0", vendor="NVIDIA", mig=True),)
    )
    result = run("--json")
    assert result.exit_code == 0
    codes = [finding["code"] for finding in json.loads(result.output)["findings"]]
    assert codes == ["shm-too-small", "mig-no-p2p"]


def test_every_code_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert [code for code in vocabulary() if f"| `{code}` |" not in text] == []
