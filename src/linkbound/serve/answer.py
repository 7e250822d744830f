"""An answer understood: the reads of a stream to chunks, counts and what was wrong (P2)."""

from collections.abc import Iterable

from linkbound.errors import InputError
from linkbound.evidence.types import Reason
from linkbound.serve.load_types import Chunk
from linkbound.serve.stream import SseReader, StreamEvent, parse_event
from linkbound.values import Value


class Answer(Value, frozen=True, kw_only=True):
    """What a stream held; counts are the server's own."""

    chunks: tuple[Chunk, ...]
    finish: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    error: Reason | None


class _Reading:
    """A stream that is being understood."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.finish: str | None = None
        self.usage = StreamEvent()
        self.done = False
        self.error: Reason | None = None

    def take(self, event: StreamEvent, at_s: float, read: int, size_bytes: int) -> None:
        if event.error is not None:
            self.fail("engine-error", f"The engine reports {event.error}.")
        self.done |= event.done
        self.finish = event.finish or self.finish
        if event.has_token or event.finish is not None:
            self.chunks.append(
                Chunk(
                    at_s=at_s,
                    read=read,
                    size_bytes=size_bytes,
                    has_token=event.has_token,
                    tokens=event.tokens,
                )
            )
        if event.output_tokens is not None:
            self.usage = event

    def fail(self, code: str, text: str) -> None:
        self.error = self.error or Reason(code=code, text=text)

    def close(self, mid_event: bool) -> None:
        """What the end of the stream says: a last word is due, and a token."""
        if not self.done and self.finish is None:
            inside = " inside an event" if mid_event else ""
            self.fail("cut-stream", f"The stream ended{inside}, without a last word.")
        # Random weights may answer with bytes that are no text: the counts show that they came.
        if not any(chunk.has_token for chunk in self.chunks) and not self.usage.output_tokens:
            self.fail("no-tokens", "The answer ended without a token.")


def read_answer(reads: Iterable[tuple[float, bytes]], source: str) -> Answer:
    """The answer in `reads` (time in seconds, bytes); never raises, the error is a part of it."""
    reading = _Reading()
    reader = SseReader(source)
    try:
        for number, (at_s, data) in enumerate(reads):
            for event in reader.feed(data):
                reading.take(parse_event(event, source), at_s, number, len(event))
    except InputError as error:
        reading.fail("malformed-stream", error.seen)
    reading.close(reader.is_mid_event)
    return Answer(
        chunks=tuple(reading.chunks),
        finish=reading.finish,
        prompt_tokens=reading.usage.prompt_tokens,
        output_tokens=reading.usage.output_tokens,
        cached_tokens=reading.usage.cached_tokens,
        error=reading.error,
    )
