"""Text from a model's files, with one clear error for whatever is there instead (S3)."""

from pathlib import Path

from linkbound.errors import InputError
from linkbound.model.keys import TEXT_LIMIT_BYTES


def read_text(path: Path) -> str:
    """The text of a file of at most 64 MiB in UTF-8 (or UTF-16 with its mark)."""
    try:
        size = path.stat().st_size
        if size > TEXT_LIMIT_BYTES:
            raise InputError(
                f"{path} has {size:,} bytes.",
                why=f"A model's configuration is far smaller; above {TEXT_LIMIT_BYTES:,} it is not "
                "read.",
                hint="Give the config.json of the model.",
            )
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}.",
            why="The model's sizes are in it.",
            hint="Check the path and its permissions.",
        ) from None
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not text: byte {error.start} cannot be read as {encoding}.",
            why="A model's configuration is JSON text.",
            hint="Give the config.json of the model.",
        ) from None
