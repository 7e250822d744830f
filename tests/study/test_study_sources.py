"""Folders of a machine: what machine.toml may say, and names that are taken."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from linkbound.cli.main import run
from linkbound.errors import InputError, UsageError
from linkbound.study.sources import read_sources

SHIPPED = Path(sys.modules["linkbound"].__file__ or "").parent / "recorded"


def folder(tmp_path: Path, text: str) -> Path:
    made = tmp_path / "rig"
    made.mkdir()
    for name in ("topo-m.txt", "p2p-test.txt"):
        shutil.copy(SHIPPED / "5060ti-pair" / name, made / name)
    (made / "machine.toml").write_text(text)
    return made


@pytest.mark.parametrize("name", ["h200-pair", "5060ti-pair", "this-host"])
def test_a_folder_may_not_have_the_name_of_another_machine(tmp_path: Path, name: str) -> None:
    """Its runs and the shipped ones met under one name, and calibrated twice."""
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=f"A folder may not be called '{name}'"):
        read_sources(str(tmp_path / name))


@pytest.mark.parametrize("other", ["nowhere", "rig", "5060ti-pair"])
def test_constants_come_from_a_machine_on_which_an_engine_ran(tmp_path: Path, other: str) -> None:
    """5060ti-pair has constants that are carried: what rests on them named runs on an RTX 5070."""
    made = folder(tmp_path, f'engine_from = "{other}"')
    with pytest.raises(InputError) as caught:
        read_sources(str(made))
    assert f"rig/machine.toml cannot be used: engine_from is '{other}'." in str(caught.value)
    assert caught.value.hint == "Machines whose engine runs are shipped: h200-pair."


def test_a_memory_that_is_no_size_names_the_file_and_the_gpu(tmp_path: Path) -> None:
    made = folder(tmp_path, '[memory]\n"NVIDIA GeForce RTX 5060 Ti" = "lots"')
    with pytest.raises(InputError, match=r"rig/machine\.toml cannot be used: the memory of NVIDIA"):
        read_sources(str(made))


def test_where_no_file_prints_the_memory_machine_toml_may_state_it(
    tmp_path: Path, capsys: Any
) -> None:
    made = folder(tmp_path, 'note = "a rig"')
    words = ["predict", "qwen3-32b", "--override", "num_hidden_layers=8", "--machine", str(made)]
    assert run(words) == 2
    said = capsys.readouterr().err
    assert '[memory], "NVIDIA GeForce RTX 5060 Ti" = "24GiB"' in said
    (made / "machine.toml").write_text('[memory]\n"NVIDIA GeForce RTX 5060 Ti" = "24GiB"')
    assert run(words) == 0


def test_the_machine_toml_of_the_documentation_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "topology.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    found = read_sources(str(folder(tmp_path, text)))
    assert found.memory_bytes == {"NVIDIA GeForce RTX 5060 Ti": 16 * 2**30}
    assert (found.note, found.engine_from) == ("two cards of mine", "h200-pair")
    assert [(one.file, one.calibrate) for one in found.runs] == [("runs.jsonl", ("llama8b_one",))]
