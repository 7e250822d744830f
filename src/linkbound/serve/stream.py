"""Server-sent events and what an OpenAI-compatible server puts into them (P2).

Bytes to events to values; no network here, so that every broken stream can be a test.
"""

import json
from typing import Annotated, Any

import msgspec

from linkbound.errors import InputError
from linkbound.values import Value

# A token with its text is some 300 bytes; a whole answer in one event stays far below this.
MAX_EVENT_BYTES = 4 * 1024 * 1024
_HINT = "Look at the server's log, and at what stands between it and this client."


class StreamEvent(Value, frozen=True, kw_only=True):
    """One event of a stream."""

    done: bool = False
    """The closing `[DONE]`."""
    text: str = ""
    tokens: int | None = None
    """How many tokens it brings, where the engine gives their ids."""
    finish: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None
    """The server's own words, where it reports a failure inside the stream."""

    @property
    def has_token(self) -> bool:
        """Text or ids: an opening that only names a role has neither."""
        return bool(self.text or self.tokens)


class SseReader:
    """Cuts bytes, however they are split by the network, into the data of events."""

    def __init__(self, source: str) -> None:
        self._source = source
        # Of the line that is not over yet: joined only at its end, or a long one costs its square.
        self._parts: list[bytes] = []
        self._data: list[bytes] = []
        self._rest_bytes = 0
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that ends in `chunk`. Raises InputError past 4 MiB."""
        *lines, rest = chunk.split(b"\n")
        events = []
        for line in lines:
            events += self._take_line(b"".join((*self._parts, line)).removesuffix(b"\r"))
            self._parts.clear()
        self._parts.append(rest)
        self._rest_bytes = len(rest) if lines else self._rest_bytes + len(rest)
        if self._rest_bytes + self._data_bytes > MAX_EVENT_BYTES:
            raise InputError(
                f"{self._source}: an event of the stream is longer than {MAX_EVENT_BYTES:,} bytes.",
                why="A stream of tokens has small events; this is something else.",
                hint=_HINT,
            )
        return events

    def _take_line(self, line: bytes) -> list[bytes]:
        if not line:
            return self._end_event()
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._data_bytes += len(line)
        return []

    def _end_event(self) -> list[bytes]:
        if not self._data:
            return []
        event = b"\n".join(self._data)
        self._data, self._data_bytes = [], 0
        return [event]

    @property
    def is_mid_event(self) -> bool:
        """Whether the bytes so far end inside an event."""
        return bool(b"".join(self._parts).strip() or self._data)


class _Wire(msgspec.Struct):
    """What is read of an event; servers send more, and it is passed over."""

    choices: "list[_Choice] | None" = None
    usage: "_Usage | None" = None
    error: Any = None


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[int] | None = None
    delta: "_Delta | None" = None
    finish_reason: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    prompt_tokens_details: "_Details | None" = None


class _Details(msgspec.Struct):
    cached_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


_decode = msgspec.json.Decoder(_Wire).decode


def parse_event(data: bytes, source: str) -> StreamEvent:
    """What one event says. Raises InputError where it is no event of a completion."""
    if data.strip() == b"[DONE]":
        return StreamEvent(done=True)
    try:
        wire = _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InputError(
            f"{source}: an event of the stream is no part of a completion: {data[:60]!r}.",
            why="Tokens and usage are read from it.",
            hint=_HINT,
        ) from None
    if wire.error:
        return StreamEvent(error=json.dumps(wire.error)[:300])
    usage = wire.usage or _Usage()
    details = usage.prompt_tokens_details or _Details()
    first = wire.choices[0] if wire.choices else _Choice()
    return StreamEvent(
        text=_text(first),
        tokens=None if first.token_ids is None else len(first.token_ids),
        finish=first.finish_reason,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_tokens=details.cached_tokens,
    )


def _text(choice: _Choice) -> str:
    # Chat streams have a delta, and reasoning models put their first words beside the content.
    delta = choice.delta or _Delta()
    return choice.text or delta.content or delta.reasoning_content or ""
