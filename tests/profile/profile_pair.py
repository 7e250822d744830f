"""Processes over gloo that run every case after one start: importing torch is the slow part."""

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from profile_models import MODELS

from linkbound.profile.types import Call, Delay, Device, Job, Point, Timeline
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Dispatch, Phase

PROMPT = Point(phase=Phase.PREFILL, batch=4, tokens=12)
DECODES = 3
CASES = {
    "tp2": ("dense", "tp2", None, {}),
    "tp2 one kv head": ("one_kv_head", "tp2", None, {}),
    "tp2 tied": ("tied", "tp2", None, {}),
    "tp2 in chunks": ("dense", "tp2", None, {"chunk_tokens": 5}),
    "pp2": ("dense", "pp2", None, {}),
    "pp2 uneven": ("dense", "pp2:1,2", None, {}),
    "pp2 tied": ("tied", "pp2", None, {}),
    "pp2 micro-batches": ("dense", "pp2", None, {"micro_batches": 2}),
    "tp2 mixture": ("mixture", "tp2", None, {}),
    "ep2 all-reduce": ("mixture", "tp2 ep2", Dispatch.ALL_REDUCE, {}),
    "ep2 gather": ("mixture", "tp2 ep2", Dispatch.GATHER_SCATTER, {}),
    "ep2 all-to-all": ("mixture", "tp2 ep2", Dispatch.ALL_TO_ALL, {}),
    "replicas gather": ("mixture", "ep2 x2", Dispatch.GATHER_SCATTER, {}),
    "replicas all-to-all": ("mixture", "ep2 x2", Dispatch.ALL_TO_ALL, {}),
    "pp2 mixture": ("mixture", "pp2", None, {}),
    "replicas": ("dense", "x2", None, {}),
    "tp2 latent": ("latent", "tp2", None, {}),
    "pp2 latent": ("latent", "pp2", None, {}),
    "ep2 latent all-reduce": ("latent", "tp2 ep2", Dispatch.ALL_REDUCE, {}),
    "ep2 latent gather": ("latent", "tp2 ep2", Dispatch.GATHER_SCATTER, {}),
    "delayed": ("dense", "tp2", None, {"delay": Delay(rank=1, seconds=0.004)}),
    "tp4 of two kv heads": ("dense", "tp4", None, {}),
    "tp2 pp2": ("dense", "tp2 pp2", None, {}),
    "tp2 pp2 latent": ("latent", "tp2 pp2:2,1", None, {}),
    "tp2 fp8": ("fp8", "tp2", None, {}),
    "pp2 fp8": ("fp8", "pp2", None, {}),
    "pp2 fp8 mixture": ("fp8_mixture", "pp2", None, {}),
    "pp2 fp8 latent": ("fp8_latent", "pp2", None, {}),
    "tp2 ep4 x2 all-to-all": ("mixture", "tp2 ep4 x2", Dispatch.ALL_TO_ALL, {}),
}
GIVEN_TOKENS = frozenset({"tp2 fp8"})
"""Cases whose tokens are given: roundings to 8 bits would sample others in one process."""
SIZES = (2, 4)
"""Processes that cases are run in."""


class RankResult:
    """What one rank made of one case."""

    def __init__(
        self,
        logits: list[list[list[float]]] | None,
        calls: dict[str, tuple[Call, ...]],
        timeline: Timeline,
    ) -> None:
        self.logits, self.calls, self.timeline = logits, calls, timeline


def job_of(case: str) -> Job:
    """The job of a case."""
    model, split_text, dispatch, settings = CASES[case]
    split = parse_split(split_text)
    if dispatch is not None:
        split = replace(split, dispatch=dispatch)
    given: dict[str, Any] = dict(settings)
    return Job(
        shape=MODELS[model], split=split, arm=None, device=Device.CPU, points=(PROMPT,), **given
    )


def run_case(job: Job, number: int, transport: Any, *, given: bool = False) -> RankResult:
    """A prompt and some tokens, in logits where this rank is the last stage."""
    import torch

    from linkbound.profile.build import build, prompts

    with torch.inference_mode():
        network, ledger, _ = build(job, number, transport)
        network.allocate(PROMPT.batch, PROMPT.tokens + 2 * DECODES)
        ids = prompts(job, PROMPT, network.device)
        calls = {}
        with ledger.counting():
            network.prefill(ids, 0, job.chunk_tokens, job.micro_batches)
        calls["prefill"] = ledger.calls
        logits = []
        for step in range(DECODES):
            if given:
                network.tokens.fill_(step + 3)
            with ledger.counting():
                network.decode(job.micro_batches)
            calls["decode"] = ledger.calls
            logits.append(_kept(network))
        with ledger.timing():
            for _ in range(DECODES):
                with ledger.step():
                    network.decode(job.micro_batches)
        known = None if logits[0] is None else logits
        return RankResult(known, calls, ledger.timeline())


def _kept(network: Any) -> Any:
    if network.logits is None:
        return None
    # With micro-batches the last piece alone is kept: rows of the others are elsewhere.
    return network.logits.tolist()


Results = dict[str, tuple[RankResult, ...]]


def run_all(folder: Path) -> Results:
    """Every case in as many processes as it has ranks."""
    found: Results = {}
    for size in SIZES:
        own = folder / str(size)
        own.mkdir()
        found |= _run(own, size)
    return found


def _cases(size: int) -> list[str]:
    return [case for case in CASES if job_of(case).split.gpus == size]


def _run(folder: Path, size: int) -> Results:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_rank, args=(number, size, str(folder))) for number in range(size)
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
    assert [process.exitcode for process in processes] == [0] * size
    ranks = [pickle.loads((folder / f"rank{number}").read_bytes()) for number in range(size)]
    return {case: tuple(rank[case] for rank in ranks) for case in _cases(size)}


def _rank(number: int, size: int, folder: str) -> None:
    import os

    import torch
    import torch.distributed as dist

    from linkbound.profile.transport import ProcessGroups

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=number, world_size=size
    )
    results = {}
    for case in _cases(size):
        job = job_of(case)
        results[case] = run_case(job, number, ProcessGroups(job.split), given=case in GIVEN_TOKENS)
    (Path(folder) / f"rank{number}").write_bytes(pickle.dumps(results))
    dist.destroy_process_group()
