"""`linkbound topo`: files in, tree and matrix, JSON or picture out, one error for a bad file."""

import io
import json
from pathlib import Path

import pytest

from linkbound.cli.main import run
from linkbound.topology import probe
from linkbound.topology.types import Machine

TESTS = Path(__file__).parents[1]
H200 = TESTS / "machines" / "h200-pair"
(CUBE,) = TESTS.glob("cases/036-*/topo-m.txt")


def test_matrix_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topo", str(H200 / "topo-m.raw.txt")]) == 0
    out, err = capsys.readouterr()
    assert "GPU0  X     NV18  0-31          0\n" in out
    assert err == ""


def test_only_a_recorded_machine_is_said_to_be_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["topo", str(CUBE)]) == 0
    assert capsys.readouterr().out.startswith("Machine: ")
    assert run(["topo", "--machine", "h200-pair"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Not this host: the recorded machine h200-pair\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CUBE.read_bytes())))
    assert run(["topo", "-"]) == 0
    assert "From: stdin\n" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["topo-m.txt", "smi-q.txt", "nccl-topo.xml"]
    assert run(["topo", "--json", *(str(H200 / name) for name in files)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["version"]) == ("linkbound.topo", 1)
    assert document["sources"] == files
    assert [gpu["model"] for gpu in document["gpus"]] == ["NVIDIA H200"] * 2
    assert [(pair["src"], pair["dst"], pair["label"]) for pair in document["pairs"]] == [
        ("GPU0", "GPU1", "NV18"),
        ("GPU1", "GPU0", "NV18"),
    ]
    assert document["numa_nodes"] == [{"index": 0, "cpus": "0-31", "memory_bytes": None}]
    assert document["contradictions"][0]["what"] == "NUMA node of GPU0"


def test_json_of_an_unknown_label_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = TESTS.glob("cases/051-*/topo-m.txt")
    assert run(["topo", "--json", str(file)]) == 0
    pairs = json.loads(capsys.readouterr().out)["pairs"]
    assert len(pairs) == 56
    unknown = [pair for pair in pairs if pair["label"] is None]
    assert len(unknown) == 28
    assert {pair["reason"]["code"] for pair in unknown} == {"not_stated"}
    assert all(pair["reason"] is None for pair in pairs if pair["label"] is not None)


def test_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "cube.svg"
    assert run(["topo", str(CUBE), "-o", str(picture)]) == 0
    assert capsys.readouterr().err == f"Wrote {picture}\n"
    assert picture.read_text().startswith("<svg ")
    assert run(["topo", str(CUBE), "-o", str(picture)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "without --force" in err
    assert run(["topo", str(CUBE), "-o", str(picture), "--force"]) == 0


def test_folder_names_what_it_does_not_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "topo-m.txt").write_bytes((H200 / "topo-m.txt").read_bytes())
    (tmp_path / "notes.md").write_text("nothing here")
    (tmp_path / "sub").mkdir()
    assert run(["topo", "--machine", str(tmp_path)]) == 0
    assert "Not used, they show no topology: notes.md." in capsys.readouterr().out
    (tmp_path / "topo-m.txt").unlink()
    assert run(["topo", str(tmp_path)]) == 2
    assert (
        "shows no GPU. Nothing can be said of GPUs that are not there." in capsys.readouterr().err
    )


@pytest.mark.parametrize("data", [b"", b"\x00\x01", b"hello", b"<system><cpu>", b"\xff\xfeabc"])
def test_bad_file(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.txt"
    file.write_bytes(data)
    assert run(["topo", str(H200 / "topo-m.txt"), str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("linkbound: bad.txt: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (["nowhere.txt"], "nowhere.txt: cannot be read (No such file or directory)."),
        (["--machine", "nowhere"], "There is no recorded machine 'nowhere'."),
        (["--force", str(CUBE)], "--force without -o."),
        (["-o", "a.png", str(CUBE)], "a.png: not a .svg file."),
        (["--machine", str(CUBE), str(CUBE)], "Both files and --machine"),
        (["-o", "no/such/folder/a.svg", str(CUBE)], "no/such/folder/a.svg cannot be written"),
    ],
)
def test_usage(arguments: list[str], seen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topo", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"linkbound: {seen}")


def test_recorded_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topo", "--json", "--machine", "5060ti-pair"]) == 0
    document = json.loads(capsys.readouterr().out)
    status = {(pair["src"], pair["dst"]): pair["status"] for pair in document["pairs"]}
    assert status["GPU1", "GPU2"] == {"read": "OK", "access": "OK"}
    assert status["GPU0", "GPU1"] == {"read": "OK", "access": "denied"}
    assert document["gpus"][0]["model"] == "NVIDIA GeForce RTX 5070"


def test_host_without_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Machine(sources=("NVML",), notes=("No NVIDIA driver answers.",))
    monkeypatch.setattr(probe, "probe_machine", lambda: bare)
    assert run(["topo"]) == 3
    out, err = capsys.readouterr()
    assert "No NVIDIA driver answers." in out
    assert err.startswith("linkbound: No GPU was found on this host.")
