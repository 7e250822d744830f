"""Rates and latencies of nvbandwidth's matrices: which cell is which transfer (L1, L3).

nvbandwidth prints no buffer size: without one there are rates, but no points on a curve.
"""

import re

from linkbound.links.types import (
    Curve,
    CurveKey,
    CurvePoint,
    NvbandwidthRun,
    NvbandwidthTest,
    Operation,
    PairLatency,
    PairRate,
)

HOST = "host"
OTHERS = "others"
OPPOSITE = "with the opposite direction"
_AXES = re.compile(r"(CPU|GPU)\(row\) (<->|->|<-) (CPU|GPU)\(column\)")
_BLOCK = re.compile(r"\b(?:Read|Write)([12])\b")


def rates_of_run(run: NvbandwidthRun, size_bytes: int | None = None) -> tuple[PairRate, ...]:
    """Every bandwidth of `run`, in bytes a second; `size_bytes` is the buffer, where it is known.

    A cell that is N/A or 0 (older versions print the diagonal so) gives no rate.
    """
    rates: list[PairRate] = []
    for test in run.tests:
        if "(ns)" not in test.description and not _BLOCK.search(test.description):
            rates.extend(_rates(test, size_bytes))
    return tuple(rates)


def latencies_of_run(run: NvbandwidthRun) -> tuple[PairLatency, ...]:
    """SM read round trips in seconds: a chain of loads from the other side's memory."""
    return tuple(
        PairLatency(
            src=HOST if "CPU(row)" in test.description else f"GPU{row}",
            dst=f"GPU{column}",
            method=f"nvbandwidth {test.name}: SM read round trip",
            latency_s=value * 1e-9,
        )
        for test in run.tests
        if "(ns)" in test.description
        for row, cells in enumerate(test.matrix)
        for column, value in enumerate(cells)
        if value
    )


def curve_of_rate(rate: PairRate, source: str) -> Curve | None:
    """A curve of one point; None where the size is unknown or several transfers were summed."""
    if rate.size_bytes is None or rate.each_way_bytes_per_s or OTHERS in (rate.src, rate.dst):
        return None
    key = CurveKey(
        operation=rate.operation,
        implementation=rate.implementation,
        group=(rate.src, rate.dst),
        arm=rate.arm,
        concurrency=rate.concurrency,
        method=rate.method,
    )
    point = CurvePoint(size_bytes=rate.size_bytes, time_s=rate.size_bytes / rate.bytes_per_s)
    return Curve(key=key, points=(point,), source=source)


def _rates(test: NvbandwidthTest, size_bytes: int | None) -> list[PairRate]:
    if _is_stacked(test):
        return _stacked(test, size_bytes)
    found = []
    for row, cells in enumerate(test.matrix):
        for column, value in enumerate(cells):
            if value:
                found.append(_rate(test, row, column, value, size_bytes))
    return [rate for rate in found if rate is not None]


def _rate(
    test: NvbandwidthTest, row: int, column: int, value: float, size_bytes: int | None
) -> PairRate | None:
    ends = _ends(test, row, column)
    if ends is None:
        return None
    operation, src, dst, concurrency = ends
    return PairRate(
        src=src,
        dst=dst,
        operation=operation,
        implementation=_implementation(test),
        method=f"nvbandwidth {test.name}",
        bytes_per_s=value * 1e9,
        size_bytes=size_bytes,
        concurrency=concurrency,
    )


def _ends(test: NvbandwidthTest, row: int, column: int) -> tuple[Operation, str, str, str] | None:
    """Operation, source, destination and company of one cell; None for an unknown title."""
    gpu = f"GPU{column}"
    if "local" in test.description or test.name == "device_local_copy":
        return Operation.LOCAL_COPY, gpu, gpu, "alone"
    axes = _AXES.search(test.description)
    if axes is None:
        return None
    concurrency = _concurrency(test.name)
    if axes.group(1) == "CPU":
        inward = (
            test.name.startswith("host_to") if axes.group(2) == "<->" else axes.group(2) == "->"
        )
        if inward:
            return Operation.HOST_TO_DEVICE, HOST, gpu, concurrency
        return Operation.DEVICE_TO_HOST, gpu, HOST, concurrency
    if test.name.startswith("all_to_one"):
        return Operation.COPY, OTHERS, gpu, concurrency
    if test.name.startswith("one_to_all"):
        return Operation.COPY, gpu, OTHERS, concurrency
    if axes.group(2) == "<->":
        return Operation.COPY_BOTH_WAYS, f"GPU{row}", gpu, concurrency
    if axes.group(2) == "->":
        return Operation.COPY, f"GPU{row}", gpu, concurrency
    return Operation.COPY, gpu, f"GPU{row}", concurrency


def _concurrency(name: str) -> str:
    """Host tests time one stream while the opposite one runs; `all` tests run all GPUs at once."""
    for together in ("all_to_host", "host_to_all", "all_to_one", "one_to_all"):
        if name.startswith(together):
            both = " both ways" if "bidirectional" in name else ""
            return f"{together}{both}"
    if "bidirectional" in name and "device_to_device" not in name:
        return OPPOSITE
    return "alone"


def _implementation(test: NvbandwidthTest) -> str:
    is_sm = test.name.endswith("_sm") or " SM " in f" {test.description} "
    return "sm" if is_sm else "copy_engine"


def _is_stacked(test: NvbandwidthTest) -> bool:
    """JSON puts the two directions and the total of a both-ways test below each other."""
    return len(test.matrix) == 3 * len(test.matrix[0]) and "<->" in test.description


def _stacked(test: NvbandwidthTest, size_bytes: int | None) -> list[PairRate]:
    gpus = len(test.matrix[0])
    found = []
    for row, cells in enumerate(test.matrix[2 * gpus :]):
        for column, total in enumerate(cells):
            ways = [_at(test, block * gpus + row, column) for block in range(2)]
            if total:
                found.append(
                    PairRate(
                        src=f"GPU{row}",
                        dst=f"GPU{column}",
                        operation=Operation.COPY_BOTH_WAYS,
                        implementation=_implementation(test),
                        method=f"nvbandwidth {test.name}",
                        bytes_per_s=total * 1e9,
                        size_bytes=size_bytes,
                        each_way_bytes_per_s=tuple(way * 1e9 for way in ways if way),
                    )
                )
    return found


def _at(test: NvbandwidthTest, row: int, column: int) -> float | None:
    cells = test.matrix[row]
    return cells[column] if column < len(cells) else None
