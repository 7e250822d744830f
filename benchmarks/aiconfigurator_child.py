"""Runs inside AIConfigurator's own environment: points in, its answers out, as JSON.

bench_aiconfigurator.py starts it; nothing of linkbound is imported here.
"""

import json
import sys
from pathlib import Path
from typing import Any

from aiconfigurator.cli.api import cli_estimate

VERSION = "0.24.0"


def answer(point: dict[str, Any], model: str, system: str, systems: str | None) -> dict[str, Any]:
    """Milliseconds of a batch that runs as one prefill step and then as decode steps."""
    found = cli_estimate(
        model,
        system,
        mode="static",
        backend_name="vllm",
        backend_version=VERSION,
        isl=point["input"],
        osl=max(2, point["output"]),
        batch_size=point["batch"],
        tp_size=point["tp"],
        pp_size=point["pp"],
        # One decode step is one decode step: no stride over them.
        stride=1,
        systems_paths=systems,
    )
    return {"prefill_ms": float(found.ttft), "tpot_ms": float(found.tpot)}


def main() -> None:
    asked = json.loads(sys.stdin.read())
    answers = [
        answer(point, asked["model"], asked["system"], asked["systems"])
        for point in asked["points"]
    ]
    Path(asked["out"]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
