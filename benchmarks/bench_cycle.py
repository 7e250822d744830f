"""How long prefill steps take from the first one after a rest on: power's cycle on a GPU.

Steps of one GPU from a CUDA graph, all enqueued, after rests of several lengths; one JSON line a
rest, milliseconds a step, means of `together` steps. `profile` compares steps only in the same part
of what this shows. Run on a GPU: python benchmarks/bench_cycle.py [MODEL]
"""

import argparse
import json
import time

import torch

from linkbound.model.read_model import read_model
from linkbound.profile.build import build
from linkbound.profile.measure import times_on_device
from linkbound.profile.network import Network
from linkbound.profile.steps import Step
from linkbound.profile.transport import Alone
from linkbound.profile.types import Device, Job, Point
from linkbound.splits.types import Phase, Split

PROMPT = 1024
RESTS_S = (0.1, 0.1, 1.0, 3.0)
BURSTS = ((1, 80, 8), (8, 12, 1))
"""Prompts at once, steps in a row, and of how many steps a mean is shown."""


def main() -> None:
    """Print one JSON line a rest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="llama-3.1-8b")
    shape = read_model(parser.parse_args().model)
    job = Job(shape=shape, split=Split(), arm=None, device=Device.CUDA, points=())
    with torch.inference_mode():
        network, _, _ = build(job, 0, Alone())
        for prompts, steps, together in BURSTS:
            point = Point(phase=Phase.PREFILL, batch=prompts, tokens=PROMPT)
            for rest_s in RESTS_S:
                means_ms = after_rest(network, job, point, rest_s, steps, together)
                print(
                    json.dumps(
                        {
                            "point": point.name,
                            "rest_s": rest_s,
                            "together": together,
                            "step_ms": [round(one, 2) for one in means_ms],
                        }
                    ),
                    flush=True,
                )


def after_rest(
    network: Network, job: Job, point: Point, rest_s: float, steps: int, together: int
) -> list[float]:
    """Milliseconds a step of `steps` in a row, the mean of each `together` of them."""
    step = Step(network, job, point, 0)
    step.capture()
    torch.cuda.synchronize()
    time.sleep(rest_s)
    times_s = times_on_device(step.run, steps)
    parts = (times_s[at : at + together] for at in range(0, steps, together))
    return [1e3 * sum(part) / len(part) for part in parts]


if __name__ == "__main__":
    main()
