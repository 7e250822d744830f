"""The seam to one GPU as collectives use it: memory, a stream, graphs, kernels, IPC (L4).

The real one is collective_device.CudaDevice; tests have a fake.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

Argument = ctypes.c_uint32 | ctypes.c_uint64 | ctypes.Structure
"""A kernel's argument: its C type is its own."""
Graph = tuple[int, int]
"""Handles of the executable graph and of what it was made from."""


class Device(Protocol):
    """All work goes to one stream of the device, in order; only `synchronize` waits."""

    ordinal: int
    """Its number among the visible devices."""
    stream: int

    def activate(self) -> None:
        """Make it the current device of this thread."""

    def allocate(self, size_bytes: int) -> int: ...

    def set_bytes(self, pointer: int, byte: int, size_bytes: int) -> None: ...

    def write(self, pointer: int, data: bytes) -> None: ...

    def read(self, pointer: int, size_bytes: int) -> bytes: ...

    def event(self) -> int: ...

    def record(self, event: int) -> None: ...

    def elapsed_s(self, start: int, end: int) -> float: ...

    def synchronize(self) -> None: ...

    def begin_capture(self) -> None: ...

    def end_capture(self) -> int:
        """What was captured: not yet launchable, since other devices may still be capturing."""

    def graph(self, captured: int) -> Graph: ...

    def launch_graph(self, graph: Graph) -> None: ...

    def drop_graph(self, graph: Graph) -> None: ...

    def kernel(self, file: str, name: str, defines: Mapping[str, int]) -> int:
        """A kernel of a source in `links/kernels`, built for this device."""

    def launcher(
        self,
        kernel: int,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        *,
        overlap: bool = False,
    ) -> Callable[[], None]:
        """A call that launches the kernel, all else prepared.

        `overlap`: the launch may begin before the kernel ahead of it ended (PDL).
        """

    def start_work(self) -> None:
        """Keep all multiprocessors busy beside the stream until `finish_work`, or for a second."""

    def still_works(self) -> bool: ...

    def finish_work(self) -> None: ...

    def export_memory(self, pointer: int) -> bytes: ...

    def import_memory(self, handle: bytes) -> int: ...
