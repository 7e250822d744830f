"""Killed at any moment, a study keeps every record it had confirmed; two writers share one file."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from linkbound.evidence.study import Study

WRITER = """
import sys
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record, Samples

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Study.open_or_create(path) as study:
    print("ready", flush=True)
    for number in range(count):
        blob = study.add_blob(f"log of {name} {number}".encode())
        record_id = study.append(
            Record(
                kind="test.loop",
                subject={"writer": name, "number": number},
                outcome=Measured(values={"time_s": number / 7}),
                method="loop",
                blobs=(blob,),
                samples=Samples(columns=("time_s",), rows=((number / 7,), (None,))),
            )
        )
        print(record_id, flush=True)
"""
KILLS = 25


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def whole_ids(output: str) -> list[str]:
    """Confirmed ids: a line cut by the kill is none."""
    return [line for line in output.split("\n")[:-1] if line != "ready"]


def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "killed.linkbound"
    choose = random.Random(20260112)
    confirmed: list[str] = []
    for kill in range(KILLS):
        process = writer(path, f"kill {kill}", 1_000_000)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(choose.uniform(0.0, 0.08))
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL
        confirmed += whole_ids(output)
        with Study.open(path) as study:
            assert study.verify() == []
    assert len(confirmed) > KILLS
    with Study.open(path) as study:
        assert [one for one in confirmed if study.get(one).id != one] == []
        # The record in flight may have been committed before its id was printed.
        assert len(confirmed) <= study.counts()[0] <= len(confirmed) + KILLS


def test_two_writers_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "shared.linkbound"
    processes = [writer(path, name, 60) for name in ("one", "two")]
    ids: list[str] = []
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        ids += whole_ids(output)
    assert len(set(ids)) == 120
    with Study.open(path) as study:
        assert study.verify() == []
        records = list(study.records())
    assert {record.id for record in records} == set(ids)
    for name in ("one", "two"):
        mine = [one.subject["number"] for one in records if one.subject["writer"] == name]
        assert mine == list(range(60))
