"""All-reduce by our own kernels over peer memory: the floor that the link permits (L4).

Every rank maps its peers' buffers by CUDA IPC; no library is between. The kernels are in
`links/kernels/allreduce.cu`.
"""

import ctypes
from collections.abc import Sequence

from linkbound.links.live.collective_buffers import RankBuffers
from linkbound.links.live.collective_exchange import Exchange
from linkbound.links.live.collective_layout import chain_doublings
from linkbound.links.live.collective_seam import Argument
from linkbound.links.live.collective_types import Cell, Placement
from linkbound.links.live.cuda import CudaError
from linkbound.links.live.nccl_library import Call
from linkbound.links.types import Operation

PUSH, PUSH_APART, PULL = "push", "push, launches apart", "pull"
WAYS = (("one_shot", PUSH), ("one_shot", PUSH_APART), ("one_shot", PULL), ("two_shot", PULL))
"""Implementation and variant of every kernel. `launches apart`: each launch waits for the end of
the call before, as with kernels that know nothing of each other."""
_KERNELS = ("one_shot_push", "one_shot", "two_shot")
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
        self._kernels = {name: device.kernel(_FILE, name, sizes) for name in _KERNELS}
        inbox = self._zeroed(PUSH_BLOCKS * 2 * ranks * SLOTS * _LINE_BYTES)
        flags = self._zeroed(PULL_BLOCKS * 2 * ranks * 4)
        shares = device.allocate(largest_bytes)
        # Counters of one kernel never mix with those of another: each has its own flags to match.
        self._calls = {name: self._zeroed(PUSH_BLOCKS * 4) for name in ("push", "pull")}
        self._lost = self._zeroed(4)
        device.synchronize()
        own = (inbox, flags, shares, on.source, on.result)
        maps = self._mapped(own, exchange)
        self._inbox, self._flags, self._shares, self._there, self._back = maps

    def takes(self, cell: Cell) -> bool:
        """Whether a kernel of ours does this cell."""
        if cell.operation is not Operation.ALL_REDUCE or cell.placement is Placement.IN_PLACE:
            return False
        if cell.variant == PULL:
            return cell.size_bytes % _VECTOR_BYTES == 0
        return cell.size_bytes <= MOST_PUSHED_BYTES and cell.size_bytes % _PACKET_BYTES == 0

    def most_calls(self, most: int) -> int:
        """As many as the exact result of a chain allows."""
        allowed = [
            calls
            for calls in range(1, most + 1)
            if chain_doublings(self._on.ranks, calls) is not None
        ]
        return max(allowed) if self._chained() else most

    def batch(self, cell: Cell, calls: int) -> Call:
        """`calls` all-reduces, each on the result of the last: to and fro between two buffers.

        The peers meet before they read, so that a buffer is not written before they have read it.
        """
        to = self._launcher(cell, turned=False)
        turns = (to, self._launcher(cell, turned=True) if self._chained() else to)

        def issue() -> None:
            for call in range(calls):
                turns[call % 2]()

        return issue

    def outcome(self, on: RankBuffers, _cell: Cell, calls: int) -> tuple[int, int] | None:
        """Where the result of so many calls stands, and how often it was doubled."""
        if not self._chained():
            return on.result, 0
        doublings = chain_doublings(on.ranks, calls)
        at = on.result if calls % 2 else on.source
        return None if doublings is None else (at, doublings)

    def require_arrival(self) -> None:
        """Raises CudaError where a kernel gave up waiting for a peer."""
        lost = int.from_bytes(self._on.device.read(self._lost, 4), "little")
        if lost:
            raise CudaError(
                f"Call {lost} of an all-reduce over peer memory waited in vain for a peer.",
                why="Writes of a peer do not arrive: an engine's own all-reduce would hang here.",
                hint="Run engines with their own all-reduce off; look at IOMMU, ACS and BAR1.",
            )

    def _chained(self) -> bool:
        """Sums of sums stay exact for a power of 2 of ranks; others do the same call again."""
        return chain_doublings(self._on.ranks, 2) is not None

    def _launcher(self, cell: Cell, *, turned: bool) -> Call:
        kernel = _KERNELS[0] if cell.variant != PULL else cell.implementation
        # Where a launch may overlap the last call, it waits for it inside, before it reads.
        return self._on.device.launcher(
            self._kernels[kernel],
            *grid(cell),
            self._arguments(cell, turned),
            overlap=cell.variant != PUSH_APART,
        )

    def _arguments(self, cell: Cell, turned: bool) -> Sequence[Argument]:
        source, result = self._on.source, self._on.result
        if turned:
            source, result = result, source
        to = ctypes.c_uint64(result)
        rank = ctypes.c_uint32(self._on.rank)
        lost = ctypes.c_uint64(self._lost)
        if cell.variant != PULL:
            packets = ctypes.c_uint32(cell.size_bytes // _PACKET_BYTES)
            calls = ctypes.c_uint64(self._calls["push"])
            return ctypes.c_uint64(source), to, self._inbox, rank, packets, calls, lost
        sources = self._back if turned else self._there
        vectors = ctypes.c_uint32(cell.size_bytes // _VECTOR_BYTES)
        calls = ctypes.c_uint64(self._calls["pull"])
        if cell.implementation == "one_shot":
            return sources, to, self._flags, rank, vectors, calls, lost
        return sources, to, self._shares, self._flags, rank, vectors, calls, lost

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
    if cell.variant != PULL:
        packets = cell.size_bytes // _PACKET_BYTES
        return min(PUSH_BLOCKS, -(-packets // PUSH_THREADS)), PUSH_THREADS
    vectors = cell.size_bytes // _VECTOR_BYTES
    return min(PULL_BLOCKS, -(-vectors // PULL_THREADS)), PULL_THREADS


def peers(addresses: Sequence[int]) -> ctypes.Structure:
    """The kernel's `Peers`: one address a rank, passed by value."""

    class Peers(ctypes.Structure):
        _fields_ = [("at", ctypes.c_uint64 * len(addresses))]

    return Peers((ctypes.c_uint64 * len(addresses))(*addresses))
