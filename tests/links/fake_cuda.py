"""A CUDA that is not there: streams with a simulated clock, memory as spans of patterns, faults.

Children load it by name (`fake_cuda:open_fake`); the variable FAKE_CUDA_FAULT chooses a fault:
`wrong@LABEL`, `hang@LABEL`, `abort@LABEL`, `error@LABEL`, `nan@LABEL` or `drop_wait@`; a label is a
part of what `_label` writes, such as `copy_peer on 0: 0>1 direct`.
"""

import bisect
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from linkbound.links.live.cuda import CudaError, DeviceFacts, Event, Stream

DIRECT_LATENCY_S = 5e-6
DIRECT_BYTES_PER_S = 100e9
STAGED_LATENCY_S = 20e-6
STAGED_BYTES_PER_S = 20e9
HOST_LATENCY_S = 4e-6
HOST_BYTES_PER_S = 25e9
CALL_S = 1e-6
CHASE_LOAD_S = 800e-9
LAP_S = 1.4e-6
WAIT_S = 1e-7
HOST = -1
_HOST_BASE = 1 << 36
_DEVICE_BASE = 1 << 40
Span = tuple[int, int, object, int]


def uuid_of(ordinal: int) -> str:
    return f"GPU-{ordinal:08d}"


class Area:
    """Bytes as spans (start, end, pattern, place in the pattern)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.spans: list[Span] = [(0, size, None, 0)]

    def read(self, at: int, size: int) -> list[Span]:
        """Spans of a range, counted from its start."""
        first = bisect.bisect_right(self.spans, at, key=lambda span: span[0]) - 1
        found = []
        for start, end, pattern, place in self.spans[first:]:
            if start >= at + size:
                break
            low, high = max(start, at), min(end, at + size)
            found.append((low - at, high - at, pattern, place + low - start))
        return found

    def write(self, at: int, size: int, spans: list[Span]) -> None:
        assert at + size <= self.size, "write past the end of an area"
        first = bisect.bisect_right(self.spans, at, key=lambda span: span[0]) - 1
        last = bisect.bisect_left(self.spans, at + size, key=lambda span: span[0])
        before, after = self.spans[first], self.spans[last - 1]
        new = [(before[0], at, before[2], before[3])] if before[0] < at else []
        new += [(at + low, at + high, what, place) for low, high, what, place in spans]
        if after[1] > at + size:
            new.append((at + size, after[1], after[2], after[3] + at + size - after[0]))
        self.spans[first:last] = _joined(new)


def _joined(spans: list[Span]) -> list[Span]:
    out: list[Span] = []
    for span in spans:
        if out and out[-1][2] == span[2] and out[-1][3] + span[0] - out[-1][0] == span[3]:
            out[-1] = (out[-1][0], span[1], out[-1][2], out[-1][3])
        else:
            out.append(span)
    return out


@dataclass
class Mark:
    time_s: float | None = None


@dataclass
class Line:
    """A stream: what is queued, and until when it is busy."""

    device: int
    queue: list[tuple[object, ...]] = field(default_factory=list)
    time_s: float = 0.0


class FakeCuda:
    def __init__(
        self, count: int = 2, fault: str = "", denied: frozenset[str] = frozenset()
    ) -> None:
        self.count = count
        self.fault, _, self.target = fault.partition("@")
        self.denied = denied
        self.now_s = 1.0
        self.access: set[tuple[int, int]] = set()
        self.words: dict[int, int] = {}
        self.written: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self.areas: dict[int, Area] = {}
        self.bases: list[int] = []
        self.lines: list[Line] = []
        self.effects: list[tuple[float, int, Callable[[], None]]] = []
        self.broken_clock = False
        self.hangs = False
        self.next_at: dict[int, int] = {}

    # --- memory

    def devices(self) -> tuple[DeviceFacts, ...]:
        return tuple(
            DeviceFacts(
                ordinal=n,
                uuid=uuid_of(n),
                multiprocessors=4,
                l2_bytes=1 << 20,
            )
            for n in range(self.count)
        )

    def can_access(self, device: int, peer: int) -> bool:
        return f"{device}>{peer}" not in self.denied

    def set_access(self, device: int, peer: int, granted: bool) -> None:
        assert self.can_access(device, peer), "the driver would refuse this"
        (self.access.add if granted else self.access.discard)((device, peer))

    def alloc(self, device: int, size_bytes: int) -> int:
        base = self.next_at.setdefault(device, _HOST_BASE if device == HOST else 0)
        if device != HOST and not base:
            base = _DEVICE_BASE * (device + 1)
        self.next_at[device] = base + -(-size_bytes // 4096) * 4096 + 4096
        self.areas[base] = Area(size_bytes)
        bisect.insort(self.bases, base)
        return base

    def free(self, device: int, address: int) -> None:
        assert self.device_of(address) == device
        del self.areas[address]
        self.bases.remove(address)

    def host_alloc(self, size_bytes: int) -> int:
        return self.alloc(HOST, size_bytes)

    def pageable_alloc(self, size_bytes: int) -> int:
        return self.alloc(HOST, size_bytes)

    @staticmethod
    def device_of(address: int) -> int:
        return address // _DEVICE_BASE - 1 if address >= _DEVICE_BASE else HOST

    def _area(self, address: int) -> tuple[Area, int]:
        base = self.bases[bisect.bisect_right(self.bases, address) - 1]
        return self.areas[base], address - base

    def write_word(self, address: int, value: int) -> None:
        self.now_s += CALL_S
        self.words[address] = value
        self.written[address].append((value, self.now_s))

    def read_word(self, address: int) -> int:
        return self.words.get(address, 0)

    # --- streams and events

    def stream(self, device: int) -> Stream:
        line = Line(device=device)
        self.lines.append(line)
        return Stream(device=device, handle=len(self.lines) - 1)

    def event(self, device: int, *, blocking: bool = False) -> Event:
        del blocking
        return Event(device=device, handle=_Slot())

    def record(self, event: Event, stream: Stream) -> None:
        mark = Mark()
        _slot(event).mark = mark
        self._queue(stream, "record", mark)

    def wait(self, stream: Stream, event: Event) -> None:
        mark = _slot(event).mark
        if mark is not None and self.fault != "drop_wait":
            self._queue(stream, "wait", mark)

    def happened(self, event: Event) -> bool:
        self._resolve()
        mark = _slot(event).mark
        return mark is not None and mark.time_s is not None

    def finish_event(self, event: Event) -> None:
        self._resolve()
        mark = _slot(event).mark
        if mark is not None and mark.time_s is not None:
            self.now_s = max(self.now_s, mark.time_s)

    def finish(self, stream: Stream) -> None:
        self.now_s += CALL_S
        self._resolve()
        line = self.lines[stream.handle]
        assert not line.queue, f"deadlock: {line.queue[0][0]} is never released"
        self.now_s = max(self.now_s, line.time_s)

    def elapsed_s(self, start: Event, end: Event) -> float:
        first, last = _slot(start).mark, _slot(end).mark
        assert start.device == end.device, "events of two GPUs have no common clock"
        assert first is not None
        assert last is not None
        assert first.time_s is not None
        assert last.time_s is not None
        return math.nan if self.broken_clock else last.time_s - first.time_s

    # --- work

    def copy(self, dst: int, src: int, size_bytes: int, stream: Stream) -> None:
        label = self._label("copy", stream, src, dst)
        spent_s = HOST_LATENCY_S + size_bytes / HOST_BYTES_PER_S
        self._move(label, dst, src, size_bytes, stream, spent_s)

    def copy_peer(
        self,
        dst: int,
        dst_device: int,
        src: int,
        src_device: int,
        size_bytes: int,
        stream: Stream,
    ) -> None:
        assert self.device_of(dst) == dst_device
        assert self.device_of(src) == src_device
        reached = dst_device if stream.device == src_device else src_device
        direct = (stream.device, reached) in self.access
        label = f"{self._label('copy_peer', stream, src, dst)} {'direct' if direct else 'staged'}"
        if direct:
            spent_s = DIRECT_LATENCY_S + size_bytes / DIRECT_BYTES_PER_S
        else:
            spent_s = STAGED_LATENCY_S + size_bytes / STAGED_BYTES_PER_S
        self._move(label, dst, src, size_bytes, stream, spent_s)

    def launch(
        self, kernel: str, stream: Stream, blocks: int, threads: int, *arguments: int
    ) -> None:
        assert blocks > 0
        assert 0 < threads <= 1024
        getattr(self, f"_{kernel}")(stream, *arguments)

    def _empty(self, stream: Stream) -> None:
        self._queue(stream, "work", 1e-6, None, None)

    def _gate(self, stream: Stream, word_at: int, turn: int, _limit_ns: int, _ended: int) -> None:
        self._queue(stream, "gate", word_at, turn)

    def _work_fma(self, stream: Stream, _ns: int, stop_at: int, turn: int, _flag: int) -> None:
        self._queue(stream, "gate", stop_at, turn)

    def _work_memory(
        self, stream: Stream, _ns: int, stop_at: int, turn: int, _flag: int, at: int, size: int
    ) -> None:
        assert self._area(at)[0].size >= size
        self._queue(stream, "gate", stop_at, turn)

    def _fill(self, stream: Stream, dst: int, words: int, seed: int, invert: int) -> None:
        area, at = self._area(dst)
        spans: list[Span] = [(0, words * 4, (seed, bool(invert)), 0)]
        self._queue(stream, "work", 1e-6, None, lambda: area.write(at, words * 4, spans))

    def _clear_result(self, stream: Stream, result: int) -> None:
        def write() -> None:
            self.words[result], self.words[result + 8] = 0, 2**64 - 1

        self._queue(stream, "work", 1e-6, None, write)

    def _check(self, stream: Stream, at: int, words: int, seed: int, result: int) -> None:
        self._check_pieces(stream, at, words, 1, 1, seed, result)

    def _check_pieces(
        self, stream: Stream, at: int, words: int, pieces: int, step: int, seed: int, result: int
    ) -> None:
        def check() -> None:
            area, offset = self._area(at)
            size = words * 4
            for piece in range(pieces):
                origin = piece * step % pieces * size
                for low, high, pattern, place in area.read(offset + piece * size, size):
                    if pattern != (seed, False) or place != origin + low:
                        self.words[result] = self.words.get(result, 0) + (high - low) // 4
                        first = (piece * size + low) // 4
                        self.words[result + 8] = min(self.words[result + 8], first)

        self._queue(stream, "work", 1e-6, None, check)

    def _copy_sm(self, stream: Stream, dst: int, src: int, size: int) -> None:
        self._require_access(stream, dst, src)
        label = self._label("copy_sm", stream, src, dst)
        spent_s = DIRECT_LATENCY_S + size / DIRECT_BYTES_PER_S
        self._move(label, dst, src, size, stream, spent_s)

    def _copy_pieces(
        self, stream: Stream, dst: int, src: int, piece: int, pieces: int, step: int
    ) -> None:
        self._require_access(stream, dst, src)
        for number in range(pieces):
            src_at = src + number * step % pieces * piece
            label = self._label("copy_pieces", stream, src, dst)
            spent_s = piece / DIRECT_BYTES_PER_S
            self._move(label, dst + number * piece, src_at, piece, stream, spent_s)

    def _chain(self, stream: Stream, _at: int, _places: int, _stride: int) -> None:
        self._queue(stream, "work", 1e-6, None, None)

    def _chase(self, stream: Stream, start: int, loads: int, end: int, block: int) -> None:
        self._require_access(stream, start, end)
        self._faults(f"chase on {stream.device}: {self.device_of(start)}>{stream.device}")

        def write() -> None:
            area, at = self._area(start)
            lost = 1 if self._is("wrong", "chase") else 0
            self.words[end + 8 * block] = start - at + (at + 128 * (loads - lost)) % area.size

        self._queue(stream, "work", loads * CHASE_LOAD_S, None, write)

    def _pingpong(
        self,
        stream: Stream,
        mine: int,
        theirs: int,
        laps: int,
        warm_up: int,
        _serves: int,
        _limit_ns: int,
        result: int,
    ) -> None:
        self._require_access(stream, mine, theirs)
        self._faults(f"pingpong on {stream.device}")

        def write() -> None:
            lost = 1 if self._is("wrong", "pingpong") else 0
            self.words[result] = round(laps * LAP_S * 1e9)
            self.words[result + 8] = laps + warm_up - lost

        self._queue(stream, "work", (laps + warm_up) * LAP_S, None, write)

    # --- the simulation

    def _require_access(self, stream: Stream, *addresses: int) -> None:
        for address in addresses:
            device = self.device_of(address)
            if device not in (HOST, stream.device) and (stream.device, device) not in self.access:
                raise CudaError("cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS.")

    def _label(self, what: str, stream: Stream, src: int, dst: int) -> str:
        ends = ["host" if end == HOST else str(end) for end in map(self.device_of, (src, dst))]
        return f"{what} on {stream.device}: {'>'.join(ends)}"

    def _is(self, fault: str, label: str) -> bool:
        return self.fault == fault and self.target in label

    def _faults(self, label: str) -> None:
        if self._is("abort", label):
            os.abort()
        if self._is("error", label):
            raise CudaError("cuMemcpyAsync: CUDA_ERROR_ILLEGAL_ADDRESS.")
        self.hangs = self.hangs or self._is("hang", label)
        self.broken_clock = self._is("nan", label)

    def _move(
        self, label: str, dst: int, src: int, size: int, stream: Stream, spent_s: float
    ) -> None:
        self._faults(label)
        held: list[Span] = []
        places = range(0, size, 8) if size <= 64 else ()
        word = {at: self.words[src + at] for at in places if src + at in self.words}

        def read() -> None:
            area, at = self._area(src)
            held[:] = area.read(at, size)
            word.update({at: self.words[src + at] for at in places if src + at in self.words})

        def write() -> None:
            area, at = self._area(dst)
            area.write(at, size, held)
            if self._is("wrong", label):
                spot = size // 2 // 4 * 4
                area.write(at + spot, 4, [(0, 4, "bad", 0)])
            if places:
                self.words.update({dst + place: value for place, value in word.items()})

        self._queue(stream, "work", spent_s, read, write)

    def _queue(self, stream: Stream, *step: object) -> None:
        self.now_s += CALL_S
        self.lines[stream.handle].queue.append((self.now_s, *step))

    def _resolve(self) -> None:
        """Let every stream run as far as marks and gates allow, then move bytes in time's order."""
        while self.hangs:
            time.sleep(3600)
        moved = True
        while moved:
            moved = sum(self._advance(line) for line in self.lines) > 0
        self.effects.sort(key=lambda effect: effect[:2])
        for _, _, effect in self.effects:
            effect()
        self.effects.clear()

    def _advance(self, line: Line) -> int:
        done = 0
        for issued_s, kind, *rest in line.queue:
            if not self._step(line, float(issued_s), str(kind), rest):  # type: ignore[arg-type]
                break
            done += 1
        del line.queue[:done]
        return done

    def _step(self, line: Line, issued_s: float, kind: str, rest: list[object]) -> bool:
        line.time_s = max(line.time_s, issued_s)
        match kind, rest:
            case "record", [Mark() as mark]:
                mark.time_s = line.time_s
            case "wait", [Mark() as mark]:
                if mark.time_s is None:
                    return False
                line.time_s = max(line.time_s, mark.time_s) + WAIT_S
            case "gate", [int(word), int(turn)]:
                freed = [at_s for value, at_s in self.written[word] if value >= turn]
                if not freed:
                    return False
                line.time_s = max(line.time_s, freed[0])
            case "work", [float(spent_s), read, write]:
                if read is not None:
                    self.effects.append((line.time_s, 1, read))  # type: ignore[arg-type]
                line.time_s += spent_s
                if write is not None:
                    # Writes that end when a read begins come first.
                    self.effects.append((line.time_s, 0, write))  # type: ignore[arg-type]
        return True


class _Slot:
    """What an event handle holds: the mark of its last record."""

    mark: Mark | None = None


def _slot(event: Event) -> _Slot:
    assert isinstance(event.handle, _Slot)
    return event.handle


def open_fake() -> FakeCuda:
    """For children: two GPUs and the fault of the environment."""
    denied = frozenset(filter(None, os.environ.get("FAKE_CUDA_DENIED", "").split(",")))
    return FakeCuda(fault=os.environ.get("FAKE_CUDA_FAULT", ""), denied=denied)


class FakeState:
    """NVML of the fake: cool, and with counters that stand still."""

    def slowing(self, uuid: str) -> tuple[str, ...]:
        return ("power cap",) if uuid == os.environ.get("FAKE_SLOW_GPU") else ()

    def counters(self, uuid: str) -> Mapping[str, int]:
        return {"nvlink_tx_bytes": 1000, "pcie_tx_bytes": 2000} if uuid else {}

    def pcie_bytes_per_s(self, uuid: str) -> Mapping[str, int]:
        return {"pcie_tx": 1} if uuid else {}

    def others(self, uuid: str) -> tuple[int, ...]:
        return (4242,) if uuid == os.environ.get("FAKE_BUSY_GPU") else ()

    def readings(self, uuid: str) -> Mapping[str, str]:
        return {"temperature_c": "40"} if uuid else {}


def open_fake_state() -> FakeState:
    return FakeState()
