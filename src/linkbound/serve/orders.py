"""What every child that holds an engine does alike: orders over loopback, one at a time (P2).

A batch, whose calls are timed here, or the fixed prompt. Nothing of the orders' own cost is inside
a timed call.
"""

import argparse
import http.server
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from linkbound.serve.batch_types import Batch, BatchTimes

_LOOPBACK = "127.0.0.1"
# What a fresh engine does in its first call (kernels compiled on use) belongs to no point.
_FIRST = Batch(batch=1, prompt_tokens=64, output_tokens=8, calls=1)


class BatchEngine(Protocol):
    """An engine as its child knows it."""

    def build(self, arguments: dict[str, Any]) -> None:
        """Make it; raises what the engine raises."""

    def call(self, prompts: list[list[int]], output_tokens: int) -> Sequence[Sequence[int]]:
        """The tokens that all prompts get at once, at temperature 0, exactly so many each."""

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to a prompt in the form of an OpenAI completion."""


def take_orders(
    engine: BatchEngine, title: str, more: Mapping[str, Callable[[Batch], Any]] | None = None
) -> None:
    """Build the engine, then take orders until a signal ends the process.

    `more`: orders beside a batch and the fixed prompt, by their path.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--engine", required=True, type=Path, help="JSON: what to build.")
    parser.add_argument("--port", required=True, type=int, help="Port on loopback.")
    asked = parser.parse_args()
    handler = _handler_of(engine, more or {})
    with _Orders((_LOOPBACK, asked.port), handler, bind_and_activate=False) as server:
        # The port is ours from now on, and refuses until the engine is there.
        server.server_bind()
        engine.build(json.loads(asked.engine.read_text()))
        engine.call(prompts_of(_FIRST, 0), _FIRST.output_tokens)
        server.server_activate()
        server.serve_forever()


class _Orders(http.server.HTTPServer):
    """One order at a time; one that fails ends the process: its engine may be dead."""

    def handle_error(self, *_request: object) -> None:
        """Called while the error is being handled; its words are the last of the log."""
        raise


def _handler_of(
    engine: BatchEngine, more: Mapping[str, Callable[[Batch], Any]]
) -> type[http.server.BaseHTTPRequestHandler]:
    """Answers to a GET (the engine is there), `/batch`, `/v1/completions` and what is more."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/batch":
                answer: Any = measure(engine, msgspec.json.decode(body, type=Batch))
            elif self.path in more:
                answer = more[self.path](msgspec.json.decode(body, type=Batch))
            else:
                answer = engine.complete(json.loads(body))
            self._answer(msgspec.json.encode(answer))

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def measure(engine: BatchEngine, asked: Batch) -> BatchTimes:
    """A call to warm up, then the timed ones. Raises RuntimeError where one fell short."""
    times: dict[int, list[float]] = {}
    number = 0
    for output_tokens, calls in asked.lengths:
        # Of the two of one length the later one is timed: the first is the call to warm up.
        times[output_tokens] = []
        for _ in range(calls):
            prompts = prompts_of(asked, number)
            number += 1
            began = time.perf_counter()
            answers = engine.call(prompts, output_tokens)
            times[output_tokens].append(time.perf_counter() - began)
            _check(answers, asked.batch, output_tokens)
    total = times[asked.output_tokens] if asked.output_tokens > 1 else []
    return BatchTimes(prefill_s=tuple(times[1]), total_s=tuple(total))


def prompts_of(asked: Batch, call: int) -> list[list[int]]:
    """New ones for every call: nothing of them was computed before."""
    low, high = asked.vocabulary
    draw = random.Random(f"batch {asked.seed} {asked.name} {call}")
    return [draw.choices(range(low, high), k=asked.prompt_tokens) for _ in range(asked.batch)]


def _check(answers: Sequence[Sequence[int]], batch: int, output_tokens: int) -> None:
    counts = [len(ids) for ids in answers]
    if counts != [output_tokens] * batch:
        raise RuntimeError(
            f"{batch} sequences of {output_tokens} tokens were asked, and {sorted(counts)} came."
        )


def completion(ids: Sequence[int], likely: Sequence[Mapping[int, float]]) -> dict[str, Any]:
    """The form of an OpenAI completion; tokens are named by their ids.

    `likely`: of each token the log-probabilities of what was likely there, itself among them.
    """
    logprobs = {
        "tokens": [_name(one) for one in ids],
        "token_logprobs": [found[one] for one, found in zip(ids, likely, strict=True)],
        "top_logprobs": [
            {_name(other): value for other, value in found.items()} for found in likely
        ],
    }
    return {"choices": [{"text": "", "token_ids": list(ids), "logprobs": logprobs}]}


def _name(token_id: int) -> str:
    return f"token_id:{token_id}"
