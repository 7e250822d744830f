"""GPUs, NCCL and processes that are not there: ranks are threads, memory is one dictionary.

A call takes `latency_s + bytes / bytes_per_s` of the fake clock. `spoil` makes one element wrong.
"""

import math
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from linkbound.links.live.collective_layout import Expectation, element, expected
from linkbound.links.live.nccl_library import NcclError
from linkbound.links.live.rows import LinkRow

LATENCY_S = 3e-4
BYTES_PER_S = 100e9
WAIT_S = 30.0
LARGEST = 3e38


@lru_cache(maxsize=4096)
def encode(value: float, size: int) -> bytes:
    """A call in place that is repeated outgrows the type, as it does on a GPU."""
    held = float(value) if value < LARGEST else math.inf
    bits = struct.unpack("<I", struct.pack("<f", held))[0]
    return struct.pack("<H", bits >> 16) if size == 2 else struct.pack("<I", bits)


@lru_cache(maxsize=4096)
def decode(data: bytes) -> float:
    bits = int.from_bytes(data, "little") << (16 if len(data) == 2 else 0)
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


class Fabric:
    """Memory and meetings of all ranks."""

    def __init__(self, ranks: int, element_bytes: int = 2) -> None:
        self.ranks = ranks
        self.element_bytes = element_bytes
        self.blocks: dict[int, bytearray] = {}
        self.lock = threading.Condition()
        self.calls: dict[int, dict[int, Callable[[], None]]] = {}
        self.finished: set[int] = set()
        self.values: dict[int, dict[int, Any]] = {}
        self.rows: list[LinkRow] = []
        self.begun: list[str] = []
        self.spoil: Callable[[str, int], bool] = lambda _operation, _call: False
        self.work_lasts_s = 5.0
        self.refuse: str | None = None
        self.devices: list[FakeDevice] = []

    def place(self, address: int) -> tuple[bytearray, int]:
        base = max(start for start in list(self.blocks) if start <= address)
        return self.blocks[base], address - base

    def get(self, address: int, size: int) -> bytes:
        block, at = self.place(address)
        assert at + size <= len(block), "read past the end of a buffer"
        return bytes(block[at : at + size])

    def put(self, address: int, data: bytes) -> None:
        block, at = self.place(address)
        assert at + len(data) <= len(block), "write past the end of a buffer"
        block[at : at + len(data)] = data

    def numbers(self, address: int, count: int) -> list[float]:
        size = self.element_bytes
        data = self.get(address, count * size)
        return [decode(data[at : at + size]) for at in range(0, len(data), size)]

    def put_numbers(self, address: int, values: Sequence[float]) -> None:
        self.put(address, b"".join(encode(value, self.element_bytes) for value in values))


class FakeDevice:
    """One GPU with its clock."""

    def __init__(self, fabric: Fabric, number: int) -> None:
        self.fabric = fabric
        self.ordinal = number
        self.owner = threading.get_ident()
        self.stream = number
        self.now_s = 0.0
        self.events: list[float] = []
        self.captured: list[Callable[[], None]] | None = None
        self.graphs: list[list[Callable[[], None]]] = []
        self.kernels: list[tuple[str, Mapping[str, int]]] = []
        self.work_until_s: float | None = None
        self.worked = 0
        self._next = (number + 1) << 40
        with fabric.lock:
            fabric.devices.append(self)

    def activate(self) -> None: ...

    def do(self, work: Callable[[], None]) -> None:
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    def allocate(self, size_bytes: int) -> int:
        address = self._next
        self._next += size_bytes + (1 << 20)
        with self.fabric.lock:
            self.fabric.blocks[address] = bytearray(size_bytes)
        return address

    def set_bytes(self, pointer: int, byte: int, size_bytes: int) -> None:
        self.do(lambda: self.fabric.put(pointer, bytes([byte]) * size_bytes))

    def write(self, pointer: int, data: bytes) -> None:
        self.fabric.put(pointer, data)

    def read(self, pointer: int, size_bytes: int) -> bytes:
        return self.fabric.get(pointer, size_bytes)

    def event(self) -> int:
        self.events.append(0.0)
        return len(self.events) - 1

    def record(self, event: int) -> None:
        self.events[event] = self.now_s

    def elapsed_s(self, start: int, end: int) -> float:
        return self.events[end] - self.events[start]

    def synchronize(self) -> None: ...

    def begin_capture(self) -> None:
        assert self.captured is None
        self.captured = []

    def end_capture(self) -> int:
        assert self.captured is not None
        self.graphs.append(self.captured)
        self.captured = None
        return len(self.graphs) - 1

    def graph(self, captured: int) -> tuple[int, int]:
        mine = [each for each in self.fabric.devices if each.owner == self.owner]
        assert all(each.captured is None for each in mine), "a capture is still open"
        return captured, captured

    def launch_graph(self, graph: tuple[int, int]) -> None:
        for work in self.graphs[graph[0]]:
            work()

    def drop_graph(self, graph: tuple[int, int]) -> None:
        assert self.graphs[graph[0]], "dropped twice"
        self.graphs[graph[0]] = []

    def kernel(self, file: str, name: str, defines: Mapping[str, int]) -> int:
        assert file.startswith("allreduce")
        self.kernels.append((name, defines))
        return len(self.kernels) - 1

    def launcher(
        self,
        kernel: int,
        blocks: int,
        threads: int,
        arguments: Sequence[Any],
        *,
        overlap: bool = False,
    ) -> Callable[[], None]:
        assert blocks > 0
        assert 0 < threads <= 1024
        name, _ = self.kernels[kernel]
        assert not overlap or name not in ("fill", "check"), "only our all-reduce waits inside"
        work = {"fill": self._fill, "check": self._check}.get(name)
        if work is not None:
            return lambda: self.do(lambda: work(*(each.value for each in arguments)))
        return lambda: self.do(lambda: self._reduce(name, arguments))

    def start_work(self) -> None:
        assert self.work_until_s is None
        self.work_until_s = self.now_s + self.fabric.work_lasts_s
        self.worked += 1

    def still_works(self) -> bool:
        assert self.work_until_s is not None
        return self.now_s < self.work_until_s

    def finish_work(self) -> None:
        self.work_until_s = None

    def export_memory(self, pointer: int) -> bytes:
        return pointer.to_bytes(64, "little")

    def import_memory(self, handle: bytes) -> int:
        return int.from_bytes(handle, "little")

    def _fill(self, buffer: int, count: int, seed: int, rank: int, below: int) -> None:
        values = [element(seed, rank, index, below) for index in range(count)]
        self.fabric.put_numbers(buffer, values)

    def _check(
        self,
        buffer: int,
        count: int,
        seed: int,
        below: int,
        source: int,
        summed: int,
        chunk: int,
        index: int,
        doublings: int,
        found: int,
    ) -> None:
        what = Expectation(
            source=source, summed=summed, chunk=chunk, index=index, doublings=doublings
        )
        size = self.fabric.element_bytes
        wrong = [
            at
            for at in range(count)
            if self.fabric.get(buffer + at * size, size)
            != encode(expected(what, seed, at, below), size)
        ]
        first = wrong[0] if wrong else 2**64 - 1
        self.fabric.put(found, struct.pack("<QQ", len(wrong), first))

    def _reduce(self, name: str, arguments: Sequence[Any]) -> None:
        """Our kernels, by what their arguments say: the peers' sources are known by address."""
        peers, result = arguments[0], arguments[1].value
        units = arguments[-3].value
        rank = arguments[-4].value
        pushed = name == "one_shot_push"
        source = peers.value if pushed else peers.at[rank]
        count = units * (8 if pushed else 16) // self.fabric.element_bytes
        reduce = AllReduce(self, source, result, count)
        meet(self.fabric, self.stream, reduce, [reduce])


class Call:
    """One rank's part in a collective: what it sends from, where it gets to."""

    def __init__(
        self, on: FakeDevice, source: int, result: int, count: int, extra: int = 0
    ) -> None:
        self.on, self.source, self.result, self.count, self.extra = on, source, result, count, extra

    def sent(self, _ranks: int) -> int:
        return self.count

    def got(self, _rank: int, _all_sent: list[list[float]]) -> list[float]:
        raise NotImplementedError


class AllReduce(Call):
    def got(self, _rank: int, all_sent: list[list[float]]) -> list[float]:
        return [sum(values) for values in zip(*all_sent, strict=True)]


class AllGather(Call):
    def got(self, _rank: int, all_sent: list[list[float]]) -> list[float]:
        return [value for sent in all_sent for value in sent]


class ReduceScatter(Call):
    def sent(self, ranks: int) -> int:
        return self.count * ranks

    def got(self, rank: int, all_sent: list[list[float]]) -> list[float]:
        total = [sum(values) for values in zip(*all_sent, strict=True)]
        return total[rank * self.count : (rank + 1) * self.count]


class Broadcast(Call):
    def got(self, _rank: int, all_sent: list[list[float]]) -> list[float]:
        return all_sent[self.extra]


class Exchanged(Call):
    """Sends and receives of one group: all to all, or a ring."""

    def __init__(self, on: FakeDevice) -> None:
        super().__init__(on, 0, 0, 0)
        self.sends: dict[int, tuple[int, int]] = {}
        self.receives: dict[int, tuple[int, int]] = {}


def meet(fabric: Fabric, rank: int, call: Call, here: list[Call]) -> None:
    """Deposit a call; the last rank to come does the work of all, the others wait."""
    with fabric.lock:
        number = call.on.__dict__.setdefault("met", 0)
        call.on.__dict__["met"] = number + 1
        waiting = fabric.calls.setdefault(number, {})
        waiting[rank] = call  # type: ignore[assignment]
        if len(waiting) == fabric.ranks:
            _work(fabric, number, [waiting[each] for each in range(fabric.ranks)])  # type: ignore[misc]
            fabric.finished.add(number)
            fabric.lock.notify_all()
        elif here and here[-1] is call:
            done = fabric.lock.wait_for(lambda: number in fabric.finished, WAIT_S)
            assert done, "a rank waits for ever"


def _work(fabric: Fabric, number: int, calls: list[Call]) -> None:
    if isinstance(calls[0], Exchanged):
        moved = {
            (rank, peer): fabric.numbers(*where)
            for rank, call in enumerate(calls)
            for peer, where in call.sends.items()  # type: ignore[attr-defined]
        }
        results = [
            (where[0], moved[peer, rank])
            for rank, call in enumerate(calls)
            for peer, where in call.receives.items()  # type: ignore[attr-defined]
        ]
    else:
        sent = [fabric.numbers(call.source, call.sent(fabric.ranks)) for call in calls]
        results = [(call.result, call.got(rank, sent)) for rank, call in enumerate(calls)]
    if fabric.spoil(type(calls[0]).__name__, number):
        results[-1][1][-1] += 1
    size = 0
    for where, values in results:
        fabric.put_numbers(where, values)
        size = max(size, len(values) * fabric.element_bytes)
    for call in calls:
        call.on.now_s += LATENCY_S + size / BYTES_PER_S


class FakeNccl:
    """NCCL as one process sees it, over the fabric; streams are the numbers of devices."""

    path = "libnccl.so.fake"
    version = "2.28.9"

    def __init__(self, fabric: Fabric, devices: Mapping[int, FakeDevice]) -> None:
        self._fabric = fabric
        self._devices = devices
        self._group: list[tuple[int, Call]] | None = None
        self.destroyed: list[int] = []

    def unique_id(self) -> bytes:
        return bytes(range(128))

    def init_rank(self, ranks: int, identity: bytes, rank: int) -> int:
        assert identity == bytes(range(128))
        assert ranks == self._fabric.ranks
        if self._fabric.refuse is not None:
            raise NcclError(self._fabric.refuse)
        return rank

    def destroy(self, communicator: int) -> None:
        self.destroyed.append(communicator)

    def start_group(self) -> None:
        assert self._group is None
        self._group = []

    def end_group(self) -> None:
        calls, self._group = self._group or [], None
        if calls and calls[0][1].on.captured is not None:
            # Each device replays its own part: two devices of one thread cannot wait in turn.
            for rank, call in calls:
                alone = [call] if len({each for each, _ in calls}) == 1 else []
                call.on.do(
                    lambda rank=rank, call=call, alone=alone: meet(self._fabric, rank, call, alone)
                )
            return
        merged = [call for _, call in calls]
        for rank, call in calls:
            meet(self._fabric, rank, call, merged)

    def all_reduce(
        self, source: int, result: int, count: int, communicator: int, stream: int
    ) -> Callable[[], None]:
        return self._issue(communicator, AllReduce(self._devices[stream], source, result, count))

    def all_gather(
        self, source: int, result: int, count: int, communicator: int, stream: int
    ) -> Callable[[], None]:
        return self._issue(communicator, AllGather(self._devices[stream], source, result, count))

    def reduce_scatter(
        self, source: int, result: int, count: int, communicator: int, stream: int
    ) -> Callable[[], None]:
        call = ReduceScatter(self._devices[stream], source, result, count)
        return self._issue(communicator, call)

    def broadcast(
        self, source: int, result: int, count: int, root: int, communicator: int, stream: int
    ) -> Callable[[], None]:
        call = Broadcast(self._devices[stream], source, result, count, root)
        return self._issue(communicator, call)

    def send(
        self, source: int, count: int, peer: int, communicator: int, stream: int
    ) -> Callable[[], None]:
        return lambda: self._exchanged(communicator, stream).sends.update({peer: (source, count)})

    def receive(
        self, result: int, count: int, peer: int, communicator: int, stream: int
    ) -> Callable[[], None]:
        where = {peer: (result, count)}
        return lambda: self._exchanged(communicator, stream).receives.update(where)

    def _exchanged(self, rank: int, stream: int) -> Exchanged:
        assert self._group is not None, "a send outside a group waits for its receive"
        for each, call in self._group:
            if each == rank and isinstance(call, Exchanged):
                return call
        call = Exchanged(self._devices[stream])
        self._group.append((rank, call))
        return call

    def _issue(self, rank: int, call: Call) -> Callable[[], None]:
        def issue() -> None:
            if self._group is not None:
                self._group.append((rank, call))
            else:
                call.on.do(lambda: meet(self._fabric, rank, call, [call]))

        return issue


class FakeExchange:
    """Processes that are threads of this one. Values go through JSON, as over a pipe."""

    def __init__(self, fabric: Fabric, process: int, processes: int) -> None:
        self.process = process
        self._fabric = fabric
        self._processes = processes
        self._number = 0

    def all(self, value: Any) -> list[Any]:
        number, self._number = self._number, self._number + 1
        with self._fabric.lock:
            given = self._fabric.values.setdefault(number, {})
            given[self.process] = msgspec.json.decode(msgspec.json.encode(value))
            self._fabric.lock.notify_all()
            came = self._fabric.lock.wait_for(lambda: len(given) == self._processes, WAIT_S)
            assert came, "a process waits for ever"
            return [given[each] for each in range(self._processes)]

    def begin(self, what: str) -> None:
        if self.process == 0:
            self._fabric.begun.append(what)

    def row(self, row: LinkRow) -> None:
        if self.process == 0:
            self._fabric.rows.append(row)
