"""A model by bundled name, directory or file to its ModelShape (S1, S3)."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec

from linkbound.errors import InputError
from linkbound.model.files import read_text
from linkbound.model.gguf import gguf_models, read_gguf
from linkbound.model.parse_config import parse_config
from linkbound.model.safetensors import check_against_headers, stored_bytes
from linkbound.model.types import ModelShape

_SIDE_FILE = "hf_quant_config.json"


def bundled_names() -> tuple[str, ...]:
    """Names of the models whose dimensions come with the package."""
    found = (entry.name for entry in (resources.files("linkbound.model") / "bundled").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


def read_model(path_or_name: str, overrides: Mapping[str, str] | None = None) -> ModelShape:
    """The shape of a bundled name, a model's directory, a config.json or a .gguf file.

    Raises InputError for anything else, ModelRefused for keys that are not understood.
    """
    overrides = overrides or {}
    if not path_or_name:
        raise _no_model(path_or_name)
    if path_or_name in bundled_names():
        return _bundled(path_or_name, overrides)
    path = Path(path_or_name)
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError):  # too long, or a NUL inside
        is_directory = is_file = False
    if is_directory:
        try:
            return _directory(path, overrides)
        except PermissionError as error:
            raise InputError(
                f"{error.filename or path} cannot be read: {error.strerror}.",
                why="The sizes of a model are in its files.",
                hint="Give a folder that you may read.",
            ) from None
    if not is_file:
        raise _no_model(path_or_name)
    if path.suffix == ".gguf":
        return _gguf(path, overrides)
    if path.suffix == ".safetensors":
        raise InputError(
            f"{path} holds weights alone.",
            why="Heads and experts cannot be told from the shapes of tensors.",
            hint="Give the directory that holds it and the model's config.json.",
        )
    side = _side_text(path.parent) if path.name == "config.json" else None
    return _named(parse_config(read_text(path), str(path), side, overrides), path)


def bundled_text(name: str) -> str:
    """The configuration of a bundled model as it is shipped."""
    return (resources.files("linkbound.model") / "bundled" / f"{name}.json").read_text("utf-8")


def _bundled(name: str, overrides: Mapping[str, str]) -> ModelShape:
    shape = parse_config(bundled_text(name), f"{name} (bundled)", None, overrides)
    return msgspec.structs.replace(shape, name=name)


def _directory(path: Path, overrides: Mapping[str, str]) -> ModelShape:
    config = path / "config.json"
    if not config.is_file():
        found = gguf_models(path)
        if len(found) == 1:
            return _gguf(found[0], overrides)
        if found:
            names = ", ".join(file.name for file in found[:6])
            raise InputError(
                f"{path} holds {len(found)} models: {names}.",
                why="They differ in size.",
                hint="Give one of the files.",
            )
        raise InputError(
            f"{path} has no config.json and no .gguf file.",
            why="The sizes of a model are in one of them.",
            hint="Give the directory that a model was downloaded into.",
        )
    shape = _named(
        parse_config(read_text(config), str(config), _side_text(path), overrides), config
    )
    stored = stored_bytes(path)
    return shape if stored is None else check_against_headers(shape, *stored)


def _gguf(path: Path, overrides: Mapping[str, str]) -> ModelShape:
    if overrides:
        key, value = next(iter(overrides.items()))
        raise InputError(
            f"--override {key}={value} was given for {path}.",
            why="Overrides are keys of a config.json; a GGUF file has none.",
            hint="Leave it out.",
        )
    return read_gguf(path)


def _side_text(directory: Path) -> str | None:
    side = directory / _SIDE_FILE
    return read_text(side) if side.is_file() else None


def _named(shape: ModelShape, path: Path) -> ModelShape:
    """Named after its directory, which is what people call a model, or after an odd file."""
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return msgspec.structs.replace(shape, name=name) if name.isprintable() and name else shape


def _no_model(path_or_name: str) -> InputError:
    shown = path_or_name if path_or_name.isprintable() else ascii(path_or_name)
    return InputError(
        f"There is no model '{shown[:200]}'.",
        why="It is neither a file, nor a directory, nor a bundled name.",
        hint=f"Give a path, or one of {', '.join(bundled_names())}.",
    )
