"""One rank: builds its shard, times the points of its job, writes a line for each (P1).

Run as `python -m linkbound.profile.rank JOB FOLDER RANK STARTED` by the leader; lines written
before an end of any kind stay. Where the process spent its time is told to stderr; where it was
when a signal ended it stands in a file.
"""

import faulthandler
import signal
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from linkbound.profile.build import build
from linkbound.profile.launch import OUT_OF_MEMORY, place_file
from linkbound.profile.measure import Measurement
from linkbound.profile.spent import Spent
from linkbound.profile.transport import Alone, ProcessGroups, Transport
from linkbound.profile.types import Device, Job

MEETING_S = 60
"""A collective that takes longer is given up: the parent's limit ends what this does not."""


def main(arguments: list[str]) -> int:
    """Run one rank to its end; returns its exit code."""
    job_path, folder, number = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    job = msgspec.json.decode(job_path.read_bytes(), type=Job)
    try:
        with torch.inference_mode():
            _run(job, folder, number, Spent(number, float(arguments[3])))
    except torch.OutOfMemoryError as error:
        sys.stderr.write(f"rank {number}: {str(error).splitlines()[0]}\n")
        return OUT_OF_MEMORY
    return 0


def _run(job: Job, folder: Path, number: int, spent: Spent) -> None:
    spent.on("start, imports")
    transport = _meet(job, folder, number)
    spent.on("meeting")
    place = number if job.alone is None else job.alone
    network, _, parameters = build(job, place, transport)
    spent.on("weights")
    measurement = Measurement(network, job, spent)
    with (folder / f"rank{number}.jsonl").open("ab") as lines:
        for index, point in enumerate(job.points):
            found = measurement.of(point, folder / f"trace{number}.{index}.json")
            found = msgspec.structs.replace(found, parameters=parameters)
            lines.write(msgspec.json.encode(found) + b"\n")
            lines.flush()
            spent.on(point.name)
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


def _say_where(path: Path) -> None:
    """On TERM or a fault write every thread's stack to `path`, then end.

    Also while a call waits for a GPU, where no handler of Python's would run.
    """
    file = path.open("w")
    faulthandler.enable(file)
    faulthandler.register(signal.SIGTERM, file, chain=True)


if __name__ == "__main__":
    _say_where(place_file(Path(sys.argv[2]), int(sys.argv[3])))
    sys.exit(main(sys.argv[1:]))
