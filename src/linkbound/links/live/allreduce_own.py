"""All-reduce by our own kernels over peer memory: the floor that the link permits (L4).

Every rank maps its peers' buffers by CUDA IPC; no library is between. The kernels are in
`links/kernels/allreduce.cu`.
"""

import ctypes
from collections.abc import Sequence

from linkbound.links.live.collective_buffers import RankBuffers
from linkbound.links.live.collective_device import Argument
from linkbound.links.live.collective_exchange import Exchange
from linkbound.links.live.collective_types import Cell, Placement
from linkbound.links.live.cuda import CudaError
from linkbound.links.types import Operation

IMPLEMENTATIONS = ("one_shot_push", "one_shot", "two_shot")
_FILE = "allreduce.cu"
_PACKET_BYTES = 8
_VECTOR_BYTES = 16
_LINE_BYTES = 16
"""A packet with its flags."""
PUSH_THREADS = 256
PUSH_BLOCKS = 64
SLOTS = 1024
"""Packets of a block: with 64 blocks, messages up to 512 KiB are pushed."""
PULL_THREADS = 512
PULL_BLOCKS = 64
MOST_PUSHED_BYTES = PUSH_BLOCKS * SLOTS * _PACKET_BYTES


class OwnCalls:
    """One rank's kernels, and where its peers' memory is mapped here."""

    def __init__(self, on: RankBuffers, exchange: Exchange, *, largest_bytes: int) -> None:
        self._on = on
        device = on.device
        device.activate()
        ranks = on.ranks
        sizes = {"RANKS": ranks, "SLOTS": SLOTS}
        self._kernels = {name: device.kernel(_FILE, name, sizes) for name in IMPLEMENTATIONS}
        inbox = self._zeroed(PUSH_BLOCKS * 2 * ranks * SLOTS * _LINE_BYTES)
        flags = self._zeroed(PULL_BLOCKS * 2 * ranks * 4)
        shares = device.allocate(largest_bytes)
        # Counters of one kernel never mix with those of another: each has its own flags to match.
        self._calls = {name: self._zeroed(PUSH_BLOCKS * 4) for name in ("push", "pull")}
        self._lost = self._zeroed(4)
        device.synchronize()
        own = (inbox, flags, shares, on.source)
        self._inbox, self._flags, self._shares, self._sources = self._mapped(own, exchange)

    def takes(self, cell: Cell) -> bool:
        """Whether a kernel of ours does this cell."""
        if cell.operation is not Operation.ALL_REDUCE or cell.placement is Placement.IN_PLACE:
            return False
        if cell.implementation == "one_shot_push":
            return cell.size_bytes <= MOST_PUSHED_BYTES and cell.size_bytes % _PACKET_BYTES == 0
        return cell.size_bytes % _VECTOR_BYTES == 0

    def issue(self, cell: Cell) -> None:
        """One all-reduce of this rank."""
        kernel = self._kernels[cell.implementation]
        blocks, threads = grid(cell)
        # A launch may overlap the last call: it waits for it inside, before it reads anything.
        self._on.device.launch(kernel, blocks, threads, self._arguments(cell), overlap=True)

    def require_arrival(self) -> None:
        """Raises CudaError where a kernel gave up waiting for a peer."""
        lost = int.from_bytes(self._on.device.read(self._lost, 4), "little")
        if lost:
            raise CudaError(
                f"Call {lost} of an all-reduce over peer memory waited in vain for a peer.",
                why="Writes of a peer do not arrive: an engine's own all-reduce would hang here.",
                hint="Run engines with their own all-reduce off; look at IOMMU, ACS and BAR1.",
            )

    def _arguments(self, cell: Cell) -> Sequence[Argument]:
        result = ctypes.c_uint64(self._on.result)
        rank = ctypes.c_uint32(self._on.rank)
        lost = ctypes.c_uint64(self._lost)
        if cell.implementation == "one_shot_push":
            packets = ctypes.c_uint32(cell.size_bytes // _PACKET_BYTES)
            calls = ctypes.c_uint64(self._calls["push"])
            source = ctypes.c_uint64(self._on.source)
            return source, result, self._inbox, rank, packets, calls, lost
        vectors = ctypes.c_uint32(cell.size_bytes // _VECTOR_BYTES)
        calls = ctypes.c_uint64(self._calls["pull"])
        if cell.implementation == "one_shot":
            return self._sources, result, self._flags, rank, vectors, calls, lost
        return self._sources, result, self._shares, self._flags, rank, vectors, calls, lost

    def _zeroed(self, size_bytes: int) -> int:
        pointer = self._on.device.allocate(size_bytes)
        self._on.device.set_bytes(pointer, 0, size_bytes)
        return pointer

    def _mapped(self, own: Sequence[int], exchange: Exchange) -> list[ctypes.Structure]:
        """For each of our buffers, the addresses of all ranks' as this process sees them."""
        handles = exchange.all([self._on.device.export_memory(each).hex() for each in own])
        tables = []
        for number, here in enumerate(own):
            at = [
                here
                if rank == self._on.rank
                else self._on.device.import_memory(bytes.fromhex(handles[rank][number]))
                for rank in range(self._on.ranks)
            ]
            tables.append(peers(at))
        return tables


def grid(cell: Cell) -> tuple[int, int]:
    """Blocks and threads of a cell's kernel: as few as still give every packet a thread."""
    if cell.implementation == "one_shot_push":
        packets = cell.size_bytes // _PACKET_BYTES
        return min(PUSH_BLOCKS, -(-packets // PUSH_THREADS)), PUSH_THREADS
    vectors = cell.size_bytes // _VECTOR_BYTES
    return min(PULL_BLOCKS, -(-vectors // PULL_THREADS)), PULL_THREADS


def peers(addresses: Sequence[int]) -> ctypes.Structure:
    """The kernel's `Peers`: one address a rank, passed by value."""

    class Peers(ctypes.Structure):
        _fields_ = [("at", ctypes.c_uint64 * len(addresses))]

    return Peers((ctypes.c_uint64 * len(addresses))(*addresses))
