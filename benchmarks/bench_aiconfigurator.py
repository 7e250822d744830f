"""AIConfigurator's answers beside ours, on the same rows in one run.

Its model is a batch in one prefill step, then decode steps of the whole batch ("static"): no
chunks, no mixed step. Rows whose prompts fill one step of 8,192 tokens at most are that; of the
others its answer is compared too, apart. It knows no arms: once with its own tables, once fed with
the all-reduces that `linkbound export aiconfigurator` writes for the row's arm.

Run: python benchmarks/bench_aiconfigurator.py --python VENV/bin/python   (see benchmarks/README.md)
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median
from typing import Any

from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.predict.effects import range_error
from linkbound.predict.points import Metric
from linkbound.predict.score_types import ScoreRow
from linkbound.serve import VLLM
from linkbound.study.aiconfigurator import export_systems
from linkbound.study.scoring import score_file
from linkbound.study.sources import read_recorded
from linkbound.study.stages import prepare

MACHINE, SYSTEM, VERSION = "h200-pair", "h200_sxm", "0.24.0"
RUNS = files("linkbound") / "recorded" / MACHINE / "vllm-0.24.0"
CHILD = Path(__file__).parent / "aiconfigurator_child.py"
EXPORTED = (Arm.P2P, Arm.NCCL, Arm.STAGED)
LIMIT_S = 600
_FIND = "import aiconfigurator_core as core, pathlib; print(pathlib.Path(core.__file__).parent)"
_KEYS = {Metric.PREFILL: "prefill_ms", Metric.TPOT: "tpot_ms"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--python", required=True, help="Python that has aiconfigurator 0.12.0.")
    python = parser.parse_args().python
    with tempfile.TemporaryDirectory() as folder, as_file(RUNS) as runs:
        place = Path(folder)
        with Study.create(place / "s.linkbound") as study:
            sources = read_recorded(MACHINE)
            prepare(study, sources)
            rows = score_file(study, sources, runs / "runs.jsonl").rows
            systems = _export(study, python, place)
        own = _ask(python, place, runs, rows, None)
        fed = {arm: _ask(python, place, runs, rows, at) for arm, at in systems.items()}
    theirs = {id(row): _theirs(row, own) for row in rows}
    exported = {id(row): _theirs(row, fed[row.spec.arm]) for row in rows if row.spec.arm in fed}
    for line in _table(rows, theirs, exported):
        print(line)


def _export(study: Study, python: str, place: Path) -> dict[Arm, Path]:
    found = subprocess.run(
        [python, "-c", _FIND], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    systems = Path(found.stdout.strip()) / "systems"
    folders = {arm: place / f"systems-{arm}" for arm in EXPORTED}
    for arm, out in folders.items():
        export_systems(
            study, MACHINE, arm, systems=systems, system=SYSTEM, version=VERSION, out=out
        )
    return folders


def _ask(
    python: str, place: Path, runs: Path, rows: Sequence[ScoreRow], systems: Path | None
) -> dict[tuple[int, ...], dict[str, float]]:
    points = sorted({_point(row) for row in rows})
    names = ("tp", "pp", "batch", "input", "output")
    asked: dict[str, Any] = {
        "model": str(runs / "configs" / rows[0].spec.model),
        "system": SYSTEM,
        "systems": None if systems is None else str(systems),
        "points": [dict(zip(names, one, strict=True)) for one in points],
        "out": str(place / "answers.json"),
    }
    done = subprocess.run(
        [python, str(CHILD)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"AIConfigurator failed:\n{done.stderr[-2000:]}")
    answers = json.loads((place / "answers.json").read_text())
    return dict(zip(points, answers, strict=True))


def _point(row: ScoreRow) -> tuple[int, ...]:
    spec = row.spec
    return spec.tp, spec.pp, spec.batch, spec.prompt_tokens, spec.output_tokens


def _theirs(row: ScoreRow, answers: dict[tuple[int, ...], dict[str, float]]) -> float:
    """Seconds."""
    return answers[_point(row)][_KEYS[row.metric]] / 1e3


def _one_step(row: ScoreRow) -> bool:
    """Whether the prompts go through in one step: then both mean the same by these times."""
    return row.batch * row.input <= VLLM.max_batched_tokens


def _table(
    rows: Sequence[ScoreRow], theirs: dict[int, float], exported: dict[int, float]
) -> list[str]:
    lines = [
        f"{'tag':<18} {'batch x input':>13} {'metric':<9} {'measured':>8} "
        f"{'ours':>8} {'%':>5} {'AIC':>8} {'%':>5} {'AIC fed':>8} {'%':>5}   (ms, error)"
    ]
    for row in rows:
        cells = [
            f"{time_s * 1e3:>8.2f} {100 * _error(row, time_s):>5.1f}"
            if time_s is not None
            else f"{'-':>8} {'-':>5}"
            for time_s in (row.predicted, theirs[id(row)], exported.get(id(row)))
        ]
        marks = "  seen by ours" if row.seen else ""
        marks += "" if _one_step(row) else "  several steps"
        lines.append(
            f"{row.tag:<18} {row.batch:>5} x {row.input:>5} {row.metric.value:<9} "
            f"{row.measured * 1e3:>8.2f} {' '.join(cells)}{marks}"
        )
    lines += ["", "Errors over rows that our calibration has not seen:"]
    for title, keep in (("one prefill step", True), ("several", False)):
        for metric in (Metric.PREFILL, Metric.TPOT):
            chosen = [
                row
                for row in rows
                if row.metric is metric and not row.seen and _one_step(row) is keep
            ]
            lines.append(_summary(f"{metric.value}, {title}", chosen, theirs, exported))
    return lines


def _summary(
    title: str, rows: Sequence[ScoreRow], theirs: dict[int, float], exported: dict[int, float]
) -> str:
    ours = [_error(row, row.predicted) for row in rows]
    own = [_error(row, theirs[id(row)]) for row in rows]
    # Rows that calibrated hold all of one GPU: each of these has an arm that was fed.
    fed = [_error(row, exported[id(row)]) for row in rows]
    parts = [
        f"{name} median {100 * median(errors):.1f} %, worst {100 * max(errors):.1f} %"
        for name, errors in (("ours", ours), ("AIC", own), ("AIC fed", fed))
    ]
    return f"{title:<28} {len(rows):>2} rows: " + "; ".join(parts)


def _error(row: ScoreRow, time_s: float) -> float:
    return range_error(time_s, row.measured_low, row.measured_high)


if __name__ == "__main__":
    main()
