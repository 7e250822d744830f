"""A hundred kills at random moments: nothing confirmed is lost, and the study can be finished."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("study_kills.py")
KILLS = 50


@pytest.mark.parametrize("seed", [20260101, 20260102])
def test_killed_studies_keep_their_records_and_can_be_finished(seed: int, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), str(seed), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["killed"] == KILLS
    assert result["lost"] == 0
    assert result["code"] == 0
    assert result["same"]
    assert result["page"]
    # The kills hit the study in different states.
    assert result["different_counts"] > 3
