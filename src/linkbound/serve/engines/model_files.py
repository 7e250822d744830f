"""What an engine is given as its model: a folder as it is, or one made of a configuration (P2)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linkbound.errors import InputError, UsageError
from linkbound.model.files import read_text
from linkbound.model.read_model import bundled_names, bundled_text
from linkbound.serve.engines.types import ServerPlan
from linkbound.serve.twin import shard_config
from linkbound.splits.types import Split
from linkbound.values import Value

_FILE = "config.json"


class ModelFiles(Value, frozen=True, kw_only=True):
    """The folder to name on the command line, and files to write into it first."""

    folder: str
    files: Mapping[str, str] = {}


def model_files(plan: ServerPlan) -> ModelFiles:
    """A model's folder; for a bundled name, a config.json or a shard, one in the start's folder.

    Raises UsageError where such a model is to run without dummy weights: there are no others.
    """
    if _is_folder(plan.model) and plan.shard_of is None:
        return ModelFiles(folder=plan.model)
    if not plan.dummy_weights:
        raise UsageError(
            f"'{plan.model}' has a configuration and no weights.",
            why="An engine would look for weights and end.",
            hint="Add --dummy-weights, or name the folder of a model with weights.",
        )
    # Beside the logs, so that what was run is found with them.
    folder = f"{plan.folder}/model"
    text = configuration(plan.model, plan.shard_of)
    return ModelFiles(folder=folder, files={f"{folder}/{_FILE}": text})


def configuration(model: str, shard_of: Split | None = None) -> str:
    """The text of the model's config.json, or that of a shard. Raises InputError, UsageError."""
    path = Path(model)
    if model in bundled_names():
        text = bundled_text(model)
    else:
        text = read_text(path if path.name == _FILE else path / _FILE)
    if shard_of is None:
        return text
    return json.dumps(shard_config(_read(text, model), shard_of), indent=2) + "\n"


def _is_folder(model: str) -> bool:
    """Whether an engine is given it as it is: a folder, or a name that it looks up itself."""
    return model not in bundled_names() and Path(model).name != _FILE


def _read(text: str, source: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise InputError(
            f"The configuration of {source} is not a JSON object.",
            why="A shard's widths are made of its own.",
            hint="Give the model's config.json.",
        )
    return config
