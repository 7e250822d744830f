"""The seam to CUDA: the few calls that measuring needs, and who answers them (L1-L3).

Addresses, streams and events are plain values of whoever answers: the driver, or a fake in tests.
"""

import importlib
import importlib.util
from typing import Any, Protocol

from linkbound.errors import LinkboundError, MissingExtra
from linkbound.values import Value

DRIVER = "linkbound.links.live.driver:open_driver"
"""Who answers in earnest: module and function."""


class CudaError(LinkboundError):
    """A call of the driver failed: which, and its own word for it."""


class DeviceFacts(Value, frozen=True, kw_only=True):
    """One GPU as CUDA sees it."""

    ordinal: int
    uuid: str
    """`GPU-...`, as NVML prints it."""
    multiprocessors: int
    l2_bytes: int


class Stream(Value, frozen=True, kw_only=True):
    """A queue of work on one GPU."""

    device: int
    handle: Any


class Event(Value, frozen=True, kw_only=True):
    """A mark in a stream of this GPU."""

    device: int
    handle: Any


class Cuda(Protocol):
    """What measuring asks of CUDA. Every method raises CudaError; sizes are bytes."""

    def devices(self) -> tuple[DeviceFacts, ...]: ...
    def can_access(self, device: int, peer: int) -> bool: ...
    def set_access(self, device: int, peer: int, granted: bool) -> None: ...
    def alloc(self, device: int, size_bytes: int) -> int: ...
    def free(self, device: int, address: int) -> None: ...
    def host_alloc(self, size_bytes: int) -> int:
        """Pinned memory, mapped for every GPU."""

    def pageable_alloc(self, size_bytes: int) -> int:
        """Ordinary memory, every page touched once by the calling thread."""

    def stream(self, device: int) -> Stream: ...
    def event(self, device: int, *, blocking: bool = False) -> Event:
        """`blocking` makes `finish_event` sleep; such an event has no time."""

    def record(self, event: Event, stream: Stream) -> None: ...
    def wait(self, stream: Stream, event: Event) -> None: ...
    def happened(self, event: Event) -> bool: ...
    def finish_event(self, event: Event) -> None: ...
    def finish(self, stream: Stream) -> None: ...
    def elapsed_s(self, start: Event, end: Event) -> float:
        """Seconds between two marks on one GPU."""

    def copy(self, dst: int, src: int, size_bytes: int, stream: Stream) -> None: ...
    def copy_peer(
        self,
        dst: int,
        dst_device: int,
        src: int,
        src_device: int,
        size_bytes: int,
        stream: Stream,
    ) -> None: ...
    def launch(
        self, kernel: str, stream: Stream, blocks: int, threads: int, *arguments: int
    ) -> None:
        """A kernel of `links/kernels`; all of its arguments are 64-bit."""

    def write_word(self, address: int, value: int) -> None:
        """64 bits into pinned memory, at once."""

    def read_word(self, address: int) -> int: ...


def open_cuda(name: str = DRIVER) -> Cuda:
    """Whoever answers under this name. Raises MissingExtra, CudaError."""
    module, _, function = name.partition(":")
    opened: Cuda = getattr(importlib.import_module(module), function)()
    return opened


def require_gpu_extra() -> None:
    """Raises MissingExtra where the bindings are not installed; loads and initialises nothing."""
    if not _installed("cuda.bindings.driver"):
        raise MissingExtra(
            "cuda-bindings is not installed.",
            why="Links are measured through CUDA's driver.",
            hint="Install the extra: pip install 'linkbound[gpu]'.",
        )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
