"""Files that a verb reads whole: a path, a pipe, or `-` for what comes on stdin."""

import os
import select
import stat
import sys
from pathlib import Path

from linkbound.errors import InputError, UsageError

PIPE_WAIT_S = 30.0
"""For the first byte of a pipe: one that nobody writes into would never end."""


def read_input(path: Path, limit_bytes: int) -> bytes:
    """The content, one byte more than the limit at most: enough to know that it is too much.

    Raises InputError.
    """
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(limit_bytes + 1)
        # Opening a pipe without a writer would wait for one for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                _await_writer(file.fileno(), path)
            os.set_blocking(file.fileno(), True)
            return file.read(limit_bytes + 1)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}).",
            why="Nothing is known of what it holds.",
            hint="Check the name and its permissions.",
        ) from None


def input_name(path: Path) -> str:
    """What a file is called in an answer; a pipe of the shell has no name of its own."""
    if str(path) == "-":
        return "stdin"
    return str(path) if path.parent == Path("/dev/fd") else path.name


def refuse_streams(paths: tuple[Path, ...]) -> None:
    """Raises UsageError for what can be read once only, where an answer keeps its sources."""
    once = [path for path in paths if str(path) == "-" or path.is_fifo()]
    if once:
        raise UsageError(
            f"-C with {input_name(once[0])}.",
            why="A study keeps the file that the answer rests on, and this one can be read once.",
            hint="Write it into a file first.",
        )


def _await_writer(descriptor: int, path: Path) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(PIPE_WAIT_S * 1000):
        raise InputError(
            f"{path}: nothing was written into this pipe for {PIPE_WAIT_S:g} s.",
            why="A pipe without a writer never ends.",
            hint="Start what writes into it, or give a file.",
        )
