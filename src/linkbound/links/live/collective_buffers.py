"""A rank's two buffers on its GPU: filled with its pattern, and checked by the GPU that owns them.

Nothing is timed before its result was found right here (L6).
"""

import ctypes
from collections.abc import Sequence

from linkbound.links.live.collective_layout import (
    Layout,
    expectation,
    has_in_place,
    layout,
    modulus,
)
from linkbound.links.live.collective_seam import Argument, Device
from linkbound.links.live.collective_types import DTYPE_BYTES, Cell, Placement
from linkbound.links.types import Operation

_FILE = "allreduce_pattern.cu"
_THREADS = 256
_MOST_BLOCKS = 1024
_ALL_ONES = 0xFF
"""What a result holds before: no pattern has it (NaN in both types)."""
_RESULT_BYTES = 16


class RankBuffers:
    """One rank of this process: its GPU, its buffers, its share of the checking."""

    def __init__(
        self, device: Device, *, rank: int, ranks: int, largest_bytes: int, dtype: str
    ) -> None:
        self.device = device
        self.rank = rank
        self.ranks = ranks
        self.element_bytes = DTYPE_BYTES[dtype]
        self._below = modulus(ranks)
        device.activate()
        self.source = device.allocate(largest_bytes)
        self.result = device.allocate(largest_bytes)
        self._found = device.allocate(_RESULT_BYTES)
        sizes = {"ELEMENT_BYTES": self.element_bytes}
        self._fill = device.kernel(_FILE, "fill", sizes)
        self._check = device.kernel(_FILE, "check", sizes)

    def layout(self, cell: Cell) -> Layout:
        """Counts and offsets of this rank, in elements."""
        elements = cell.size_bytes // self.element_bytes
        return layout(cell.operation, rank=self.rank, ranks=self.ranks, elements=elements)

    def addresses(self, cell: Cell) -> tuple[int, int]:
        """Where the cell's data is sent from and where its result goes."""
        if cell.placement is Placement.OUT_OF_PLACE:
            return self.source, self.result
        shape = self.layout(cell)
        return (
            self.result + shape.send_offset * self.element_bytes,
            self.result + shape.receive_offset * self.element_bytes,
        )

    def prepare(self, cell: Cell, seed: int) -> None:
        """Spoil the result, then write this rank's pattern: in place the order matters."""
        source, result = self.addresses(cell)
        shape = self.layout(cell)
        self.device.activate()
        # In place the result of the gathering operations is the whole buffer around the source.
        if cell.placement is Placement.OUT_OF_PLACE or cell.operation is Operation.ALL_GATHER:
            self.device.set_bytes(result, _ALL_ONES, shape.received * self.element_bytes)
        arguments = (
            ctypes.c_uint64(source),
            ctypes.c_uint64(shape.sent),
            ctypes.c_uint32(seed),
            ctypes.c_uint32(self.rank),
            ctypes.c_uint32(self._below),
        )
        self._launch(self._fill, shape.sent, arguments)

    def wrong(self, cell: Cell, seed: int, doublings: int, at: int) -> tuple[int, int | None]:
        """Wrong elements of the result at address `at`, and the offset in bytes of the first.

        Each value must have been doubled `doublings` times by calls on the result of others.
        """
        shape = self.layout(cell)
        what = expectation(cell.operation, rank=self.rank, ranks=self.ranks, share=shape.count)
        self.device.activate()
        self.device.set_bytes(self._found, 0, 8)
        self.device.set_bytes(self._found + 8, _ALL_ONES, 8)
        arguments = (
            ctypes.c_uint64(at),
            ctypes.c_uint64(shape.received),
            ctypes.c_uint32(seed),
            ctypes.c_uint32(self._below),
            ctypes.c_uint32(what.source),
            ctypes.c_uint32(what.summed),
            ctypes.c_uint64(what.chunk),
            ctypes.c_uint64(what.index),
            ctypes.c_uint32(doublings),
            ctypes.c_uint64(self._found),
        )
        self._launch(self._check, shape.received, arguments)
        found = self.device.read(self._found, _RESULT_BYTES)
        count = int.from_bytes(found[:8], "little")
        first = int.from_bytes(found[8:], "little")
        return count, first * self.element_bytes if count else None

    def _launch(self, kernel: int, elements: int, arguments: Sequence[Argument]) -> None:
        blocks = min(_MOST_BLOCKS, -(-elements // _THREADS))
        if elements:
            self.device.launcher(kernel, blocks, _THREADS, arguments)()


def runs_in_place(cell: Cell) -> bool:
    """Whether the cell's placement exists for its operation."""
    return cell.placement is Placement.OUT_OF_PLACE or has_in_place(cell.operation)


def repeatable(cell: Cell) -> bool:
    """Whether a second call finds the same data: in place, a sum was added to itself."""
    return cell.placement is Placement.OUT_OF_PLACE or cell.operation in (
        Operation.ALL_GATHER,
        Operation.BROADCAST,
    )
