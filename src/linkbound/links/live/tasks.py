"""Each method of moving bytes as a task: who queues what on which stream (L1, L3, L5).

Push is queued on the GPU that holds the data, pull on the one that gets it; an SM writes into the
other GPU's memory or reads from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from linkbound.links.live.bench import Bench, Task
from linkbound.links.live.buffers import Buffers
from linkbound.links.live.cuda import Stream
from linkbound.links.types import Arm
from linkbound.values import Value

THREADS = 512
BLOCKS_PER_MULTIPROCESSOR = 2
"""With eight 16-byte loads in flight a thread: more of either gains nothing on an NVLink pair."""
_VECTOR_BYTES = 16
CHUNK_BYTES = 8 * 1024**2
"""Of pinned staging, on a PCIe 5 pair: at 256 MiB 2, 4, 8 and 16 MiB gave 46, 50, 51 and 51 GB/s;
smaller chunks wait for the other leg more often, larger ones fill the pipe later."""
LEAST_CHUNK_BYTES = 512 * 1024
CHUNKS_OF_COPY = 16
DEPTH = 3
"""Chunks in flight: a third hides the wait between legs, a fourth gains nothing."""
_GATED_CHUNKS = 32
"""A chunk queues six operations: far more would fill the queue behind a closed gate."""


class Method(StrEnum):
    """A way to move bytes."""

    CE_PUSH = "ce_push"
    CE_PULL = "ce_pull"
    SM_WRITE = "sm_write"
    SM_READ = "sm_read"
    DRIVER_PUSH = "driver_push"
    DRIVER_PULL = "driver_pull"
    PINNED = "pinned"
    PAGEABLE = "pageable"
    H2D = "h2d"
    D2H = "d2h"


class About(Value, frozen=True, kw_only=True):
    """What a method is."""

    implementation: str
    arm: Arm | None
    text: str


METHODS = {
    Method.CE_PUSH: About(
        implementation="copy_engine", arm=Arm.P2P, text="copy engine, queued by the source"
    ),
    Method.CE_PULL: About(
        implementation="copy_engine", arm=Arm.P2P, text="copy engine, queued by the destination"
    ),
    Method.SM_WRITE: About(
        implementation="sm", arm=Arm.P2P, text="kernel on the source stores to the destination"
    ),
    Method.SM_READ: About(
        implementation="sm", arm=Arm.P2P, text="kernel on the destination loads from the source"
    ),
    Method.DRIVER_PUSH: About(
        implementation="driver",
        arm=Arm.STAGED,
        text="peer access off: the driver stages by itself, queued by the source",
    ),
    Method.DRIVER_PULL: About(
        implementation="driver",
        arm=Arm.STAGED,
        text="peer access off: the driver stages by itself, queued by the destination",
    ),
    Method.PINNED: About(
        implementation="pinned",
        arm=Arm.STAGED,
        text="through pinned memory in chunks, both legs at once",
    ),
    Method.PAGEABLE: About(
        implementation="pageable", arm=Arm.STAGED, text="through ordinary memory, leg after leg"
    ),
    Method.H2D: About(implementation="pinned", arm=None, text="pinned memory to GPU"),
    Method.D2H: About(implementation="pinned", arm=None, text="GPU to pinned memory"),
}
PEER_METHODS = (Method.CE_PUSH, Method.CE_PULL, Method.SM_WRITE, Method.SM_READ)
STAGED_METHODS = (Method.DRIVER_PUSH, Method.DRIVER_PULL, Method.PINNED, Method.PAGEABLE)


@dataclass(frozen=True)
class Ends:
    """Where a task's bytes start and arrive, and which GPU fills and checks each end."""

    task: Task
    src_at: int
    dst_at: int
    src_device: int
    dst_device: int


def copy_task(
    bench: Bench,
    buffers: Buffers,
    method: Method,
    src: int | None,
    dst: int | None,
    size_bytes: int,
    *,
    lane: int = 0,
    node: int | None = None,
) -> Ends:
    """One copy of `size_bytes` from `src` to `dst` (ordinals; None is the host)."""
    if src is None or dst is None:
        return _host_leg(bench, buffers, method, src, dst, size_bytes, lane, node)
    src_at = buffers.device(src, "src", size_bytes, lane)
    dst_at = buffers.device(dst, "dst", size_bytes, lane)
    match method:
        case Method.PINNED:
            task = _pinned(bench, buffers, src, dst, src_at, dst_at, size_bytes, lane, node)
        case Method.PAGEABLE:
            task = _pageable(bench, buffers, src, dst, src_at, dst_at, size_bytes, lane, node)
        case Method.SM_WRITE | Method.SM_READ:
            on = bench.stream(src if method is Method.SM_WRITE else dst, _lane(lane))
            task = Task(
                first=on,
                last=on,
                enqueue=sm_copy(bench, on, dst_at, src_at, size_bytes),
                size_bytes=size_bytes,
            )
        case _:
            pushes = method in (Method.CE_PUSH, Method.DRIVER_PUSH)
            on = bench.stream(src if pushes else dst, _lane(lane))
            task = Task(
                first=on,
                last=on,
                enqueue=lambda: bench.cuda.copy_peer(dst_at, dst, src_at, src, size_bytes, on),
                size_bytes=size_bytes,
                gated=METHODS[method].arm is Arm.P2P,
            )
    return Ends(task=task, src_at=src_at, dst_at=dst_at, src_device=src, dst_device=dst)


def _lane(lane: int) -> int:
    """Lane 0 of a GPU is left to fills, checks and busy work."""
    return 2 * lane + 1


def sm_copy(
    bench: Bench, on: Stream, dst_at: int, src_at: int, size_bytes: int
) -> Callable[[], None]:
    """A copy by our kernel with as many blocks as the size fills, up to what the GPU holds."""
    blocks = blocks_for(bench, on.device, size_bytes)
    arguments = (dst_at, src_at, size_bytes)
    return lambda: bench.cuda.launch("copy_sm", on, blocks, THREADS, *arguments)


def blocks_for(bench: Bench, device: int, size_bytes: int) -> int:
    """Blocks of a kernel that goes over so many bytes on this GPU."""
    (facts,) = (one for one in bench.facts.values() if one.ordinal == device)
    most = facts.multiprocessors * BLOCKS_PER_MULTIPROCESSOR
    return max(1, min(most, -(-size_bytes // (_VECTOR_BYTES * THREADS))))


def chunk_bytes(size_bytes: int) -> int:
    """Chunk of pinned staging for a copy of this size: 1/16 of it within two limits."""
    wanted = -(-size_bytes // CHUNKS_OF_COPY)
    whole = -(-wanted // LEAST_CHUNK_BYTES) * LEAST_CHUNK_BYTES
    return min(CHUNK_BYTES, whole)


def _pinned(
    bench: Bench,
    buffers: Buffers,
    src: int,
    dst: int,
    src_at: int,
    dst_at: int,
    size_bytes: int,
    lane: int,
    node: int | None,
) -> Task:
    """Out of the source and into the destination at once, through a ring of chunks."""
    cuda = bench.cuda
    chunk = chunk_bytes(size_bytes)
    ring_at = buffers.pinned(node, f"ring {lane}", DEPTH * CHUNK_BYTES)
    out, back = bench.stream(src, _lane(lane)), bench.stream(dst, _lane(lane) + 1)
    filled = [bench.event(src, f"filled {lane} {n}") for n in range(DEPTH)]
    emptied = [bench.event(dst, f"emptied {lane} {n}") for n in range(DEPTH)]

    def enqueue() -> None:
        for number, offset in enumerate(range(0, size_bytes, chunk)):
            part, at = min(chunk, size_bytes - offset), number % DEPTH
            held_at = ring_at + at * CHUNK_BYTES
            # The first wait of all is for an event that was never recorded: none at all.
            cuda.wait(out, emptied[at])
            cuda.copy(held_at, src_at + offset, part, out)
            cuda.record(filled[at], out)
            cuda.wait(back, filled[at])
            cuda.copy(dst_at + offset, held_at, part, back)
            cuda.record(emptied[at], back)

    gated = -(-size_bytes // chunk) <= _GATED_CHUNKS
    return Task(first=out, last=back, enqueue=enqueue, size_bytes=size_bytes, gated=gated)


def _pageable(
    bench: Bench,
    buffers: Buffers,
    src: int,
    dst: int,
    src_at: int,
    dst_at: int,
    size_bytes: int,
    lane: int,
    node: int | None,
) -> Task:
    cuda = bench.cuda
    held_at = buffers.pageable(node, f"whole {lane}", size_bytes)
    out, back = bench.stream(src, _lane(lane)), bench.stream(dst, _lane(lane) + 1)
    landed = bench.event(src, f"landed {lane}")

    def enqueue() -> None:
        cuda.copy(held_at, src_at, size_bytes, out)
        cuda.record(landed, out)
        cuda.wait(back, landed)
        cuda.copy(dst_at, held_at, size_bytes, back)

    return Task(first=out, last=back, enqueue=enqueue, size_bytes=size_bytes, gated=False)


def _host_leg(
    bench: Bench,
    buffers: Buffers,
    method: Method,
    src: int | None,
    dst: int | None,
    size_bytes: int,
    lane: int,
    node: int | None,
) -> Ends:
    device = dst if src is None else src
    assert device is not None
    # One area for each GPU, direction and lane: legs that run together share none.
    host_at = buffers.pinned(node, f"{method} {device} {lane}", size_bytes)
    role = "dst" if src is None else "src"
    device_at = buffers.device(device, f"leg {role}", size_bytes, lane)
    src_at, dst_at = (host_at, device_at) if src is None else (device_at, host_at)
    on = bench.stream(device, _lane(lane) + (0 if src is None else 1))
    task = Task(
        first=on,
        last=on,
        enqueue=lambda: bench.cuda.copy(dst_at, src_at, size_bytes, on),
        size_bytes=size_bytes,
    )
    return Ends(task=task, src_at=src_at, dst_at=dst_at, src_device=device, dst_device=device)
