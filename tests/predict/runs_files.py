"""Runs files that the tests of scoring write: rows as an engine's runs would leave them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predict_cases import CONFIGS

LLAMA = {"small": "meta-llama--Meta-Llama-3.1-8B"}


def row(name: str, **changes: Any) -> dict[str, Any]:
    """One row on one GPU: 4 prompts of 512 tokens, 33 tokens each."""
    return {
        "tag": f"{name} row",
        "model": name,
        "tp": 1,
        "pp": 1,
        "ep": 0,
        "custom_ar": 1,
        "p2p_disable": "0",
        "batch": 4,
        "input": 512,
        "output": 33,
        "prefill_all": [0.05, 0.06],
        "total_all": [0.4, 0.5],
        **changes,
    }


def asked(one: Mapping[str, Any]) -> dict[str, Any]:
    """The row before it was measured."""
    return {key: value for key, value in one.items() if not key.endswith("_all")}


def with_rows(folder: Path, models: Mapping[str, str], rows: list[dict[str, Any]]) -> Path:
    """A runs file in `folder`, with the config of each model beside it."""
    for name, config in models.items():
        (folder / "configs" / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(CONFIGS / config / "config.json", folder / "configs" / name / "config.json")
    path = folder / "runs.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in rows))
    return path
