"""Memory that copies run between: areas on GPUs and in the host, made once and kept (L1, L5)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from linkbound.links.live.cuda import Cuda

_LEAST_BYTES = 4096


class Buffers:
    """Areas by place, role and slot. `node_cpus` are the processors of each NUMA node."""

    def __init__(self, cuda: Cuda, node_cpus: Mapping[int, frozenset[int]]) -> None:
        self._cuda = cuda
        self._node_cpus = node_cpus
        self._device: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._pinned: dict[tuple[int | None, str], tuple[int, int]] = {}
        self._pageable: dict[tuple[int | None, str], tuple[int, int]] = {}

    def device(self, device: int, role: str, size_bytes: int, slot: int = 0) -> int:
        """Address of an area of at least this size on a GPU."""
        key = (device, role, slot)
        address, held = self._device.get(key, (0, 0))
        if held < size_bytes:
            if held:
                self._cuda.free(device, address)
            held = max(size_bytes, _LEAST_BYTES)
            address = self._cuda.alloc(device, held)
            self._device[key] = (address, held)
        return address

    def pinned(self, node: int | None, role: str, size_bytes: int) -> int:
        """Address of pinned memory on a NUMA node (None: wherever this process runs)."""
        address, held = self._pinned.get((node, role), (0, 0))
        if held < size_bytes:
            held = max(size_bytes, _LEAST_BYTES)
            with self._on_node(node):
                address = self._cuda.host_alloc(held)
            self._pinned[node, role] = (address, held)
        return address

    def pageable(self, node: int | None, role: str, size_bytes: int) -> int:
        """Address of ordinary memory whose pages were first touched on a NUMA node."""
        address, held = self._pageable.get((node, role), (0, 0))
        if held < size_bytes:
            held = max(size_bytes, _LEAST_BYTES)
            with self._on_node(node):
                address = self._cuda.pageable_alloc(held)
            self._pageable[node, role] = (address, held)
        return address

    @contextmanager
    def _on_node(self, node: int | None) -> Iterator[None]:
        """First touch decides where pages lie: run on the node while memory is made."""
        cpus = self._node_cpus.get(node, frozenset()) if node is not None else frozenset()
        before = os.sched_getaffinity(0)
        if not cpus & before:
            yield
            return
        os.sched_setaffinity(0, cpus & before)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
