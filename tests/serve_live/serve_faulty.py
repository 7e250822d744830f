"""An engine's program that fails in a stated way: started as llama_child is, with the same flags.

The model's name says how: `good`, `slow-start`, `never-ready`, `exits`, `hang`, `silent`, `killed`,
`status-500`, `half-500`, `no-json`, `not-events`, `cut`, `disconnects`, `engine-error`,
`endless-event`, `empty`, `cached`, `ignores-arm`; `hang-if-staged` hangs in that arm and is good in
all others, and so for every name.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time

HEAD = "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"
STARTED = time.monotonic()
GAP_S = 0.002


def event(text, finish=None):
    choice = {"text": text, "index": 0, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def usage(prompt, output, cached):
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


class Faulty:
    def __init__(self, fault):
        self.fault = fault
        self.asked = 0

    async def handle(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("GET"):
                await self.health(writer)
            else:
                length = int(head.lower().split("content-length:")[1].split()[0])
                await self.complete(writer, json.loads(await reader.readexactly(length)))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def health(self, writer):
        ready = {"slow-start": 0.4, "never-ready": 1e9}.get(self.fault, 0.0)
        if self.fault == "silent" and self.asked:
            await asyncio.sleep(3600)
        status = "200 OK" if time.monotonic() - STARTED >= ready else "503 Loading"
        writer.write(HEAD.format(status=status, kind="application/json").encode() + b"{}")
        await writer.drain()

    async def complete(self, writer, body):
        self.asked += 1
        if not body.get("stream"):
            self.asked -= 1
            writer.write(HEAD.format(status="200 OK", kind="application/json").encode())
            writer.write(json.dumps({"choices": [{"text": "same"}]}).encode())
            return
        if self.fault in ("hang", "silent"):
            await asyncio.sleep(3600)
        if self.fault == "status-500" or (self.fault == "half-500" and self.asked % 2 == 0):
            writer.write(HEAD.format(status="500 Oops", kind="text/plain").encode() + b"broken")
            return
        # A promised length makes an early end a broken connection, not just a short answer.
        promise = "text/event-stream" + "\r\nContent-Length: 100000" * (
            self.fault == "disconnects" and self.asked % 3 == 0
        )
        writer.write(HEAD.format(status="200 OK", kind=promise).encode())
        await self.stream(writer, body["max_tokens"], len(body["prompt"]))

    async def stream(self, writer, count, prompt):
        match self.fault:
            case "no-json":
                writer.write(event("a") + b"data: {not json\n\n")
                return
            case "not-events":
                writer.write(b"<html>\n\n<body>\n\n")
                return
            case "endless-event":
                writer.write(b"data: " + b"x" * (5 * 1024 * 1024))
                return
            case "engine-error":
                writer.write(b'data: {"error": {"message": "out of memory"}}\n\n')
                return
            case "empty":
                writer.write(b"data: [DONE]\n\n")
                return
        for number in range(count):
            if self.fault == "killed" and self.asked > 3:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "disconnects" and self.asked % 3 == 0 and number == 2:
                writer.transport.abort()
                return
            if self.fault == "cut" and number == 2:
                writer.write(b"data: {")
                return
            writer.write(event("ab", "length" if number == count - 1 else None))
            await writer.drain()
            await asyncio.sleep(GAP_S)
        writer.write(usage(prompt, count, prompt // 2 if self.fault == "cached" else 0))
        writer.write(b"data: [DONE]\n\n")


def speak_as_nccl(model):
    """A log as NCCL would write it: in the arm's path, but for `ignores-arm`."""
    file = os.environ.get("NCCL_DEBUG_FILE")
    if file is None:
        return
    off = os.environ.get("NCCL_P2P_DISABLE") == "1" and model != "ignores-arm"
    via = "SHM/direct/direct" if off else "P2P/CUMEM"
    lines = [
        f"h:1:1 [{src}] NCCL INFO Channel 00/0 : {src}[{src}] -> {dst}[{dst}] via {via}"
        for src, dst in ((0, 1), (1, 0))
    ]
    with open(file.replace("%h", "h").replace("%p", "1"), "w") as log:
        log.write("\n".join(lines) + "\n")


async def main():
    parser = argparse.ArgumentParser()
    # `llama_child --model good --port 1` and `vllm serve good --port 1` are both understood.
    parser.add_argument("--model", default=sys.argv[2])
    parser.add_argument("--port", type=int, required=True)
    asked, _ = parser.parse_known_args(sys.argv[3:])
    fault, condition, _ = asked.model.partition("-if-staged")
    if condition:
        asked.model = fault if os.environ.get("NCCL_P2P_DISABLE") == "1" else "good"
    speak_as_nccl(asked.model)
    if asked.model == "exits":
        print("no such model: exits")
        sys.exit(7)
    server = await asyncio.start_server(Faulty(asked.model).handle, "127.0.0.1", asked.port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
