"""A server that sends tokens at an exact pace and knows nothing else: to measure the client (P2).

Run as `python -m linkbound.serve.mock_server`. It shares the cores with the client it measures, so
it is as cheap as can be: bare asyncio, every event encoded once.
"""

import argparse
import asyncio
import json
import re
from functools import lru_cache

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)
_HEALTHY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n"
    b'Connection: close\r\n\r\n{"status":"ok"}'
)


class _Stream(asyncio.Protocol):
    """One connection: reads a request, then sends its tokens, each at its own due time."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, _error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and len(body) >= int(length[1] if length else 0):
            self._received = b""
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self._transport.write(_HEALTHY)
            self._transport.close()
            return
        asked = json.loads(body)
        self._count = int(asked["max_tokens"])
        self._prompt_tokens = len(asked["prompt"])
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._transport.write(_HEAD)
        # The first token at once: what the client adds to it is its own.
        self._send(0)

    def _send(self, number: int) -> None:
        last = number == self._count - 1
        self._transport.write(_token(number, last))
        if last:
            self._transport.write(_closing(self._prompt_tokens, self._count))
            self._transport.close()
            return
        # From the start, not from the last token: delays must not add up.
        due_s = self._started_s + (number + 1) * self._gap_s
        self._timer = self._loop.call_at(due_s, self._send, number + 1)


@lru_cache(maxsize=4096)
def _token(number: int, last: bool) -> bytes:
    choice = {
        "text": f" {number}",
        "index": 0,
        "logprobs": None,
        "finish_reason": "length" if last else None,
    }
    return _chunk({"object": "text_completion", "choices": [choice]})


@lru_cache(maxsize=64)
def _closing(prompt_tokens: int, output_tokens: int) -> bytes:
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    done = b"data: [DONE]\n\n"
    return _chunk({"choices": [], "usage": usage}) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done)


def _chunk(event: dict[str, object]) -> bytes:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(port: int, gap_s: float) -> None:
    """Serve on loopback, `gap_s` seconds between the tokens of a stream, until cancelled."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Stream(gap_s), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(description="Paces tokens exactly.")
    parser.add_argument("--port", type=int, required=True, help="Port on loopback.")
    parser.add_argument("--gap-s", type=float, default=0.01, help="Seconds between tokens.")
    asked = parser.parse_args()
    asyncio.run(serve(asked.port, asked.gap_s))


if __name__ == "__main__":
    main()
