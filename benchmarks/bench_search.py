"""How long a search takes: 8 GPUs in islands and alike, and fabrics of 1,024 GPUs.

The machines are made up: H100 by its data sheet, links stated. No figure of a plan is meant to be
true of any machine; the time of a search does not depend on them.

Run: python benchmarks/bench_search.py [--repeats N] [MODEL ...]
"""

import argparse
import time
from itertools import permutations
from statistics import median

from linkbound.evidence.types import Provenance
from linkbound.links import Arm, Operation
from linkbound.links.types import Curve, CurveKey, CurvePoint, Timed
from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.predict.assumed import wire_share
from linkbound.predict.book import CurveBook
from linkbound.predict.defaults import device_facts, prior_calibration
from linkbound.predict.schedule import sampled_schedule, schedule
from linkbound.predict.steptime import Engine
from linkbound.search import Objective, find
from linkbound.serve import VLLM
from linkbound.splits.modules import Module, modules_of
from linkbound.splits.tree import Tree
from linkbound.topology.types import Gpu, Machine, Pair, PairPath, PathKind
from linkbound.units import GIB

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b")
GPU_MODEL = "NVIDIA H100 80GB HBM3"
# Latency of a call and bytes a second each way: inside an NVLink domain, and over the rails or the
# sockets beyond it; a staged call takes three times as long.
INSIDE, BEYOND = (8e-6, 350e9), (25e-6, 45e9)
STAGED = 3.0
LOAD = Load(prompt_tokens=1024, output_tokens=256, concurrency=32)
LIMITS_S = {8: 1.0, 1024: 10.0}
"""GPUs to the seconds that a search may take."""


class DomainBook(CurveBook):
    """Calls inside a domain take the domain's link, all others the link beyond it."""

    def __init__(self, machine: Machine, domain: int) -> None:
        super().__init__(machine, (), direct_limit_bytes=VLLM.direct_all_reduce_limit_bytes)
        self._domain = {gpu.label: at // domain for at, gpu in enumerate(machine.gpus)}

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve]:
        inside = len({self._domain[label] for label in group}) == 1
        latency_s, bytes_per_s = INSIDE if inside else BEYOND
        time_s = latency_s + size_bytes * wire_share(operation, len(group)) / bytes_per_s
        time_s *= STAGED if arm is Arm.STAGED else 1.0
        timed = Timed(time_s=time_s, low_s=time_s, high_s=time_s, provenance=Provenance.STATED)
        key = CurveKey(operation=operation, implementation="stated", group=group, arm=arm)
        point = CurvePoint(size_bytes=size_bytes, time_s=time_s)
        return timed, Curve(key=key, points=(point,), source="stated")


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(key=f"GPU{at}", label=f"GPU{at}", model=GPU_MODEL, memory_bytes=80 * GIB)
        for at in range(count)
    )


def fabric(count: int, domain: int) -> tuple[Machine, Tree]:
    """NVLink domains over rails; the last one may be smaller."""
    kind = f"{GPU_MODEL}, 80 GiB"
    domains = [range(at, min(at + domain, count)) for at in range(0, count, domain)]
    root = Module(
        gpus=tuple(range(count)),
        links=(("rail",),),
        children=tuple(
            Module(
                gpus=tuple(one),
                links=(("NVLink",),),
                children=tuple(Module(gpus=(gpu,), kind=kind) for gpu in one),
            )
            for one in domains
        ),
    )
    return Machine(sources=("made up",), gpus=gpus(count)), Tree(root, count)


def host(domain: int) -> tuple[Machine, Tree]:
    """Eight GPUs in NVLink islands of `domain`, on two sockets."""
    machine = Machine(
        sources=("made up",),
        gpus=gpus(8),
        pairs=tuple(
            PairPath(
                pair=Pair(src=f"GPU{src}", dst=f"GPU{dst}"),
                kind=PathKind.NVLINK
                if src // domain == dst // domain
                else PathKind.NODE
                if src // 4 == dst // 4
                else PathKind.SYS,
            )
            for src, dst in permutations(range(8), 2)
        ),
    )
    return machine, Tree(modules_of(machine), 8)


MACHINES = {
    "8 GPUs, one island": (*host(8), 8),
    "8 GPUs, islands of 4": (*host(4), 4),
    "8 GPUs, islands of 2": (*host(2), 2),
    "1,024 GPUs, domains of 8": (*fabric(1024, 8), 8),
    "1,024 GPUs, domains of 72": (*fabric(1024, 72), 72),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    for model in asked.models:
        shape = read_model(model)
        for name, (machine, tree, domain) in MACHINES.items():
            times = []
            for _ in range(asked.repeats):
                schedule.cache_clear()
                sampled_schedule.cache_clear()
                begun = time.perf_counter()
                rules, book = VLLM, DomainBook(machine, domain)
                constants = prior_calibration(device_facts(machine.gpus[0], ()))
                engine = Engine(shape, book, rules, constants)
                found = find(engine, tree, LOAD, Objective.LATENCY)
                times.append(time.perf_counter() - begun)
            limit_s = LIMITS_S[len(machine.gpus)]
            best = "none" if found.best is None else found.best.plan.name
            print(
                f"{model:<14} {name:<26} {median(times):6.2f} s "
                f"({min(times):.2f}-{max(times):.2f}) of {limit_s:g}: {found.candidates:,} "
                f"candidates, {found.ruled_out:,} ruled out, best {best}"
            )


if __name__ == "__main__":
    main()
