"""Copies by which a `device_map` hands tensors from GPU to GPU: counted, timed, staged (P1, P2).

Accelerate's hooks send what a module is given to the module's GPU, all of it by one function. In
its place another one stands here where copies are to be staged, and while they are counted.
"""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from linkbound.serve.batch_types import HandOver

_TIMED = 5
"""Goes over all copies of a step, after one that makes its buffers."""
_SENDERS = ("accelerate.utils.operations", "accelerate.hooks")
"""Modules that hold the function by its name: nested values are sent by the first one's."""


class Copy(NamedTuple):
    """One tensor that went from a GPU to another one."""

    src: Any
    dst: Any
    shape: tuple[int, ...]
    dtype: Any


class StageCopies:
    """Use it once a process, before anything is computed."""

    def __init__(self, *, staged: bool) -> None:
        """`staged`: from now on every copy between GPUs goes through memory of the host."""
        self._torch = importlib.import_module("torch")
        self._modules = [importlib.import_module(name) for name in _SENDERS]
        self._plain: Any = self._modules[0].send_to_device
        self._copy = self._through_host if staged else self._direct
        self._seen: list[Copy] | None = None
        if staged:
            self._put(self._send)

    @contextmanager
    def counted(self) -> Iterator[list[Copy]]:
        """What is copied inside of the block, in its order."""
        before: Any = self._modules[0].send_to_device
        seen: list[Copy] = []
        self._seen = seen
        self._put(self._send)
        try:
            yield seen
        finally:
            self._put(before)
            self._seen = None

    def timed(self, copies: list[Copy]) -> HandOver:
        """These copies again, one after the other, while nothing else runs."""
        tensors = {
            one: self._torch.empty(one.shape, dtype=one.dtype, device=one.src) for one in copies
        }
        times = [self._once(copies, tensors) for _ in range(1 + _TIMED)]
        return HandOver(
            tensors=len(copies),
            size_bytes=sum(tensors[one].nbytes for one in copies),
            time_s=median(times[1:]),
        )

    def _once(self, copies: list[Copy], tensors: dict[Copy, Any]) -> float:
        gpus = {gpu for one in copies for gpu in (one.src, one.dst)}
        self._wait(gpus)
        began = time.perf_counter()
        for one in copies:
            self._copy(tensors[one], one.dst)
        self._wait(gpus)
        return time.perf_counter() - began

    def _wait(self, gpus: set[Any]) -> None:
        for gpu in gpus:
            self._torch.cuda.synchronize(gpu)

    def _put(self, send: Callable[..., Any]) -> None:
        for module in self._modules:
            vars(module)["send_to_device"] = send

    def _send(
        self, value: Any, device: Any, non_blocking: bool = False, skip_keys: Any = None
    ) -> Any:
        """What accelerate calls: other values than tensors come back here part by part."""
        if isinstance(value, self._torch.Tensor):
            dst = self._torch.device(device)
            if value.device.type == dst.type == "cuda" and value.device != dst:
                if self._seen is not None:
                    self._seen.append(Copy(value.device, dst, tuple(value.shape), value.dtype))
                return self._copy(value, dst)
        return self._plain(value, device, non_blocking=non_blocking, skip_keys=skip_keys)

    def _direct(self, tensor: Any, dst: Any) -> Any:
        """As accelerate does it: the driver copies directly where it grants peer access."""
        return tensor.to(dst)

    def _through_host(self, tensor: Any, dst: Any) -> Any:
        """Through pinned memory. The receiver's stream waits for the sender's, no thread does."""
        host = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        sender = self._torch.cuda.current_stream(tensor.device)
        self._torch.cuda.current_stream(dst).wait_stream(sender)
        return host.to(dst, non_blocking=True)
