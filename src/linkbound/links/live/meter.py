"""Measures what passes GPUs' ports in a window of time, and while nothing runs (P3, P1, L4).

    meter = open_meter()
    meter.rest()        nothing runs: the baseline, once
    meter.begin()
    ...                 any load, in this process or another
    traffic = meter.end()

It needs a driver and nvidia-ml-py only. PCIe's counters are 32 bits wide on an H200, less than
70 ms of a full link: a thread reads them all the time and adds up.
"""

import threading
import time
from collections.abc import Callable

import msgspec

from linkbound.links.live.ports import PortReader, open_ports
from linkbound.links.traffic import GpuBytes, Traffic, growth

PERIOD_S = 0.02
"""Between readings of PCIe: a third of what a Gen5 x16 link needs to wrap 32 bits."""
REST_S = 1.0
"""Of the baseline: housekeeping of the driver comes in bursts of some 100 ms."""
_WRAP_BYTES = 1 << 32
_FASTEST_PCIE_BYTES_PER_S = 64e9
"""Assumed where no GPU tells its link: Gen5 x16."""


class TrafficMeter:
    """Counters of all GPUs of a reader. One window at a time; windows may follow one another."""

    def __init__(
        self,
        reader: PortReader,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        period_s: float = PERIOD_S,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._sleep = sleep
        self._period_s = period_s
        self._idle: Traffic | None = None
        self._window: _Window | None = None
        self._blind_s = _WRAP_BYTES / (reader.pcie_bytes_per_s() or _FASTEST_PCIE_BYTES_PER_S)

    def rest(self, duration_s: float = REST_S) -> None:
        """Take the baseline: what passes in `duration_s` seconds while nothing is to run."""
        self.begin()
        if self._window is not None and self._window.counts:
            self._sleep(duration_s)
        self._idle = self.end()

    def begin(self) -> None:
        """A window begins; one that was not ended is dropped."""
        self.close()
        self._window = _Window(self._reader, self._clock, self._period_s, self._blind_s)

    def end(self) -> Traffic:
        """The window ends: what passed since `begin`, with the last baseline beside it."""
        assert self._window is not None, "begin comes first"
        window, self._window = self._window, None
        idle = self._idle
        moved = window.end()
        return Traffic(
            source=self._reader.name,
            duration_s=window.duration_s,
            moved=moved,
            idle_duration_s=None if idle is None else idle.duration_s,
            idle=() if idle is None else idle.moved,
            readings=window.readings,
            blind_gaps=window.blind_gaps,
            silent=self._reader.silent(),
        )

    def close(self) -> None:
        """Ends a window without an answer, where one is open."""
        if self._window is not None:
            self._window.end()
            self._window = None


class _Window:
    """From one reading of all counters to the next, PCIe's read in between."""

    def __init__(
        self, reader: PortReader, clock: Callable[[], float], period_s: float, blind_s: float
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._period_s = period_s
        self._blind_s = blind_s
        self._pcie: dict[str, _Pcie] = {}
        self.readings = 0
        self.blind_gaps = 0
        self.duration_s = 0.0
        self._before = reader.ports()
        self._began_s = self._read_s = clock()
        self._take(self._before)
        self.counts = any(
            one.nvlink_sent_bytes is not None or one.pcie_sent_bytes is not None
            for one in self._before
        )
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if any(one.pcie_sent_bytes is not None for one in self._before):
            self._thread = threading.Thread(target=self._watch, name="pcie-counters", daemon=True)
            self._thread.start()

    def end(self) -> tuple[GpuBytes, ...]:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        after = self._reader.ports()
        self._take(after)
        self.duration_s = self._clock() - self._began_s
        first = {one.gpu: one for one in self._before}
        return tuple(
            growth(first[one.gpu], self._pcie[one.gpu].widened(one))
            for one in after
            if one.gpu in first
        )

    def _watch(self) -> None:
        while not self._ended.wait(self._period_s):
            self._take(self._reader.pcie())

    def _take(self, counted: tuple[GpuBytes, ...]) -> None:
        now_s = self._clock()
        self.blind_gaps += now_s - self._read_s > self._blind_s
        self._read_s = now_s
        self.readings += 1
        for one in counted:
            self._pcie.setdefault(one.gpu, _Pcie()).take(one)


class _Pcie:
    """A GPU's two PCIe counters, as if they never wrapped."""

    def __init__(self) -> None:
        self._last: list[int | None] = [None, None]
        self._wrapped = [0, 0]

    def take(self, now: GpuBytes) -> None:
        for way, new in enumerate((now.pcie_sent_bytes, now.pcie_received_bytes)):
            old = self._last[way]
            if new is None:
                continue
            if old is not None and new < old < _WRAP_BYTES:
                self._wrapped[way] += _WRAP_BYTES
            self._last[way] = new

    def widened(self, one: GpuBytes) -> GpuBytes:
        """The reading with what wrapped before it added."""
        counted = (one.pcie_sent_bytes, one.pcie_received_bytes)
        sent, received = (
            None if count is None else count + more
            for count, more in zip(counted, self._wrapped, strict=True)
        )
        return msgspec.structs.replace(one, pcie_sent_bytes=sent, pcie_received_bytes=received)


def open_meter() -> TrafficMeter:
    """A meter of all NVIDIA GPUs of this host; where no driver answers, its windows say so."""
    return TrafficMeter(open_ports())
