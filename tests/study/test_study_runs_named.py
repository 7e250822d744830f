"""Several runs files of a machine: which rows of each calibrate, and what a manifest may say."""

import shutil
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.study.scoring import score_own
from linkbound.study.sources import RunsNamed, Sources, read_sources
from linkbound.study.stages import prepare

RECORDED = files("linkbound") / "recorded" / "h200-pair"
FIRST, SECOND = "vllm-0.24.0/runs.jsonl", "vllm-0.24.0/alone/runs.jsonl"


def sources(folder: Path, manifest: str) -> Sources:
    """The recorded pair with another manifest."""
    with as_file(RECORDED) as source:
        shutil.copytree(source, folder / "pair", dirs_exist_ok=True)
    (folder / "pair" / "machine.toml").write_text(manifest)
    return read_sources(str(folder / "pair"))


TWO = f"""
[[runs]]
file = "{FIRST}"
calibrate = ["llama8b_tp1"]

[[runs]]
file = "{SECOND}"
calibrate = ["qwen3-32b_one_GPU", "qwen3-32b-shard-of-tp2", "llama-3.1-70b-shard-of-tp2"]
"""


def test_rows_of_two_files_calibrate_together(tmp_path: Path) -> None:
    found = sources(tmp_path, TWO)
    assert [one.file for one in found.runs] == [FIRST, SECOND]
    with Study.create(tmp_path / "a.linkbound") as study:
        prepare(study, found)
        runs = study.find("serve.run", machine="pair")
        (record,) = study.find("predict.calibration", machine="pair")
        tags = [one.subject["tag"] for one in runs if one.id in record.parents]
        assert sorted(set(tags)) == sorted(
            ["llama8b_tp1", *(tag for one in found.runs[1:] for tag in one.calibrate)]
        )
        assert len(tags) == 4 * 5
        # Rows that no file names are there too, and calibrate nothing.
        assert len(runs) == 20 + 15
        shapes = {one.subject["model"] for one in study.find("serve.shape", machine="pair")}
        assert {"llama8b", "qwen3-32b", "llama-3.1-70b-shard-of-tp2"} <= shapes
        # All rows of the second file calibrated: of it there is nothing to score.
        score_own(study, found)
        assert len(study.find("predict.score", machine="pair")) == 1


def test_a_file_may_name_nothing(tmp_path: Path) -> None:
    (one,) = sources(tmp_path, f'[[runs]]\nfile = "{FIRST}"\n').runs
    assert one == RunsNamed(file=FIRST)


@pytest.mark.parametrize(
    ("manifest", "seen"),
    [
        (f'[runs]\nfile = "{FIRST}"\ncalibrate = ["llama8b_tp1"]\n', "Expected `array`"),
        ("[[runs]]\ncalibrate = []\n", "missing required field `file`"),
    ],
)
def test_what_a_manifest_cannot_say(manifest: str, seen: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        sources(tmp_path, manifest)
    assert raised.value.seen.startswith("pair/machine.toml cannot be read: ")
    assert seen in raised.value.seen
    assert "[[runs]] with file and calibrate" in (raised.value.hint or "")


def test_a_tag_is_looked_for_in_its_own_file(tmp_path: Path) -> None:
    found = sources(tmp_path, TWO.replace('"llama8b_tp1"', '"qwen3-32b_one_GPU"'))
    with (
        Study.create(tmp_path / "a.linkbound") as study,
        pytest.raises(InputError, match="qwen3-32b_one_GPU"),
    ):
        prepare(study, found)
