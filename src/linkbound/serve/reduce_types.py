"""An engine's own all-reduce timed by itself: what a rank is told and what it writes (L4)."""

from linkbound.links.types import Launch
from linkbound.values import Value

KIB = 1024
LIMIT_BYTES = 8 * KIB * KIB
"""From here on vLLM leaves its custom all-reduce for NCCL (custom_all_reduce.py, `max_size`)."""
SIZES = (*(8 * KIB * 2**power for power in range(10)), LIMIT_BYTES - 8 * KIB)
"""What it takes, up to one token of 8 KiB below the limit."""
NCCL_SIZES = (*SIZES[:-1], *(LIMIT_BYTES * 2**power for power in range(4)))
"""The NCCL communicator beside it takes any: to 64 MiB, 8,192 tokens of 8 KiB."""


class ReduceJob(Value, frozen=True, kw_only=True):
    """One rank's orders, the same for all."""

    ranks: int
    folder: str
    sizes: tuple[int, ...] = SIZES
    nccl_sizes: tuple[int, ...] = NCCL_SIZES
    samples: int = 20


class ReduceLine(Value, frozen=True, kw_only=True):
    """What a rank writes for one size, way and launch."""

    way: str
    """`engine`, or `engine_nccl`: the engine's NCCL communicator."""
    launch: Launch
    size_bytes: int
    samples_s: tuple[float, ...]
    """Seconds of one call: a window over the calls in it."""
    calls: int
    wrong: int
    """Elements of the sum that are not right, after all calls."""
    version: str
    """Of the engine."""
