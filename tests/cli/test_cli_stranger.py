"""What a stranger met in the first hours, each with the right answer."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Studied
from linkbound.cli.main import run
from linkbound.cli.options import stem


def test_the_readme_shows_the_answers_of_today(studied: Studied, capsys: Any) -> None:
    assert run(["verdict", "-C", str(studied.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    readme = (Path(__file__).parents[2] / "README.md").read_text().splitlines()
    loads = [at for at, line in enumerate(readme) if line.endswith(" at once")]
    assert len(loads) == 3
    for at in loads:
        (there,) = [one for one, line in enumerate(lines) if line.endswith(f": {readme[at]}")]
        assert lines[there + 1] == readme[at + 1]


def test_unlike_machines_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The desktop's study also holds the pair whose engine runs stand in."""
    monkeypatch.chdir(tmp_path)
    for machine in ("h200-pair", "5060ti-pair"):
        words = ["study", "llama-3.1-8b", "-q", "--concurrency", "1", "--machine", machine]
        assert run([*words, "-C", f"{machine}.linkbound"]) == 0
    capsys.readouterr()
    assert run(["compare", "h200-pair.linkbound", "5060ti-pair.linkbound"]) == 1
    assert "gpus" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["check", "none.linkbound"],
        ["verdict", "-C", "none.linkbound"],
        ["report", "-C", "none.linkbound"],
        ["compare", "none.linkbound", "none.linkbound"],
        ["show", "-C", "none.linkbound"],
    ],
)
def test_a_study_that_is_not_there_is_an_error_of_usage(words: list[str], capsys: Any) -> None:
    assert run(words) == 2
    assert "There is no study none.linkbound." in capsys.readouterr().err


def test_file_names_keep_the_dots_of_a_model() -> None:
    assert stem("llama-3.1-8b") == "llama-3.1-8b"
    assert stem("models/Qwen 3.5") == "Qwen-3.5"


def test_prose_proves_nothing(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "case.md").write_text("It was cured by NCCL_P2P_DISABLE=1 and iommu=pt.\n")
    (tmp_path / "topo-m.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n")
    assert run(["doctor", str(tmp_path / "case.md"), str(tmp_path / "topo-m.txt")]) == 0
    out = capsys.readouterr().out
    assert "p2p-disabled-by-env" not in out
    assert "prose about a machine proves nothing" in out


def test_a_full_disk_is_one_message() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "linkbound.cli", "topo", "--machine", "h200-pair"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr


def test_rows_that_cannot_be_are_listed_and_the_rest_is_scored(tmp_path: Path, capsys: Any) -> None:
    recorded = Path(sys.modules["linkbound"].__file__ or "").parent / "recorded" / "h200-pair"
    runs = (recorded / "vllm-0.24.0" / "runs.jsonl").read_text().splitlines()
    config = tmp_path / "configs" / "llama8b" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_bytes((recorded / "vllm-0.24.0/configs/llama8b/config.json").read_bytes())
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join([runs[0], runs[5].replace('"tp": 2', '"tp": 4')]))
    assert run(["predict", "--score", str(path), "--machine", "h200-pair"]) == 0
    out = capsys.readouterr().out
    assert "line 2, tp4: 4 GPUs are asked for, this machine has 2 to use." in out
    assert "llama8b_tp1" in out


def test_one_reason_that_is_left_out_is_no_plural(studied: Studied, capsys: Any) -> None:
    assert run(["verdict", "-C", str(studied.path)]) == 0
    out = capsys.readouterr().out
    assert "- and one more reason: the page and --json have it." in out
    assert "1 more reasons" not in out
