"""How many plans a second: every split of a model on eight GPUs, placed, under several loads.

Two rates: what fits and what crosses alone, and with the whole forecast in the closed form. Every
repeat starts with nothing kept from the one before.

Run: python benchmarks/bench_plans.py [--repeats N] [MODEL ...]
"""

import argparse
import itertools
import time
from collections.abc import Callable
from statistics import median

from linkbound.links import Arm, PairRate
from linkbound.model.read_model import read_model
from linkbound.model.types import Load, ModelShape
from linkbound.predict.book import CurveBook
from linkbound.predict.defaults import device_facts, prior_calibration
from linkbound.predict.forecast import forecast
from linkbound.predict.schedule import schedule
from linkbound.predict.stated import StatedBook
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan
from linkbound.serve import VLLM
from linkbound.splits import Phase, crossings, enumerate_splits, fit, parse_gpus, place
from linkbound.splits.types import Split
from linkbound.topology.types import Gpu

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b")
GPUS = "8x80GiB"
MACHINE = parse_gpus(GPUS)
# What prices the plans: a published GPU and a stated link. The rate does not depend on either.
GPU = Gpu(key="GPU0", label="GPU0", model="NVIDIA H100 80GB HBM3")
LATENCY_S, BYTES_PER_S = 8e-6, 200e9
PROMPTS = (128, 1024, 8192)
BATCHES = (1, 8, 32, 128)
OUTPUT_TOKENS = 256
LOADS = tuple(
    Load(prompt_tokens=prompt, output_tokens=OUTPUT_TOKENS, concurrency=batch)
    for prompt, batch in itertools.product(PROMPTS, BATCHES)
)
REPEATS = 5


def fit_and_cross(shape: ModelShape, splits: tuple[Split, ...]) -> None:
    """Memory and crossings of every plan."""
    for split in splits:
        placement = place(split, MACHINE)
        for load in LOADS:
            fit(shape, split, placement, MACHINE, load)
            crossings(shape, split, Phase.PREFILL, load.prompt_tokens, 1)
            crossings(shape, split, Phase.DECODE, load.concurrency, load.concurrency)


def forecast_all(shape: ModelShape, splits: tuple[Split, ...]) -> None:
    """Latency, TTFT, TPOT and terms of every plan."""
    schedule.cache_clear()
    book = StatedBook(
        CurveBook(MACHINE, (), direct_limit_bytes=VLLM.direct_all_reduce_limit_bytes),
        latency_s=LATENCY_S,
        bytes_per_s=BYTES_PER_S,
    )
    rates: tuple[PairRate, ...] = ()
    engine = Engine(shape, book, VLLM, prior_calibration(device_facts(GPU, rates)))
    for split in splits:
        arm = Arm.NCCL if split.tp * split.pp * split.ep > 1 else None
        plan = Plan(split=split, placement=place(split, MACHINE), arm=arm)
        for load in LOADS:
            forecast(engine, plan, load)


def rates_of(
    work: Callable[[ModelShape, tuple[Split, ...]], None], shape: ModelShape, repeats: int
) -> tuple[int, list[float]]:
    """Plans, and plans a second in each repeat, slowest first."""
    splits = enumerate_splits(len(MACHINE.gpus), shape)
    plans = len(splits) * len(LOADS)
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        work(shape, splits)
        rates.append(plans / (time.perf_counter() - start))
    return plans, sorted(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    asked = parser.parse_args()
    for model in asked.models:
        shape = read_model(model)
        for name, work in (("fit and crossings", fit_and_cross), ("forecast", forecast_all)):
            plans, rates = rates_of(work, shape, asked.repeats)
            print(
                f"{model:<14} {name:<17} {plans:>6,} plans on {GPUS}: "
                f"{median(rates):>7,.0f} a second ({rates[0]:,.0f}-{rates[-1]:,.0f} "
                f"in {len(rates)} repeats)"
            )


if __name__ == "__main__":
    main()
