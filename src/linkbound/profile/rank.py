"""One rank: builds its shard, times the points of its job, writes a line for each (P1).

Run as `python -m linkbound.profile.rank JOB FOLDER RANK` by the leader; lines written before an
end of any kind stay.
"""

import itertools
import sys
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from linkbound.profile.build import build
from linkbound.profile.kineto import parse_kineto
from linkbound.profile.network import Network
from linkbound.profile.steps import Step
from linkbound.profile.transport import Alone, ProcessGroups, Transport
from linkbound.profile.types import Device, Job, Point, RankPoint, Timeline
from linkbound.splits.types import Phase

OUT_OF_MEMORY = 77
"""Exit code of a rank whose GPU is full."""
MEETING_S = 60
"""A collective that takes longer is given up: the parent's limit ends what this does not."""
LEAST_PREFILLS = 2
PREFILL_SHARE = 4


def main(arguments: list[str]) -> int:
    """Run one rank to its end; returns its exit code."""
    job_path, folder, number = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    job = msgspec.json.decode(job_path.read_bytes(), type=Job)
    try:
        with torch.inference_mode():
            _run(job, folder, number)
    except torch.OutOfMemoryError as error:
        sys.stderr.write(f"rank {number}: {str(error).splitlines()[0]}\n")
        return OUT_OF_MEMORY
    return 0


def _run(job: Job, folder: Path, number: int) -> None:
    transport = _meet(job, folder, number)
    place = number if job.alone is None else job.alone
    network, _, parameters = build(job, place, transport)
    with (folder / f"rank{number}.jsonl").open("ab") as lines:
        for index, point in enumerate(job.points):
            found = _time_point(network, job, point, folder / f"trace{number}.{index}.json")
            found = msgspec.structs.replace(found, parameters=parameters)
            lines.write(msgspec.json.encode(found) + b"\n")
            lines.flush()
    if dist.is_initialized():
        dist.destroy_process_group()


def _meet(job: Job, folder: Path, number: int) -> Transport:
    cuda = job.device is Device.CUDA
    if cuda:
        torch.cuda.set_device(number)
    else:
        torch.set_num_threads(1)
    if job.alone is not None or job.split.gpus == 1:
        return Alone()
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{folder / 'meet'}",
        rank=number,
        world_size=job.split.gpus,
        timeout=timedelta(seconds=MEETING_S),
        device_id=torch.device("cuda", number) if cuda else None,
    )
    return ProcessGroups(job.split)


def _time_point(network: Network, job: Job, point: Point, trace: Path) -> RankPoint:
    count = job.steps
    if point.phase is Phase.PREFILL:
        count = max(LEAST_PREFILLS, job.steps // PREFILL_SHARE)
    step = Step(network, job, point, max(count, job.traced_steps + 2))
    # On both sides of the traced steps: clocks that fall under load fall for all alike.
    times_s = _time_plain(step, job, count - count // 2)
    timeline = _instrumented(network, step, job, trace) if job.traced_steps else None
    times_s += _time_plain(step, job, count // 2)
    return RankPoint(
        rank=network.held.rank.number,
        point=point,
        launch=step.launch,
        times_s=tuple(times_s),
        calls=step.calls,
        timeline=timeline,
        memory_bytes=torch.cuda.max_memory_allocated() if job.device is Device.CUDA else None,
    )


def _time_plain(step: Step, job: Job, count: int) -> list[float]:
    step.reset()
    _together(job)
    return _time_on_device(step, count) if job.device is Device.CUDA else _time(step, count)


def _instrumented(network: Network, step: Step, job: Job, trace: Path) -> Timeline:
    step.reset()
    _together(job)
    if job.device is Device.CUDA:
        return _trace(step, job.traced_steps, trace)
    return _log(network, step, job.traced_steps)


def _together(job: Job) -> None:
    """All ranks arrive before any goes on."""
    if job.device is Device.CUDA:
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
    if job.device is Device.CUDA:
        torch.cuda.synchronize()


def _time(step: Step, count: int) -> list[float]:
    times_s = []
    for _ in range(count):
        start_s = time.perf_counter()
        step.run()
        times_s.append(time.perf_counter() - start_s)
    return times_s


def _time_on_device(step: Step, count: int) -> list[float]:
    """Event to event: all steps are enqueued before the first result is asked for."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    step.run()
    step.reset()
    events[0].record()
    for event in events[1:]:
        step.run()
        event.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in itertools.pairwise(events)]


def _log(network: Network, step: Step, count: int) -> Timeline:
    ledger = network.exchange.ledger
    with ledger.timing():
        for _ in range(count):
            with ledger.step():
                step.run()
    return ledger.timeline()


def _trace(step: Step, count: int, path: Path) -> Timeline:
    """Kernels of `count` steps; one more before and after are run and left out.

    The first pays for the profiler's start, the last has no following step to reach to.
    """
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        with torch.profiler.record_function("warm-up"):
            step.run()
        for index in range(count + 1):
            with torch.profiler.record_function(f"linkbound step {index}"):
                step.run()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    rank = int(path.stem.partition(".")[0].removeprefix("trace"))
    (timeline,) = parse_kineto(path.read_bytes(), path.name, rank)
    return msgspec.structs.replace(timeline, steps=timeline.steps[:count])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
