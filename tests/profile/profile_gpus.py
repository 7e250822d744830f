"""Processes on two GPUs that compute logits of one case, for comparison with one process."""

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

from profile_models import MODELS

from linkbound.links.types import Arm
from linkbound.profile.types import Device, Job, Point
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Phase

PROMPT = Point(phase=Phase.PREFILL, batch=4, tokens=100)
"""Its messages are 50 KiB: a two-shot all-reduce, in place. Those of a decode step are one-shot."""
TOKENS = (3, 4)
"""Given, not sampled: an argmax between near equals would part the ways."""


def job_of(model: str, split: str, arm: Arm | None, device: Device) -> Job:
    """The job of `model` in `split`."""
    return Job(
        shape=MODELS[model], split=parse_split(split), arm=arm, device=device, points=(PROMPT,)
    )


def logits(job: Job, number: int, transport: Any) -> list[Any]:
    """Of the prompt's last positions, and of a decode step for each of the given tokens (CPU)."""
    import torch

    from linkbound.profile.build import build, prompts

    with torch.inference_mode():
        network, _, _ = build(job, number, transport)
        network.allocate(PROMPT.batch, PROMPT.tokens + len(TOKENS))
        network.prefill(prompts(job, PROMPT, network.device), 0, job.chunk_tokens, 1)
        found = [_kept(network)]
        for token in TOKENS:
            network.tokens.fill_(token)
            network.decode(1)
            found.append(_kept(network))
    return found


def _kept(network: Any) -> Any:
    return network.logits.float().cpu().tolist()


def logits_of_two(folder: Path, model: str, split: str, arm: Arm) -> list[Any]:
    """The same by two processes, a GPU each; those of the last rank."""
    from linkbound.profile.launch import arm_environment

    context = multiprocessing.get_context("spawn")
    own = arm_environment(job_of(model, split, arm, Device.CUDA))
    processes = [
        context.Process(target=_rank, args=(number, str(folder), model, split, arm, own))
        for number in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.kill()
        process.join()
    assert not alive
    assert [process.exitcode for process in processes] == [0, 0]
    found: list[Any] = pickle.loads((folder / "logits").read_bytes())
    return found


def _rank(
    number: int, folder: str, model: str, split: str, arm: Arm, environment: dict[str, str]
) -> None:
    import os

    os.environ.update(environment)

    import torch
    import torch.distributed as dist

    from linkbound.profile.transport import ProcessGroups

    torch.cuda.set_device(number)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{folder}/meet",
        rank=number,
        world_size=2,
        device_id=torch.device("cuda", number),
    )
    job = job_of(model, split, arm, Device.CUDA)
    found = logits(job, number, ProcessGroups(job.split))
    if number == 1:
        (Path(folder) / "logits").write_bytes(pickle.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
