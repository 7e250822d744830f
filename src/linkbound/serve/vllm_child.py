"""vLLM's `LLM` in a process of its own: `python -m linkbound.serve.vllm_child` (P2).

Built once; then orders come over loopback, one at a time: a batch, whose calls are timed here, or
the fixed prompt. Nothing of the orders' own cost is inside a timed call.
"""

import argparse
import http.server
import json
import random
import time
from pathlib import Path
from typing import Any

import msgspec

from linkbound.errors import MissingExtra
from linkbound.serve.batch_types import Batch, BatchTimes

_LOOPBACK = "127.0.0.1"
# What a fresh engine does in its first call (kernels compiled on use) belongs to no point.
_FIRST = Batch(batch=1, prompt_tokens=64, output_tokens=8, calls=1)


def main() -> None:
    """Build the engine, then take orders until a signal ends the process."""
    parser = argparse.ArgumentParser(description="Whole batches through vLLM's LLM.")
    parser.add_argument("--engine", required=True, type=Path, help="JSON: arguments of LLM.")
    parser.add_argument("--port", required=True, type=int, help="Port on loopback.")
    asked = parser.parse_args()
    engine = Engine()
    with Orders((_LOOPBACK, asked.port), handler_of(engine), bind_and_activate=False) as server:
        # The port is ours from now on, and refuses until the engine is there.
        server.server_bind()
        engine.build(json.loads(asked.engine.read_text()))
        engine.call(_prompts(_FIRST, 0), _FIRST.output_tokens)
        server.server_activate()
        server.serve_forever()


class Orders(http.server.HTTPServer):
    """One order at a time; one that fails ends the process: its engine may be dead."""

    def handle_error(self, *_request: object) -> None:
        """Called while the error is being handled; its words are the last of the log."""
        raise


class Engine:
    """What this process holds, once it is built."""

    def build(self, arguments: dict[str, Any]) -> None:
        """Raises MissingExtra where vLLM is not here, and what vLLM raises."""
        try:
            import vllm
        except ImportError as error:
            raise MissingExtra(
                f"vLLM cannot be imported ({error}).",
                why="Batches go through it.",
                hint="Name an interpreter that has it with --program, or put it on PYTHONPATH.",
            ) from error
        self._vllm: Any = vllm
        self._llm: Any = vllm.LLM(**arguments)

    def call(self, prompts: list[list[int]], output_tokens: int, **more: Any) -> list[Any]:
        """All prompts at once, at temperature 0, to exactly so many tokens each."""
        parameters = self._vllm.SamplingParams(
            temperature=0.0,
            ignore_eos=True,
            max_tokens=output_tokens,
            detokenize=False,
            **more,
        )
        given = [{"prompt_token_ids": ids} for ids in prompts]
        return list(self._llm.generate(given, parameters, use_tqdm=False))

    def measure(self, asked: Batch) -> BatchTimes:
        """A call to warm up, then the timed ones. Raises RuntimeError where one fell short."""
        times: dict[int, list[float]] = {}
        number = 0
        for output_tokens, calls in asked.lengths:
            # Of the two of one length the later one is timed: the first is the call to warm up.
            times[output_tokens] = []
            for _ in range(calls):
                prompts = _prompts(asked, number)
                number += 1
                began = time.perf_counter()
                outputs = self.call(prompts, output_tokens)
                times[output_tokens].append(time.perf_counter() - began)
                _check(outputs, asked.batch, output_tokens)
        total = times[asked.output_tokens] if asked.output_tokens > 1 else []
        return BatchTimes(prefill_s=tuple(times[1]), total_s=tuple(total))

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The fixed prompt, in the form of an OpenAI completion; tokens are named by their ids."""
        top = asked.get("logprobs")
        (request,) = self.call([asked["prompt"]], asked["max_tokens"], logprobs=top)
        (output,) = request.outputs
        ids = list(output.token_ids)
        lists = output.logprobs or []
        logprobs = {
            "tokens": [_name(one) for one in ids],
            "token_logprobs": [found[one].logprob for one, found in zip(ids, lists, strict=True)],
            "top_logprobs": [
                {_name(other): value.logprob for other, value in found.items()} for found in lists
            ],
        }
        return {"choices": [{"text": "", "token_ids": ids, "logprobs": logprobs}]}


def _name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _prompts(asked: Batch, call: int) -> list[list[int]]:
    """New ones for every call: nothing of them was computed before."""
    low, high = asked.vocabulary
    draw = random.Random(f"batch {asked.seed} {asked.name} {call}")
    return [draw.choices(range(low, high), k=asked.prompt_tokens) for _ in range(asked.batch)]


def _check(outputs: list[Any], batch: int, output_tokens: int) -> None:
    counts = [len(one.outputs[0].token_ids) for one in outputs]
    if counts != [output_tokens] * batch:
        raise RuntimeError(
            f"{batch} sequences of {output_tokens} tokens were asked, and {sorted(counts)} came."
        )


def handler_of(engine: Engine) -> type[http.server.BaseHTTPRequestHandler]:
    """Answers to a GET (the engine is there), `/batch` and `/v1/completions`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/batch":
                answer: Any = engine.measure(msgspec.json.decode(body, type=Batch))
            else:
                answer = engine.complete(json.loads(body))
            self._answer(msgspec.json.encode(answer))

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


if __name__ == "__main__":
    main()
