"""One rank: builds its shard, times the points of its job, writes a line for each (P1).

Run as `python -m linkbound.profile.rank JOB FOLDER RANK STARTED` by the leader; lines written
before an end of any kind stay. Where the process spent its time is told to stderr; where it was
when a signal ended it stands in a file.
"""

import faulthandler
import os
import signal
import sys
import traceback
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
    store = None
    transport: Transport = Alone()
    if job.device is Device.CUDA:
        torch.cuda.set_device(number)
    else:
        torch.set_num_threads(1)
    if job.alone is None and job.split.gpus > 1:
        store = dist.FileStore(str(folder / "meet"), job.split.gpus)
        transport = _meet(job, store, number)
    spent.on("meeting")
    place = number if job.alone is None else job.alone
    network, _, maker = build(job, place, transport)
    spent.on("weights")
    measurement = Measurement(network, job, spent)
    with (folder / f"rank{number}.jsonl").open("ab") as lines:
        for index, point in enumerate(job.points):
            found = measurement.of(point, folder / f"trace{number}.{index}.json")
            found = msgspec.structs.replace(
                found,
                parameters=maker.parameters,
                float8_parameters=maker.float8_parameters,
                bf16_because=maker.bf16_because,
            )
            lines.write(msgspec.json.encode(found) + b"\n")
            lines.flush()
            spent.on(point.name)
    if store is not None:
        _part(store, job.split.gpus, number)


def _meet(job: Job, store: dist.Store, number: int) -> Transport:
    cuda = job.device is Device.CUDA
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=number,
        world_size=job.split.gpus,
        timeout=timedelta(seconds=MEETING_S),
        device_id=torch.device("cuda", number) if cuda else None,
    )
    return ProcessGroups(job.split)


def _part(store: dist.Store, count: int, number: int) -> None:
    """Wait until every rank is here: none needs another any more, and each may end as it is."""
    store.set(f"done {number}", "")
    store.wait([f"done {one}" for one in range(count)], timedelta(seconds=MEETING_S))


def _say_where(path: Path) -> None:
    """On TERM or a fault write every thread's stack to `path`, then end.

    Also while a call waits for a GPU, where no handler of Python's would run.
    """
    file = path.open("w")
    faulthandler.enable(file)
    faulthandler.register(signal.SIGTERM, file, chain=True)


if __name__ == "__main__":
    _say_where(place_file(Path(sys.argv[2]), int(sys.argv[3])))
    try:
        ended_with = main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
        ended_with = 1
    sys.stderr.flush()
    # Without torch's end of a group: NCCL waits there until no graph holds a call of its own, for
    # ever if one does (pytorch/pytorch#115388). What was measured is written.
    os._exit(ended_with)
