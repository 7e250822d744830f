"""All-reduce by torch's symmetric memory, where torch is installed: one_shot and two_shot (L4).

Only its kernels are used, on our stream; torch's group is a meeting over gloo and moves no data.
NVLink multicast stays off (TORCH_SYMM_MEM_DISABLE_MULTICAST).
"""

import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from linkbound.errors import MissingExtra
from linkbound.links.live.collective_buffers import RankBuffers
from linkbound.links.live.collective_exchange import Exchange
from linkbound.links.live.collective_types import Cell, Placement
from linkbound.links.live.cuda import CudaError
from linkbound.links.live.nccl_library import Call
from linkbound.links.types import Operation

VARIANT = "torch"
WAYS = (("one_shot", VARIANT), ("two_shot", VARIANT))
GUARD = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
_ALIGNED_BYTES = 16
_ELEMENT_BYTES = 2


class SymmCalls:
    """One rank's symmetric buffer; its address takes the place of the rank's own source."""

    def __init__(self, on: RankBuffers, exchange: Exchange, *, largest_bytes: int) -> None:
        if os.environ.get(GUARD) != "1":
            raise CudaError(
                f"{GUARD} is not 1 in this process.",
                why="torch would ask for NVLink multicast, which is only used where it is allowed.",
                hint="Start the job through run_collectives.",
            )
        self._torch = _torch()
        ordinal = on.device.ordinal
        self._torch.cuda.set_device(ordinal)
        self._group = self._meet(on, exchange)
        memory = importlib.import_module("torch.distributed._symmetric_memory")
        elements = largest_bytes // _ELEMENT_BYTES
        where = {"dtype": self._torch.bfloat16, "device": f"cuda:{ordinal}"}
        self._source = memory.empty(elements, **where)
        self._result = self._torch.empty(elements, **where)
        memory.rendezvous(self._source, self._group)
        on.source, on.result = self._source.data_ptr(), self._result.data_ptr()
        self._stream = self._torch.cuda.ExternalStream(on.device.stream, device=ordinal)
        self._torch.cuda.set_stream(self._stream)

    def takes(self, cell: Cell) -> bool:
        """Whether torch has a kernel for this cell."""
        return (
            cell.operation is Operation.ALL_REDUCE
            and cell.placement is Placement.OUT_OF_PLACE
            and cell.size_bytes % _ALIGNED_BYTES == 0
        )

    def most_calls(self, most: int) -> int:
        """The same call is repeated: no sum grows past the type's end."""
        return most

    def batch(self, cell: Cell, calls: int) -> Call:
        """`calls` all-reduces of the same data, each after the last."""
        operations = self._torch.ops.symm_mem
        call = getattr(operations, f"{cell.implementation}_all_reduce_out")
        elements = cell.size_bytes // _ELEMENT_BYTES
        source, result = self._source[:elements], self._result[:elements]

        def issue() -> None:
            for _ in range(calls):
                call(source, "sum", self._group, result)

        return issue

    def outcome(self, on: RankBuffers, cell: Cell, calls: int) -> tuple[int, int] | None:
        """The two-shot kernel leaves its rank's share of the sum in the source: a second call
        finds other data, and only the first can be checked.
        """
        repeats = cell.implementation == "one_shot"
        return (on.result, 0) if repeats or calls == 1 else None

    def close(self) -> None:
        """Leave torch's group."""
        self._torch.distributed.destroy_process_group()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _meet(self, on: RankBuffers, exchange: Exchange) -> str:
        """The name of torch's group over the same ranks, met through a file."""
        folder = tempfile.mkdtemp(prefix="linkbound-torch-") if exchange.process == 0 else ""
        self._folder = Path(exchange.all(folder)[0])
        store = self._folder / "store"
        self._torch.distributed.init_process_group(
            "gloo", init_method=store.as_uri(), rank=on.rank, world_size=on.ranks
        )
        name: str = self._torch.distributed.group.WORLD.group_name
        return name


def _torch() -> Any:
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.distributed")
    except ImportError as error:
        raise MissingExtra(
            f"torch cannot be imported ({error}).",
            why="Symmetric memory is torch's.",
            hint="Install torch, or leave this family out.",
        ) from error
    return torch
