"""`--extra` of engines without a server: arguments of a function, with JSON values (P2)."""

import json
from collections.abc import Iterable

from linkbound.errors import UsageError


def extra_arguments(texts: Iterable[str], of: str, example: str) -> dict[str, object]:
    """`NAME=VALUE` by name. Raises UsageError for a text that is no argument of `of`."""
    return dict(_argument(text, of, example) for text in texts)


def _argument(text: str, of: str, example: str) -> tuple[str, object]:
    name, separator, value = text.partition("=")
    try:
        return name, json.loads(value if separator else "")
    except ValueError:
        raise UsageError(
            f"--extra '{text}' is no argument of {of}.",
            why="Without a server there is no command line that could take a flag.",
            hint=f"Write NAME=VALUE with a JSON value: --extra {example}.",
        ) from None
