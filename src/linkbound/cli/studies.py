"""Which study a verb works on, and how its records read in one line (E1)."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from linkbound.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from linkbound.evidence.study import Study

SUFFIX = ".linkbound"
SHOWN_DIGITS = 12
"""Digits of a record id in tables: enough to name it, and `show` takes them."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


def study_option(command: _Command) -> _Command:
    """The option -C/--study of every verb that works on a study."""
    option = click.option(
        "-C",
        "--study",
        "study_path",
        type=click.Path(path_type=Path),
        help=f"Study file. Default: the only *{SUFFIX} file in this folder.",
    )
    return option(command)


def locate_study(path: Path | None, named_by: str = "-C ") -> Path:
    """The study that was named, else the only one in this folder. Raises UsageError.

    `named_by` is what the verb writes before a study's name.
    """
    if path is not None:
        return existing(path)
    found = sorted(Path().glob(f"*{SUFFIX}"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(one) for one in found)
    raise UsageError(
        f"This folder has {len(found)} studies ({names})." if found else "No study is here.",
        why="This verb reads one.",
        hint=f"Name it: {named_by}FILE{SUFFIX}, or make one with `linkbound study MODEL`.",
    )


@contextmanager
def open_study(path: Path | None) -> "Iterator[Study]":
    """The named study, or one that is gone afterwards. Raises Interrupted where it was lost."""
    from linkbound.evidence.study import Study

    if path is not None:
        with Study.open_or_create(path) as study:
            yield study
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Study.create(Path(folder) / f"gone{SUFFIX}") as study,
    ):
        try:
            yield study
        except KeyboardInterrupt:
            raise Interrupted(
                "Stopped.", hint="Nothing is kept: no study was named with -C."
            ) from None


def subject_words(subject: Mapping[str, Any]) -> str:
    """`arm=p2p, batch=8`: what tells a record from others of its kind."""
    return ", ".join(f"{printable(key)}={_word(value)}" for key, value in subject.items())


def printable(text: str) -> str:
    """Text of foreign origin, its control characters spelled out: they could drive a terminal."""
    return "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines of aligned columns; nothing is cut."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def echo_json(document: Mapping[str, object]) -> None:
    """Print the one document that stdout holds with --json."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def _word(value: object) -> str:
    if isinstance(value, str):
        return printable(value)
    return printable(json.dumps(value, ensure_ascii=False))


def existing(path: Path) -> Path:
    """The path of a study that is there. Raises UsageError."""
    if path.is_file():
        return path
    raise UsageError(
        f"There is no study {path}.",
        why="It is neither a file here nor anywhere else.",
        hint="Make one with: linkbound study MODEL",
    )
