"""How the processes of one job agree: each gives a value and gets those of all (L4).

A rank speaks JSON lines on its standard output and hears them on its standard input; the worker
between them passes on what all have given.
"""

import os
import sys
from typing import Any, Protocol

import msgspec

from linkbound.links.live.rows import LinkRow
from linkbound.values import Value


class Message(Value, frozen=True, kw_only=True):
    """One line of a rank: exactly one of these is set."""

    give: Any = None
    """A value for all; always inside a list, so that it is never null."""
    begin: str | None = None
    row: LinkRow | None = None
    fault: str | None = None
    done: bool | None = None


class Exchange(Protocol):
    """A meeting of all processes of a job, and the way out for rows."""

    process: int

    def all(self, value: Any) -> list[Any]:
        """Give a value that JSON can hold; get those of all processes, in their order."""

    def begin(self, what: str) -> None: ...

    def row(self, row: LinkRow) -> None: ...


class PipeExchange:
    """Over this process's standard streams. What libraries print goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self.process = 0

    def read(self) -> bytes:
        """The next line of the worker. Raises EOFError where it has gone."""
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError("the worker has gone")
        return line

    def all(self, value: Any) -> list[Any]:
        self._put(Message(give=[value]))
        values: list[Any] = msgspec.json.decode(self.read())
        return values

    def begin(self, what: str) -> None:
        if self.process == 0:
            self._put(Message(begin=what))

    def row(self, row: LinkRow) -> None:
        if self.process == 0:
            self._put(Message(row=row))

    def fault(self, text: str) -> None:
        self._put(Message(fault=text))

    def done(self) -> None:
        self._put(Message(done=True))

    def _put(self, message: Message) -> None:
        self._out.write(msgspec.json.encode(message) + b"\n")
