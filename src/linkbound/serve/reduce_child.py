"""vLLM's all-reduce without the rest of vLLM: `python -m linkbound.serve.reduce_child JOB` (L4).

Without a rank this process starts one of itself for each and waits; the ranks stay in its group, so
that its parent's time limit ends them too. A rank writes a line as soon as a size is timed.
"""

import argparse
import contextlib
import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from linkbound.links.types import Launch
from linkbound.serve.reduce_types import ReduceJob, ReduceLine

_POLL_S = 0.05
_SMALL_BYTES = 1024 * 1024
# A window of 250 us: both ranks have long been given the timed calls when the first of them ends.
_CALLS_SMALL, _CALLS_LARGE = 50, 10
_ELEMENT_BYTES = 2
# Small whole numbers: bf16 holds every sum of theirs exactly.
_VALUES = 7
_COMMUNICATORS = "vllm.distributed.device_communicators"


def main() -> int:
    """Lead, or be a rank. Returns 0, or the code of the first rank that failed."""
    parser = argparse.ArgumentParser(description="vLLM's own all-reduce, timed by itself.")
    parser.add_argument("job", type=Path, help="JSON: what to time.")
    parser.add_argument("--rank", type=int, help="Which rank this is; none: start them all.")
    asked = parser.parse_args()
    job = msgspec.json.decode(asked.job.read_bytes(), type=ReduceJob)
    if asked.rank is None:
        return _lead(asked.job, job.ranks)
    with (Path(job.folder) / f"rank{asked.rank}.jsonl").open("ab", buffering=0) as lines:
        for line in Rank(job, asked.rank).measure():
            lines.write(msgspec.json.encode(line) + b"\n")
    return 0


def _lead(job: Path, count: int) -> int:
    argv = [sys.executable, "-m", "linkbound.serve.reduce_child", str(job), "--rank"]
    ranks = [subprocess.Popen([*argv, str(number)]) for number in range(count)]
    codes: list[int | None] = [None]
    while None in codes and not any(codes):
        time.sleep(_POLL_S)
        codes = [rank.poll() for rank in ranks]
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.wait()
    return max(abs(code or 0) for code in codes)


class Rank:
    """One GPU: both ways of the engine to reduce, and the clock."""

    def __init__(self, job: ReduceJob, number: int) -> None:
        torch = importlib.import_module("torch")
        self._job, self._torch = job, torch
        self._device = torch.device(f"cuda:{number}")
        torch.cuda.set_device(self._device)
        store = (Path(job.folder) / "store").as_uri()
        torch.distributed.init_process_group(
            "gloo", init_method=store, rank=number, world_size=job.ranks
        )
        group = torch.distributed.group.WORLD
        own = importlib.import_module(f"{_COMMUNICATORS}.custom_all_reduce")
        nccl = importlib.import_module(f"{_COMMUNICATORS}.pynccl")
        self._version = str(importlib.import_module("vllm").__version__)
        self._own = own.CustomAllreduce(group=group, device=self._device)
        if self._own.disabled:
            raise SystemExit("vLLM's custom all-reduce is disabled here; its log says why.")
        self._nccl = nccl.PyNcclCommunicator(group=group, device=self._device)
        largest = max(*job.sizes, *job.nccl_sizes) // _ELEMENT_BYTES
        pattern = torch.arange(largest, device=self._device) % _VALUES
        self._source = (pattern + number).to(torch.bfloat16)
        added = sum(range(job.ranks))
        self._right = (pattern * job.ranks + added).to(torch.bfloat16)
        self._result = torch.empty_like(self._source)

    def measure(self) -> Iterator[ReduceLine]:
        """Every size of both ways, in a CUDA graph and launched one by one."""
        for size in (self._job.sizes[0], self._job.sizes[-1]):
            # Kernels are loaded by their first call, which must not be inside a capture.
            self._own_call(size, False)()
        self._torch.cuda.synchronize()
        # Addresses of a graph are exchanged when the capture of all of them ends.
        with self._own.capture():
            graphs = [self._graph(self._own_call(size, True), size) for size in self._job.sizes]
        for size, graph in zip(self._job.sizes, graphs, strict=True):
            yield self._line("engine", Launch.GRAPH, size, graph.replay)
        for size in self._job.sizes:
            yield self._eager("engine", size, self._own_call(size, False))
        for size in self._job.nccl_sizes:
            call = self._nccl_call(size)
            call()
            yield self._line("engine_nccl", Launch.GRAPH, size, self._graph(call, size).replay)
            yield self._eager("engine_nccl", size, call)

    def _own_call(self, size: int, in_graph: bool) -> Callable[[], Any]:
        source, result = self._views(size)
        # Outside of a graph the source is copied into a buffer that the peers know.
        return lambda: self._own.all_reduce(source, out=result, registered=in_graph)

    def _nccl_call(self, size: int) -> Callable[[], Any]:
        source, result = self._views(size)
        current = self._torch.cuda.current_stream
        return lambda: self._nccl.all_reduce(source, result, stream=current())

    def _views(self, size: int) -> tuple[Any, Any]:
        elements = size // _ELEMENT_BYTES
        return self._source[:elements], self._result[:elements]

    def _graph(self, call: Callable[[], Any], size: int) -> Any:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for _ in range(_calls(size)):
                call()
        return graph

    def _eager(self, way: str, size: int, call: Callable[[], Any]) -> ReduceLine:
        def window() -> None:
            for _ in range(_calls(size)):
                call()

        return self._line(way, Launch.EAGER, size, window)

    def _line(
        self, way: str, launch: Launch, size: int, window: Callable[[], object]
    ) -> ReduceLine:
        """A window before each timed one brings the ranks together: no start is waited for."""
        self._result.zero_()
        cuda, samples = self._torch.cuda, []
        for _ in range(self._job.samples + 1):
            began, ended = (cuda.Event(enable_timing=True) for _ in range(2))
            self._torch.distributed.barrier()
            window()
            began.record()
            window()
            ended.record()
            cuda.synchronize()
            samples.append(began.elapsed_time(ended) * 1e-3 / _calls(size))
        elements = size // _ELEMENT_BYTES
        wrong = (self._result[:elements] != self._right[:elements]).sum().item()
        return ReduceLine(
            way=way,
            launch=launch,
            size_bytes=size,
            samples_s=tuple(samples[1:]),
            calls=_calls(size),
            wrong=int(wrong),
            version=self._version,
        )


def _calls(size: int) -> int:
    return _CALLS_SMALL if size <= _SMALL_BYTES else _CALLS_LARGE


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
