"""A bench: streams, events and a gate on the GPUs of one child, and the time of work on them.

Behind the gate all work is queued first and then released at once, so that no sample contains the
time of queueing (notes: a kernel polls a word of pinned memory). L1-L3.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from linkbound.links.live.cuda import Cuda, DeviceFacts, Event, Stream
from linkbound.values import Value

GATE_LIMIT_NS = 2_000_000_000
"""A gate that was not released by then ends itself; its sample is thrown away."""
_WORDS_BYTES = 4096
_ENDED_OFFSET = 64
_WORK_OFFSET = 128


@dataclass(frozen=True)
class Task:
    """Work that is timed: `enqueue` queues one call; it begins on `first`, and ends on `last`."""

    first: Stream
    last: Stream
    enqueue: Callable[[], None]
    size_bytes: int
    gated: bool = True
    """False where queueing may block, or copies through pageable memory: never behind a gate."""


class Times(Value, frozen=True, kw_only=True):
    """Seconds from the first start to the last end, and of each task."""

    window_s: float
    members_s: tuple[float, ...]


class Bench:
    """What one child measures with. `labels` name the GPUs in the order of `devices`."""

    def __init__(self, cuda: Cuda, devices: Sequence[DeviceFacts], labels: Sequence[str]) -> None:
        self.cuda = cuda
        self.facts = dict(zip(labels, devices, strict=True))
        self._words = cuda.host_alloc(_WORDS_BYTES)
        cuda.write_word(self._words, 0)
        cuda.write_word(self._words + _ENDED_OFFSET, 0)
        cuda.write_word(self._words + _WORK_OFFSET, 0)
        self._turn = 0
        self._streams: dict[tuple[int, int], Stream] = {}
        self._events: dict[tuple[int, str], Event] = {}
        self.gate_timeouts = 0

    def ordinal(self, label: str) -> int:
        return self.facts[label].ordinal

    def stream(self, device: int, lane: int = 0) -> Stream:
        """One of the streams of a GPU; lanes run side by side."""
        key = (device, lane)
        if key not in self._streams:
            self._streams[key] = self.cuda.stream(device)
        return self._streams[key]

    def event(self, device: int, name: str, *, blocking: bool = False) -> Event:
        """The event of this name, made when first asked for."""
        key = (device, name)
        if key not in self._events:
            self._events[key] = self.cuda.event(device, blocking=blocking)
        return self._events[key]

    def hold(self, stream: Stream) -> int:
        """Close a gate on a stream; the turn to release."""
        turn = self.next_turn()
        words = (self._words, turn, GATE_LIMIT_NS, self._words + _ENDED_OFFSET)
        self.cuda.launch("gate", stream, 1, 1, *words)
        return turn

    def release(self, turn: int) -> None:
        self.cuda.write_word(self._words, turn)

    @property
    def work_word(self) -> int:
        """Address of the word that ends busy work: it runs until the word reaches its turn."""
        return self._words + _WORK_OFFSET

    def next_turn(self) -> int:
        """A turn that no gate and no work had before."""
        self._turn += 1
        return self._turn

    def gate_failed(self, turn: int) -> bool:
        """Whether the gate of this turn ended by its own limit."""
        failed = self.cuda.read_word(self._words + _ENDED_OFFSET) == turn
        self.gate_timeouts += failed
        return failed

    def time(
        self, tasks: Sequence[Task], calls: Sequence[int], *, warm_up: int = 0
    ) -> Times | None:
        """Seconds of `calls` calls of each task, all started together; None if the gate failed."""
        lead = tasks[0].first
        gated = all(task.gated for task in tasks)
        turn = self.hold(lead) if gated else None
        for _ in range(warm_up):
            tasks[0].enqueue()
        if warm_up and tasks[0].last != lead:
            self._join(lead, tasks[0].last, "warm")
        go = self.event(lead.device, "go")
        self.cuda.record(go, lead)
        marks = self._queue_all(tasks, calls, go, together=not gated)
        end = self.event(lead.device, "end")
        for task in tasks[1:]:
            self._join(lead, task.first, "joined")
        self.cuda.record(end, lead)
        if turn is not None:
            self.release(turn)
        self.cuda.finish(lead)
        if turn is not None and self.gate_failed(turn):
            return None
        return Times(
            window_s=self.cuda.elapsed_s(go, end),
            members_s=tuple(self.cuda.elapsed_s(*mark) for mark in marks),
        )

    def _queue_all(
        self, tasks: Sequence[Task], calls: Sequence[int], go: Event, *, together: bool
    ) -> list[tuple[Event, Event]]:
        """Queue all tasks; `together` from a thread each, where a call may block its caller."""
        numbers = range(len(tasks))
        if not together or len(tasks) == 1:
            return [self._queue(tasks[n], calls[n], go, n) for n in numbers]
        with ThreadPoolExecutor(max_workers=len(tasks)) as pool:
            queued = [pool.submit(self._queue, tasks[n], calls[n], go, n) for n in numbers]
            return [one.result() for one in queued]

    def _queue(self, task: Task, calls: int, go: Event, number: int) -> tuple[Event, Event]:
        """One task's calls between two marks on the GPU where it begins."""
        device = task.first.device
        start, end = self.event(device, f"start {number}"), self.event(device, f"end {number}")
        if number:
            self.cuda.wait(task.first, go)
        self.cuda.record(start, task.first)
        for _ in range(calls):
            task.enqueue()
        if task.last != task.first:
            self._join(task.first, task.last, f"last {number}")
        self.cuda.record(end, task.first)
        return start, end

    def _join(self, stream: Stream, other: Stream, name: str) -> None:
        """Let `stream` wait for what is queued on `other`."""
        mark = self.event(other.device, f"{name} of {other.device}")
        self.cuda.record(mark, other)
        self.cuda.wait(stream, mark)

    def run(self, task: Task, calls: int = 1) -> None:
        """Do it, untimed, and wait."""
        for _ in range(calls):
            task.enqueue()
        self.cuda.finish(task.first)
        self.cuda.finish(task.last)

    def cpu_s(self, task: Task, calls: int) -> float:
        """CPU seconds of this process for `calls` calls, waiting for the end asleep."""
        done = self.event(task.last.device, "asleep", blocking=True)
        start_s = time.process_time()
        for _ in range(calls):
            task.enqueue()
        self.cuda.record(done, task.last)
        self.cuda.finish_event(done)
        return time.process_time() - start_s
