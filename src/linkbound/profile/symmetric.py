"""The engine's own all-reduce of arm `p2p`: one-shot and two-shot over symmetric memory (L4).

Each GPU reads its peers' memory itself. Multicast variants are never called.
"""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

ONE_SHOT_LIMIT_BYTES = 32 * 1024
"""Up to here every rank reads all; above, each reduces its part first. Where the two cross on a
recorded pair of H200 (recorded/h200-pair, symm-allreduce.txt)."""
LIMIT_BYTES = 64 * 1024**2
"""Largest message that goes this way on two GPUs of this generation in vLLM; above: NCCL."""


class SymmetricAllReduce:
    """All-reduce over one group, from and to a buffer that the peers can read."""

    IMPLEMENTATIONS = ("one_shot", "two_shot")

    def __init__(self, group: dist.ProcessGroup, dtype: torch.dtype, device: torch.device) -> None:
        self._name = group.group_name
        elements = LIMIT_BYTES // dtype.itemsize
        self._buffer = symmetric_memory.empty(elements, dtype=dtype, device=device)
        symmetric_memory.rendezvous(self._buffer, self._name)

    def takes(self, size_bytes: int) -> bool:
        """Whether a message of this size goes this way: whole 16-byte words, and not too large."""
        return size_bytes <= LIMIT_BYTES and size_bytes % 16 == 0

    def implementation(self, size_bytes: int) -> str:
        """Which of the two a message of this size runs."""
        return "one_shot" if size_bytes <= ONE_SHOT_LIMIT_BYTES else "two_shot"

    def input(self, rows: int, columns: int) -> torch.Tensor:
        """Where the product to be reduced is written: saves a copy into the buffer."""
        return self._buffer[: rows * columns].view(rows, columns)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over the group of `x`, a view that `input` gave; holds until the next `input`."""
        flat = x.view(-1)
        if self.implementation(x.nbytes) == "one_shot":
            out: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce(flat, "sum", self._name)
        else:
            out = torch.ops.symm_mem.two_shot_all_reduce_(flat, "sum", self._name)
        return out.view_as(x)
