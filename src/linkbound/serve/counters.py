"""Hardware byte counters during a load, set against what the crossings predict (P3).

Whoever reads them stands behind `CounterSource`; what they show is worked out here.
"""

import time
from collections.abc import Callable
from typing import Protocol

from linkbound.serve.path_types import (
    CounterRun,
    GpuBytes,
    PathAnswer,
    Witness,
    WitnessKind,
)

# Below this, housekeeping of driver and engine is most of what passes.
LEAST_TELLING_BYTES = 16 * 1024 * 1024
# Share of the predicted bytes that must have passed the link: decode is predicted within 25 %.
LEAST_SHARE = 0.5
# Part of the traffic that may pass the link although the data does not: control, polling.
STRAY_SHARE = 0.05


class CounterSource(Protocol):
    """Reads every GPU's counters at one moment; they only grow."""

    name: str

    def read(self) -> tuple[GpuBytes, ...]:
        """Bytes since the driver was loaded; None in a field that cannot be read."""


class CounterSampler:
    """Counters before and after, with what passes while nothing runs."""

    def __init__(self, source: CounterSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._begin: tuple[float, tuple[GpuBytes, ...]] | None = None
        self._idle: tuple[float, tuple[GpuBytes, ...]] | None = None

    def start(self) -> None:
        """Remember the counters of this moment."""
        self._begin = (self._clock(), self._source.read())

    def end_idle(self) -> None:
        """What passed since `start` belongs to no load; the load starts now."""
        self._idle = self._moved()
        self.start()

    def end(self, predicted_bytes: float | None = None) -> CounterRun:
        """What passed since the load started."""
        duration_s, moved = self._moved()
        return CounterRun(
            source=self._source.name,
            duration_s=duration_s,
            moved=moved,
            idle_duration_s=None if self._idle is None else self._idle[0],
            idle=() if self._idle is None else self._idle[1],
            predicted_bytes=predicted_bytes,
        )

    def _moved(self) -> tuple[float, tuple[GpuBytes, ...]]:
        assert self._begin is not None, "start comes first"
        began_s, before = self._begin
        first = {one.gpu: one for one in before}
        now = self._source.read()
        moved = tuple(_difference(first[one.gpu], one) for one in now if one.gpu in first)
        return self._clock() - began_s, moved


def _difference(before: GpuBytes, after: GpuBytes) -> GpuBytes:
    def passed(old: int | None, new: int | None) -> int | None:
        # A counter that went back was reset meanwhile: what passed is unknown, not negative.
        return None if old is None or new is None or new < old else new - old

    return GpuBytes(
        gpu=after.gpu,
        nvlink_sent_bytes=passed(before.nvlink_sent_bytes, after.nvlink_sent_bytes),
        nvlink_received_bytes=passed(before.nvlink_received_bytes, after.nvlink_received_bytes),
        pcie_sent_bytes=passed(before.pcie_sent_bytes, after.pcie_sent_bytes),
        pcie_received_bytes=passed(before.pcie_received_bytes, after.pcie_received_bytes),
    )


def counter_witness(run: CounterRun) -> Witness:
    """What the counters show, idle traffic taken off: direct, staged, or why they cannot tell."""
    answer, why = _answer(run)
    return Witness(kind=WitnessKind.COUNTERS, source=run.source, answer=answer, why=why)


def _answer(run: CounterRun) -> tuple[PathAnswer, str]:
    nvlink = _sent(run, "nvlink_sent_bytes")
    pcie = _sent(run, "pcie_sent_bytes")
    if nvlink is None:
        return PathAnswer.UNKNOWN, (
            "No NVLink counter could be read. PCIe counters alone cannot tell: direct or through "
            "the host, the sender sends and the receiver receives the same bytes."
        )
    shown = f"NVLink sent {_mb(nvlink)}, PCIe {'unknown' if pcie is None else _mb(pcie)}"
    if run.predicted_bytes is not None:
        return _against_prediction(shown, nvlink, pcie, run.predicted_bytes)
    if max(nvlink, pcie or 0.0) < LEAST_TELLING_BYTES:
        return PathAnswer.UNKNOWN, f"{shown}: too little to tell from housekeeping."
    if pcie is None or nvlink >= pcie:
        return PathAnswer.DIRECT, f"{shown}."
    if nvlink <= STRAY_SHARE * pcie:
        return PathAnswer.STAGED, f"{shown}: the link was idle while data went to the host."
    return PathAnswer.MIXED, f"{shown}: both carried data."


def _against_prediction(
    shown: str, nvlink: float, pcie: float | None, predicted: float
) -> tuple[PathAnswer, str]:
    shown = f"{shown}, predicted {_mb(predicted)}"
    if predicted < LEAST_TELLING_BYTES:
        return PathAnswer.UNKNOWN, f"{shown}: too little to tell from housekeeping."
    if nvlink >= LEAST_SHARE * predicted:
        return PathAnswer.DIRECT, f"{shown}."
    if nvlink > STRAY_SHARE * predicted:
        return PathAnswer.MIXED, f"{shown}: part of it passed the link."
    if pcie is not None and pcie >= LEAST_SHARE * predicted:
        return PathAnswer.STAGED, f"{shown}: the link was idle while data went to the host."
    return PathAnswer.UNKNOWN, f"{shown}: neither the link nor PCIe carried it."


def _sent(run: CounterRun, field: str) -> float | None:
    """Bytes sent by all GPUs beyond the idle rate; None where a GPU's counter is unknown."""
    total = _sum(run.moved, field)
    if total is None:
        return None
    idle = _sum(run.idle, field) if run.idle else None
    if idle is None or not run.idle_duration_s:
        return total
    return max(0.0, total - idle * run.duration_s / run.idle_duration_s)


def _sum(gpus: tuple[GpuBytes, ...], field: str) -> float | None:
    values = [getattr(one, field) for one in gpus]
    return None if not values or None in values else float(sum(values))


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
