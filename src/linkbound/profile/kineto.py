"""Traces of torch's profiler (Kineto JSON) of any engine to timelines, one a device (P1, P2).

What a kernel is for is told by its name: NCCL, an engine's own all-reduce, a peer copy, a copy
from or to the host; everything else is compute.
"""

import functools
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from linkbound.errors import InputError
from linkbound.evidence.content import read_json
from linkbound.profile.types import Interval, KernelClass, StepSpan, Timeline

STEP_NAMES = re.compile(r"^(?:linkbound step|ProfilerStep#|execute_)")
"""Annotations that mark a step: ours, torch's schedule, and those of vLLM's model runner."""
LIMIT_BYTES = 1 << 30
"""Of JSON, unpacked. A trace of a minute is some hundred MB; beyond this memory is the limit."""
_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})

_NCCL = re.compile(r"^nccl(?:DevKernel|Kernel)_?(?P<what>AllReduce|AllGather|ReduceScatter|"
                   r"SendRecv|Broadcast|Reduce|AllToAll)?")  # fmt: skip
_CUSTOM = re.compile(
    r"cross_device_reduce|one_shot_all_reduce|two_shot_all_reduce|multimem_|allreduce_fusion"
    r"|all_reduce_[12]shot|oneshot_?all_?reduce|twoshot_?all_?reduce|quick_?all_?reduce"
    r"|mscclpp|nvshmem|deep_ep",
    re.IGNORECASE,
)
_OPERATIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "SendRecv": "send_recv",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllToAll": "all_to_all",
}
_TORCH_NAMES = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("reduce_scatter", "reduce_scatter"),
    ("all_to_all", "all_to_all"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
    ("broadcast", "broadcast"),
)
_ELEMENT_BYTES = {
    "BFloat16": 2,
    "Half": 2,
    "Float": 4,
    "Double": 8,
    "Int": 4,
    "Long": 8,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
}


def parse_kineto(data: bytes, source: str, rank: int | None = None) -> tuple[Timeline, ...]:
    """Timelines of the devices in a trace, plain or gzip; raises InputError for anything else.

    `rank` numbers the trace of a process that uses one device; without it the trace's own number
    is taken, else the device's.
    """
    decoded = read_json(_unpacked(data, source), source)
    document = decoded if isinstance(decoded, dict) else {}
    events = document.get("traceEvents")
    if not isinstance(events, list):
        raise InputError(
            f"{source} has no list traceEvents.",
            why="That is where a trace of torch's profiler keeps its kernels.",
            hint="Give the file that export_chrome_trace or an engine's profiler wrote.",
        )
    known = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    devices = _work_by_device(known, source)
    if not devices:
        raise InputError(
            f"{source} holds {len(events):,} events and no kernel of a GPU.",
            why="Only what ran on a device can be divided into parts.",
            hint="Record with ProfilerActivity.CUDA.",
        )
    stated = document.get("distributedInfo")
    if rank is None and len(devices) == 1 and isinstance(stated, dict):
        rank = stated["rank"] if type(stated.get("rank")) is int else None
    spans, launched = _annotations(known, source), _launch_times(known, source)
    return tuple(
        _timeline(device if rank is None or len(devices) > 1 else rank, work, spans, launched,
                  source)
        for device, work in sorted(devices.items())
    )  # fmt: skip


def parse_traces(files: Sequence[tuple[bytes, str]]) -> tuple[Timeline, ...]:
    """Timelines of one trace a rank (data, name); numbered in this order where theirs repeat."""
    found = [one for data, source in files for one in parse_kineto(data, source)]
    if len({one.rank for one in found}) == len(found):
        return tuple(sorted(found, key=lambda one: one.rank))
    return tuple(replace(one, rank=number) for number, one in enumerate(found))


def _unpacked(data: bytes, source: str) -> bytes:
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(LIMIT_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                f"{source} begins like gzip and cannot be unpacked ({error}).",
                why="It is cut or damaged.",
                hint="Copy the file again.",
            ) from error
    if len(data) > LIMIT_BYTES:
        raise InputError(
            f"{source} is more than {LIMIT_BYTES:,} bytes of JSON.",
            why="Reading it would take more memory than most machines have.",
            hint="Record fewer steps.",
        )
    return data


_Work = list[tuple[Interval, int | None]]
"""Intervals, each with the correlation of its launch."""


def _work_by_device(events: Iterable[Mapping[str, Any]], source: str) -> dict[int, _Work]:
    found: dict[int, _Work] = {}
    for event in events:
        if event.get("cat") not in _WORK:
            continue
        arguments = _arguments(event)
        device = _whole(arguments.get("device"))
        interval = _interval(event, arguments, source)
        link = _whole(arguments.get("correlation"))
        found.setdefault(0 if device is None else device, []).append((interval, link))
    return found


def _interval(event: Mapping[str, Any], arguments: Mapping[str, Any], source: str) -> Interval:
    start_s, end_s = _times(event, source)
    name = str(event.get("name", ""))
    kernel, operation = classify(name)
    stated = arguments.get("Collective name")
    if kernel is KernelClass.NCCL and isinstance(stated, str):
        operation = next((to for part, to in _TORCH_NAMES if part in stated), operation)
    return Interval(
        kernel=kernel,
        start_s=start_s,
        end_s=end_s,
        name=name,
        operation=operation,
        ranks=_ranks(arguments.get("Process Group Ranks")),
        size_bytes=_size_bytes(arguments) if kernel is KernelClass.NCCL else None,
    )


@functools.lru_cache(maxsize=4096)
def classify(name: str) -> tuple[KernelClass, str | None]:
    """What a kernel or copy of this name is for, and which collective it runs."""
    nccl = _NCCL.match(name)
    if nccl:
        return KernelClass.NCCL, _OPERATIONS.get(nccl["what"] or "")
    if name.startswith("Memcpy"):
        if "PtoP" in name:
            return KernelClass.PEER_COPY, "send_recv"
        on_host = "HtoD" in name or "DtoH" in name
        return (KernelClass.HOST_COPY if on_host else KernelClass.COMPUTE), None
    if _CUSTOM.search(name):
        return KernelClass.CUSTOM, None if "deep_ep" in name else "all_reduce"
    return KernelClass.COMPUTE, None


def _times(event: Mapping[str, Any], source: str) -> tuple[float, float]:
    start, length = _microseconds(event.get("ts")), _microseconds(event.get("dur"))
    if start is None or length is None or length < 0:
        name = str(event.get("name", ""))[:60]
        raise InputError(
            f"{source}: event '{name}' has ts {event.get('ts')!r:.40} and dur "
            f"{event.get('dur')!r:.40}.",
            why="Without times it cannot be placed.",
            hint="Record the trace again.",
        )
    return start * 1e-6, (start + length) * 1e-6


def _microseconds(value: object) -> float | None:
    """A number, also one written as text, as older exporters do."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # An integer of thousands of digits is valid JSON and no double.
    if isinstance(value, int) and abs(value) > 1e18:
        return None
    return float(value) if math.isfinite(value) and abs(value) <= 1e18 else None


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _ranks(value: object) -> tuple[int, ...]:
    """`[0, 1]`, as text or as a list; empty where a long list was shortened."""
    if isinstance(value, list):
        value = str(value)
    if not isinstance(value, str) or not re.fullmatch(r"\[\d{1,6}(?:, ?\d{1,6})*\]", value):
        return ()
    return tuple(sorted(int(one) for one in value[1:-1].split(",")))


def _size_bytes(arguments: Mapping[str, Any]) -> int | None:
    count = _whole(arguments.get("In msg nelems"))
    width = _ELEMENT_BYTES.get(str(arguments.get("dtype")))
    return None if count is None or width is None else count * width


def _annotations(events: Iterable[Mapping[str, Any]], source: str) -> list[StepSpan]:
    """Steps as the host marked them, ascending; of nested marks the outermost."""
    marks = sorted(
        (*_times(event, source), str(event.get("name")))
        for event in events
        if event.get("cat") == "user_annotation" and STEP_NAMES.match(str(event.get("name", "")))
    )
    found: list[StepSpan] = []
    for start_s, end_s, name in marks:
        if not found or start_s >= found[-1].end_s:
            found.append(StepSpan(index=len(found), name=name, start_s=start_s, end_s=end_s))
    return found


def _launch_times(events: Iterable[Mapping[str, Any]], source: str) -> dict[int, float]:
    found = {}
    for event in events:
        link = _whole(_arguments(event).get("correlation"))
        if event.get("cat") in _LAUNCHES and link is not None:
            found[link] = _times(event, source)[0]
    return found


def _timeline(
    rank: int, work: _Work, marks: list[StepSpan], launched: dict[int, float], source: str
) -> Timeline:
    work = sorted(work, key=lambda one: one[0].start_s)
    return Timeline(
        rank=rank,
        steps=_steps(work, marks, launched),
        intervals=tuple(interval for interval, _ in work),
        source=source,
    )


def _steps(work: _Work, marks: list[StepSpan], launched: dict[int, float]) -> tuple[StepSpan, ...]:
    """Each from its first work on the device to the next one's; without marks one for all."""
    last_s = max(interval.end_s for interval, _ in work)
    if not marks:
        whole = StepSpan(index=0, name="whole trace", start_s=work[0][0].start_s, end_s=last_s)
        return (whole,)
    starts: list[tuple[float, str, float]] = []
    for name, intervals in _in_steps(work, marks, launched):
        first_s = min(one.start_s for one in intervals)
        starts.append((first_s, name, max(one.end_s for one in intervals)))
    starts.sort()
    return tuple(
        StepSpan(
            index=index,
            name=name,
            start_s=start_s,
            end_s=starts[index + 1][0] if index + 1 < len(starts) else end_s,
        )
        for index, (start_s, name, end_s) in enumerate(starts)
    )


def _in_steps(
    work: _Work, marks: list[StepSpan], launched: dict[int, float]
) -> list[tuple[str, list[Interval]]]:
    """Work by the mark during which the host launched it."""
    found: list[list[Interval]] = [[] for _ in marks]
    order = sorted(
        (launched.get(link, interval.start_s) if link is not None else interval.start_s, at)
        for at, (interval, link) in enumerate(work)
    )
    mark = 0
    for time_s, at in order:
        while mark < len(marks) and time_s >= marks[mark].end_s:
            mark += 1
        if mark == len(marks):
            break
        if time_s >= marks[mark].start_s:
            found[mark].append(work[at][0])
    return [(marks[at].name, some) for at, some in enumerate(found) if some]
