"""GPUs as people state them, 2x24GiB or 24GiB,16GiB, to a machine of memories alone (S3)."""

import re

from msgspec.structs import replace

from linkbound.errors import UsageError
from linkbound.topology.types import Gpu, Machine
from linkbound.units import parse_size_bytes

MOST_GPUS = 64
LEAST_BYTES = 1024**2
_COUNT = re.compile(r"^\s*(\d{1,6})\s*x\s*(.+)$", re.IGNORECASE)


def parse_gpus(text: str) -> Machine:
    """A machine with the GPUs of `text`; how they are joined is unknown. Raises UsageError."""
    sizes = _sizes(text)
    return Machine(
        sources=(f"stated: {text}",),
        gpus=tuple(
            Gpu(key=f"GPU{index}", label=f"GPU{index}", memory_bytes=size)
            for index, size in enumerate(sizes)
        ),
        notes=("Only memories were stated: how the GPUs are joined is unknown.",),
    )


def state_memories(machine: Machine, text: str) -> Machine:
    """`machine` with the memories of `text` in place of what its sources say. Raises UsageError."""
    sizes = _sizes(text)
    if len(sizes) != len(machine.gpus):
        raise _wrong(f"'{text}' names {len(sizes)} GPUs, the machine has {len(machine.gpus)}.")
    return replace(
        machine,
        sources=(*machine.sources, f"stated: {text}"),
        gpus=tuple(
            replace(gpu, memory_bytes=size) for gpu, size in zip(machine.gpus, sizes, strict=True)
        ),
    )


def _sizes(text: str) -> list[int]:
    sizes: list[int] = []
    for part in text.split(","):
        found = _COUNT.match(part)
        count, size_text = (int(found[1]), found[2]) if found else (1, part)
        size_bytes = parse_size_bytes(size_text.strip())
        if size_bytes < LEAST_BYTES:
            raise _wrong(f"'{part.strip()}' is {size_bytes} bytes a GPU.")
        if not 1 <= count <= MOST_GPUS - len(sizes):
            raise _wrong(f"'{text}' names no GPU or more than {MOST_GPUS:,}.")
        sizes += [size_bytes] * count
    return sizes


def _wrong(seen: str) -> UsageError:
    return UsageError(seen, why="Each GPU needs its memory.", hint="Write 2x24GiB, or 24GiB,16GiB.")
