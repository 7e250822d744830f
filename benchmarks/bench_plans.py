"""How many plans a second: crossings and memory of every split of a model, under several loads.

Run: python benchmarks/bench_plans.py [MODEL ...]
"""

import itertools
import sys
import time

from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.splits import Phase, crossings, enumerate_splits, fit, parse_gpus, place

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b")
GPUS = "8x80GiB"
PROMPTS = (128, 1024, 8192)
BATCHES = (1, 8, 32, 128)


def plans_per_s(model: str) -> tuple[int, float]:
    """Plans of `model` on eight GPUs, and how many of them were worked out a second."""
    shape, machine = read_model(model), parse_gpus(GPUS)
    splits = enumerate_splits(len(machine.gpus), shape)
    loads = [
        Load(prompt_tokens=prompt, output_tokens=256, concurrency=batch)
        for prompt, batch in itertools.product(PROMPTS, BATCHES)
    ]
    start = time.perf_counter()
    for split in splits:
        placement = place(split, machine)
        for load in loads:
            fit(shape, split, placement, machine, load)
            crossings(shape, split, Phase.PREFILL, load.prompt_tokens, 1)
            crossings(shape, split, Phase.DECODE, load.concurrency, load.concurrency)
    plans = len(splits) * len(loads)
    return plans, plans / (time.perf_counter() - start)


def main() -> None:
    for model in sys.argv[1:] or MODELS:
        plans, rate = plans_per_s(model)
        print(f"{model}: {plans:,} plans on {GPUS}, {rate:,.0f} plans a second")


if __name__ == "__main__":
    main()
