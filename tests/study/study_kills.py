"""Kills studies at random moments and checks what is left; prints one JSON object.

A program of its own and not a test: it forks, which a process with threads must not.
Usage: study_kills.py FOLDER SEED KILLS
"""

import contextlib
import io
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from linkbound.cli.main import run
from linkbound.evidence.study import Study


def study(path: Path) -> int:
    """Run one whole study in this process."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run(["study", "llama-3.1-8b", "--machine", "h200-pair", "-q", "-C", str(path)])


def started(path: Path) -> int:
    """The process id of a child that runs the study."""
    child = os.fork()
    if child == 0:
        os._exit(study(path))
    return child


def ids(path: Path) -> list[str]:
    """Every record, read back and proved by its hash; the file must verify clean."""
    with Study.open(path) as held:
        found = [record.id for record in held.records()]
        findings = [finding.seen for finding in held.verify()]
    if findings:
        raise SystemExit(f"{path}: {findings}")
    return found


def main() -> None:
    folder, choose, kills = Path(sys.argv[1]), random.Random(int(sys.argv[2])), int(sys.argv[3])
    begun = time.monotonic()
    whole = folder / "whole.linkbound"
    if study(whole) != 0:
        raise SystemExit("the undisturbed study failed")
    duration_s = time.monotonic() - begun
    expected, killed, counts, finished, number = ids(whole), 0, [], 0, 0
    path = folder / "0.linkbound"
    lost = 0
    before: list[str] = []
    while killed < kills:
        child = started(path)
        # Early moments are the busy ones: most records are written in the first fifth.
        time.sleep(duration_s * choose.random() ** 3)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        if path.exists():
            now = ids(path)
            lost += now[: len(before)] != before
            before = now
            counts.append(len(now))
        if set(before) == set(expected) or os.WIFEXITED(status):
            finished += 1
            number += 1
            path, before = folder / f"{number}.linkbound", []
    code = study(path)
    again = ids(path)
    result = {
        "killed": killed,
        "lost": lost,
        "code": code,
        "same": sorted(again) == sorted(expected),
        "records": len(expected),
        "different_counts": len(set(counts)),
        "page": path.with_suffix(".html").exists(),
        "finished": finished,
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
