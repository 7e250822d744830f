"""How a product of one row is cut best, and what a decode step of one token gains by it.

Products are timed over all layers in one CUDA graph, so that weights come from memory as in a step;
then whole steps of the model: with the library's products, and as it is. Every product is checked
against float32.

Run on a GPU: python benchmarks/bench_decode.py [MODEL]
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

import torch

from linkbound.model.read_model import read_model
from linkbound.profile import matvec, ops
from linkbound.profile.build import build
from linkbound.profile.matvec import Cut
from linkbound.profile.network import Network
from linkbound.profile.steps import Step
from linkbound.profile.transport import Alone
from linkbound.profile.types import Device, Job, Point
from linkbound.splits.types import Phase, Split

CONTEXT = 1024
REPLAYS, STEPS = 9, 40
TOLERANCE = 0.01
"""Of ||out - reference|| / ||reference||: bf16 results are within 0.3 %."""
CUTS = tuple(
    Cut(rows, columns, warps)
    for (columns, warps), rows in itertools.product(((2048, 8), (1024, 4), (512, 2)), (1, 2, 4))
)

Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""x, residual and the weights of the norm."""
Product = Callable[[Cut | None, Given, torch.Tensor], torch.Tensor]
"""Cut (None is the library), what is given, and the weights to the result."""


def plain(cut: Cut | None, given: Given, weight: torch.Tensor) -> torch.Tensor:
    with _only(cut):
        return ops.product(given[0], weight)


def normed(cut: Cut | None, given: Given, weight: torch.Tensor) -> torch.Tensor:
    with _only(cut):
        return ops.norm_product(*given, weight)[0]


def gated(cut: Cut | None, given: Given, weight: torch.Tensor) -> torch.Tensor:
    with _only(cut):
        return ops.norm_gate(*given, weight)[0]


@contextmanager
def _only(cut: Cut | None) -> Iterator[None]:
    """Every product of one row is cut so; None leaves all to the library."""
    kept = matvec.cut_of
    matvec.cut_of = lambda x, **_: cut if len(x) == 1 else None
    try:
        yield
    finally:
        matvec.cut_of = kept


def main() -> None:
    """Tables of products and of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="llama-3.1-8b")
    job = Job(
        shape=read_model(parser.parse_args().model, {}),
        split=Split(),
        arm=None,
        device=Device.CUDA,
        points=(Point(phase=Phase.DECODE, batch=1, tokens=1, context=CONTEXT),),
    )
    started = time.perf_counter()
    with torch.inference_mode():
        network, _, maker = build(job, 0, Alone())
        print(f"{maker.parameters:,} parameters made in {time.perf_counter() - started:.1f} s")
        for name, product, weights in products_of(network):
            time_cuts(name, product, weights)
        compare_steps(network, job)
    print(f"{time.perf_counter() - started:.0f} s in all")


def products_of(network: Network) -> Iterator[tuple[str, Product, list[torch.Tensor]]]:
    """The products of a step by name: what computes one, and its weights in every layer."""
    layers: list[Any] = network.layers
    yield "qkv", normed, [one.attention.qkv for one in layers]
    yield "output", plain, [one.attention.output for one in layers]
    yield "gate-up", gated, [one.feed_forward._block.into for one in layers]
    yield "down", plain, [one.feed_forward._block.down for one in layers]
    yield "head", normed, [network.head] * 8


def time_cuts(name: str, product: Product, weights: list[torch.Tensor]) -> None:
    """Print what every cut and the library take."""
    width = weights[0].shape[1]
    x, residual = (torch.randn(1, width, device="cuda").bfloat16() for _ in range(2))
    norm = torch.rand(width, device="cuda").add(0.5).bfloat16()
    expected = _reference(product, (x, residual, norm), weights[0])
    for cut in (None, *(one for one in CUTS if width % one.columns == 0)):
        # The library's norm leaves its sum in the residual.
        out = product(cut, (x, residual.clone(), norm), weights[0]).float()
        error = float((out - expected).norm() / expected.norm())
        if not error < TOLERANCE:
            print(f"{name:8} {_name(cut):18} WRONG by {error:.3g}")
            continue
        given = (x, residual.clone(), norm)
        each_s = _graph_s(product, cut, given, weights) / len(weights)
        rate = weights[0].nbytes / each_s
        print(f"{name:8} {_name(cut):18} {each_s * 1e6:8.1f} us {rate / 1e12:6.2f} TB/s")


def _name(cut: Cut | None) -> str:
    return "library" if cut is None else f"{cut.rows}x{cut.columns} w{cut.warps}"


def _reference(product: Product, given: Given, weight: torch.Tensor) -> torch.Tensor:
    """In float32, as the definitions say."""
    x, residual, norm = (one.float() for one in given)
    value = x
    if product is not plain:
        total = x + residual
        value = total * torch.rsqrt(total.square().mean() + ops.EPSILON) * norm
    out = value @ weight.float().t()
    if product is gated:
        gate, up = out.chunk(2, dim=-1)
        out = torch.nn.functional.silu(gate) * up
    return out


def _graph_s(product: Product, cut: Cut | None, given: Given, weights: list[torch.Tensor]) -> float:
    """Median seconds of a replay of one product a layer."""
    product(cut, given, weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in weights:
            product(cut, given, one)
    graph.replay()
    return median(_event_times(graph.replay, REPLAYS))


def compare_steps(network: Network, job: Job) -> None:
    """Whole steps: with the library's products, and as it is."""
    expected = None
    for name, products in (("library", _only(None)), ("as it is", nullcontext())):
        with products:
            times_s, logits = _step_times(network, job)
        expected = logits if expected is None else expected
        error = float((logits - expected).norm() / expected.norm())
        print(
            f"step {name:10} {median(times_s) * 1e3:7.3f} ms "
            f"({min(times_s) * 1e3:.3f} - {max(times_s) * 1e3:.3f}), logits differ by {error:.2g}"
        )


def _step_times(network: Network, job: Job) -> tuple[list[float], torch.Tensor]:
    torch.manual_seed(0)
    step = Step(network, job, job.points[0], STEPS + 2)
    step.capture()
    step.reset()
    step.run()
    torch.cuda.synchronize()
    assert network.logits is not None
    logits = network.logits.float().clone()
    step.reset()
    return list(_event_times(step.run, STEPS)), logits


def _event_times(run: Callable[[], object], count: int) -> Iterable[float]:
    """Seconds of each run, from event to event."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return (a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(events))


if __name__ == "__main__":
    main()
