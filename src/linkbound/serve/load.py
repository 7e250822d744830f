"""The load client: due, send, follow, record (P2). The only file here that opens connections.

In an open loop a request is sent when it is due, whatever became of those before it, and times
count from when it was due: a server that stalls cannot slow down its own load.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from linkbound.errors import MissingExtra
from linkbound.evidence.types import Reason
from linkbound.serve.answer import read_answer
from linkbound.serve.arrivals import due_times_s, lengths_of, prompt_ids
from linkbound.serve.load_types import Arrival, Cell, Request, Target

try:
    import aiohttp
except ImportError as error:
    raise MissingExtra(
        "aiohttp is not installed.",
        why="The load client needs it.",
        hint="Install the extra: pip install 'linkbound[serve]'.",
    ) from error

# aiohttp's own 64 KiB stops reading until the buffer is drained: long answers then come in jerks.
_READ_BUFFER_BYTES = 4 * 1024 * 1024
_CONNECT_LIMIT_S = 10.0
_BODY_SHOWN = 300
# 100,000 tokens in events of a kilobyte: an answer beyond it does not end.
MAX_ANSWER_BYTES = 128 * 1024 * 1024


def run_cell(target: Target, cell: Cell) -> tuple[Request, ...]:
    """Send the whole cell and wait for its last answer; warm-up requests come first.

    Where every warm-up request failed, nothing else is sent.
    """
    collecting = gc.isenabled()
    # A collection stops every stream at once, for longer than a token takes.
    gc.disable()
    try:
        return asyncio.run(_Client(target, cell).run())
    finally:
        if collecting:
            gc.enable()


class _Client:
    """One cell under way."""

    def __init__(self, target: Target, cell: Cell) -> None:
        self._target = target
        self._cell = cell
        self._open = dict.fromkeys(target.urls, 0)
        self._origin = time.perf_counter()
        # Made before the clock starts: a prompt of 8,192 tokens takes longer than a token's gap.
        self._warm_up = [_body(target, cell, index, warm_up=True) for index in range(cell.warm_up)]
        self._bodies = [_body(target, cell, index) for index in range(cell.requests)]

    async def run(self) -> tuple[Request, ...]:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_note_connected)
        # A fresh connection each: llama-server closes kept ones without saying so, and a request
        # sent into a closed one fails (aiohttp#7297).
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(
            connector=connector,
            headers={"Content-Type": "application/json"},
            read_bufsize=_READ_BUFFER_BYTES,
            trace_configs=[trace],
            timeout=aiohttp.ClientTimeout(total=self._cell.limit_s, sock_connect=_CONNECT_LIMIT_S),
        ) as session:
            lives = [await self._send(session, index, None) for index in range(self._cell.warm_up)]
            warm = tuple(life.told(self._cell) for life in lives)
            if warm and not any(one.ok for one in warm):
                return warm
            self._origin = time.perf_counter()
            if self._cell.arrival is Arrival.CLOSED:
                counted = await self._closed(session)
            else:
                counted = await self._open_loop(session)
        return (*warm, *(life.told(self._cell) for life in counted))

    async def _open_loop(self, session: aiohttp.ClientSession) -> "Sequence[_Life]":
        sent = []
        for index, due_s in enumerate(due_times_s(self._cell)):
            await asyncio.sleep(due_s - self._now())
            sent.append(asyncio.create_task(self._send(session, index, due_s)))
        return await asyncio.gather(*sent)

    async def _closed(self, session: aiohttp.ClientSession) -> "Sequence[_Life]":
        waiting = iter(range(self._cell.requests))
        done: list[_Life] = []

        async def slot() -> None:
            for index in waiting:
                done.append(await self._send(session, index, self._now()))

        assert self._cell.concurrency is not None
        await asyncio.gather(*(slot() for _ in range(self._cell.concurrency)))
        return sorted(done, key=lambda life: life.index)

    async def _send(
        self, session: aiohttp.ClientSession, index: int, due_s: float | None
    ) -> "_Life":
        """One request from its due time to its end; None is a warm-up, due at once."""
        # The plain balancer: the replica with the fewest requests under way.
        url = min(self._open, key=lambda one: self._open[one])
        self._open[url] += 1
        life = _Life(index, url, due_s, self._now)
        body = (self._warm_up if due_s is None else self._bodies)[index]
        try:
            await life.follow(session, self._target.chat, body)
        finally:
            self._open[url] -= 1
        return life

    def _now(self) -> float:
        return time.perf_counter() - self._origin


def _body(target: Target, cell: Cell, index: int, *, warm_up: bool = False) -> bytes:
    ids = prompt_ids(cell, index, warm_up=warm_up)
    asked: dict[str, Any] = {
        "model": target.model,
        "max_tokens": lengths_of(cell, index)[1],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.chat:
        words = " ".join(f"w{one}" for one in ids)
        asked["messages"] = [{"role": "user", "content": words}]
    else:
        asked["prompt"] = ids
    return msgspec.json.encode({**asked, **target.extra})


async def _note_connected(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: object
) -> None:
    context.trace_request_ctx.note_connected()


class _Life:
    """What happens to one request. While it happens only reads and their times are kept."""

    def __init__(self, index: int, url: str, due_s: float | None, now: Callable[[], float]) -> None:
        self.index = index
        self._url = url
        self._due_s = due_s
        self._now = now
        self._begun_s = now()
        self._sent_s: float | None = None
        self._connected_s: float | None = None
        self._headers_s: float | None = None
        self._end_s: float | None = None
        self._status: int | None = None
        self._reads: list[tuple[float, bytes]] = []
        self._error: Reason | None = None

    def note_connected(self) -> None:
        self._connected_s = self._now()

    async def follow(self, session: aiohttp.ClientSession, chat: bool, body: bytes) -> None:
        """Send and read to the end; whatever goes wrong is this request's error."""
        path = "/v1/chat/completions" if chat else "/v1/completions"
        self._sent_s = self._now()
        try:
            async with session.post(
                self._url + path, data=body, trace_request_ctx=self
            ) as response:
                self._headers_s = self._now()
                self._status = response.status
                if response.status == 200:
                    await self._read(response)
                else:
                    text = (await response.text(errors="replace"))[:_BODY_SHOWN]
                    self._fail(f"http-{response.status}", f"HTTP {response.status}: {text}")
        except TimeoutError:
            self._fail("time-limit", "No end of the answer within the request's time limit.")
        except aiohttp.ClientConnectorError as error:
            self._fail("refused", f"No connection to {self._url}: {error.strerror or error}.")
        except aiohttp.ClientError as error:
            self._fail("disconnected", f"The connection ended in the middle: {error}."[:200])
        self._end_s = self._now()

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        held = 0
        while data := await response.content.readany():
            self._reads.append((self._now(), data))
            held += len(data)
            if held > MAX_ANSWER_BYTES:
                self._fail("endless-answer", f"More than {MAX_ANSWER_BYTES:,} bytes came.")
                return

    def _fail(self, code: str, text: str) -> None:
        self._error = self._error or Reason(code=code, text=text)

    def told(self, cell: Cell) -> Request:
        """The life as a value: what was read is understood only now, when no stream waits."""
        answer = read_answer(self._reads, self._url)
        prompt_tokens, output_tokens = lengths_of(cell, self.index)
        return Request(
            index=self.index,
            target=self._url,
            warm_up=self._due_s is None,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            scheduled_s=self._begun_s if self._due_s is None else self._due_s,
            sent_s=self._sent_s,
            connected_s=self._connected_s,
            headers_s=self._headers_s,
            chunks=answer.chunks,
            end_s=self._end_s,
            finish=answer.finish,
            status=self._status,
            used_prompt_tokens=answer.prompt_tokens,
            used_output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            error=self._error or answer.error,
        )
