"""How many requests a second are simulated: one engine, replicas, a pipeline, in two processes.

A request is 1,024 tokens in and 256 out. Each process plays loads of its own; nothing is kept from
one repeat to the next but the prices of steps, as within one call of `linkbound simulate`.

Run: python benchmarks/bench_simulate.py [--requests N] [--repeats N] [--processes N]
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from statistics import median

from linkbound.links import Arm
from linkbound.model.read_model import read_model
from linkbound.predict.book import CurveBook
from linkbound.predict.defaults import device_facts, prior_calibration
from linkbound.predict.simulate import Cache, Scenario
from linkbound.predict.simulate.play import Tables, likely, play
from linkbound.predict.simulate.summary import summarise
from linkbound.predict.stated import StatedBook
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan
from linkbound.serve.engines import ENGINES
from linkbound.serve.load_types import Arrival, Cell
from linkbound.serve.rules import as_served
from linkbound.splits import parse_gpus, place
from linkbound.splits.types import Split
from linkbound.topology.types import Gpu

# What prices the steps: a published GPU and a stated link. The rate does not depend on either.
MACHINE = parse_gpus("2x80GiB")
GPU = Gpu(key="GPU0", label="GPU0", model="NVIDIA H100 80GB HBM3")
LATENCY_S, BYTES_PER_S = 8e-6, 200e9
PROMPT_TOKENS, OUTPUT_TOKENS = 1024, 256
CACHE = Cache(blocks=30_000, block_tokens=16)
STEP_SPREAD = 0.04
LOADS: dict[str, tuple[Split, float | None, int | None]] = {
    "one engine, 64 at once": (Split(), None, 64),
    "one engine, 4/s poisson": (Split(), 4.0, None),
    "2 replicas, 64 at once": (Split(replicas=2), None, 64),
    "2 replicas, 8/s poisson": (Split(replicas=2), 8.0, None),
    "pp2, 64 at once": (Split(pp=2), None, 64),
    "pp2, 4/s poisson": (Split(pp=2), 4.0, None),
}


@lru_cache(maxsize=1)
def engine() -> Engine:
    """What prices the steps of every load."""
    rules = ENGINES["vllm"].rules
    assert rules is not None
    book = StatedBook(
        CurveBook(MACHINE, (), direct_limit_bytes=rules.direct_all_reduce_limit_bytes),
        latency_s=LATENCY_S,
        bytes_per_s=BYTES_PER_S,
    )
    shape = read_model("llama-3.1-8b")
    return Engine(shape, book, rules, prior_calibration(device_facts(GPU, ())))


def scenario(name: str, requests: int) -> Scenario:
    """The load of this name, so many requests long."""
    split, rate, concurrency = LOADS[name]
    arm = Arm.NCCL if split.tp * split.pp > 1 else None
    return Scenario(
        plan=Plan(split=split, placement=place(split, MACHINE), arm=arm),
        cell=Cell(
            arrival=Arrival.CLOSED if rate is None else Arrival.POISSON,
            requests=requests,
            rate_per_s=rate,
            concurrency=concurrency,
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            seed=1,
        ),
        rules=as_served(engine().rules),
        cache=CACHE,
        step_spread=STEP_SPREAD,
    )


def seconds_of(name: str, requests: int, repeats: int, first_seed: int) -> list[float]:
    """Seconds of each repeat, figures included."""
    tables = Tables(engine(), scenario(name, requests), likely)
    found = []
    for repeat in range(repeats):
        start = time.perf_counter()
        fleet, played = play(tables, first_seed + repeat)
        summarise(fleet, played, None)
        found.append(time.perf_counter() - start)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.processes) as pool:
        for name in LOADS:
            started = [
                pool.submit(seconds_of, name, asked.requests, asked.repeats, 1_000 * number)
                for number in range(asked.processes)
            ]
            each = [[asked.requests / one for one in process.result()] for process in started]
            rates = sorted(sum(together) for together in zip(*each, strict=True))
            print(
                f"{name:<24} {median(rates):>8,.0f} requests a second "
                f"({rates[0]:,.0f}-{rates[-1]:,.0f} in {len(rates)} repeats, "
                f"{asked.processes} processes)"
            )


if __name__ == "__main__":
    main()
