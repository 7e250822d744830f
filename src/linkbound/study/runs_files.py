"""A runs file that a user names, and the shapes of the models in it (E3)."""

from collections.abc import Mapping
from pathlib import Path

from linkbound.errors import InputError, ModelRefused
from linkbound.model.parse_config import parse_config
from linkbound.model.types import ModelShape
from linkbound.serve import parse_specs
from linkbound.serve.runs import MAX_FILE_BYTES
from linkbound.study.importing_runs import decode_config

Shapes = Mapping[str, ModelShape | ModelRefused]
"""What each model of a runs file is, or why its config is not understood."""


def shapes_beside(path: Path, data: bytes) -> Shapes:
    """The shapes of all models that a runs file names, from configs/MODEL/config.json beside it."""
    return {model: _parsed(*config) for model, config in configs_beside(path, data).items()}


def _parsed(name: str, text: str) -> ModelShape | ModelRefused:
    try:
        return parse_config(text, name)
    except ModelRefused as error:
        return error


def configs_beside(path: Path, data: bytes) -> Mapping[str, tuple[str, str]]:
    """Name and text of the configuration of every model that a runs file names.

    Raises InputError where one is missing.
    """
    models = dict.fromkeys(spec.model for _, _, spec in parse_specs(data, path.name))
    return {model: _config(path, model) for model in models}


def _config(path: Path, model: str) -> tuple[str, str]:
    config = path.parent / "configs" / model / "config.json"
    if Path(model).name != model or model == ".." or not _is_file(config):
        raise InputError(
            f"{path.name} names the model '{model}', and there is no {config}.",
            why="The shape decides the work.",
            hint="Put its config.json there.",
        )
    name = f"configs/{model}/config.json"
    return name, decode_config(read_runs_file(config, "The shape decides the work."), name)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A name too long for a file names none.
        return False


def read_runs_file(path: Path, why: str = "Predictions are scored against its runs.") -> bytes:
    """At most one byte more than a runs file may have: what is longer is refused by its reader.

    `why` says what the file is read for, where it cannot be.
    """
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}.",
            why=why,
            hint="Name a runs.jsonl.",
        ) from None
