"""Which kernels make a decode step of one token fastest: the library's products or our own.

Products are timed over all layers in one CUDA graph, so that weights come from memory as in a step;
then whole steps of the model with the winners in place. Every candidate is checked against float32.

Run on a GPU: python benchmarks/bench_decode.py [MODEL]
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import decode_kernels as kernels
import torch
from decode_kernels import MatvecShape

from linkbound.model.read_model import read_model
from linkbound.profile import ops
from linkbound.profile.build import build
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
    MatvecShape(rows, columns, warps)
    for (columns, warps), rows in itertools.product(((2048, 8), (1024, 4), (512, 2)), (1, 2, 4))
)
ATTENTION_BLOCKS = (32, 64)

Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""x, residual and the weights of the norm."""
Product = Callable[[MatvecShape | None, Given, torch.Tensor], torch.Tensor]
"""Cut (None is the library), what is given, and the weights to the result."""


def plain(cut: MatvecShape | None, given: Given, weight: torch.Tensor) -> torch.Tensor:
    x = given[0]
    return ops.product(x, weight) if cut is None else kernels.product(x, weight, cut)


def normed(cut: MatvecShape | None, given: Given, weight: torch.Tensor) -> torch.Tensor:
    if cut is None:
        return ops.norm_product(*given, weight)[0]
    return kernels.norm_product(*given, weight, cut)[0]


def gated(cut: MatvecShape | None, given: Given, weight: torch.Tensor) -> torch.Tensor:
    if cut is None:
        return ops.norm_gate(*given, weight)[0]
    return kernels.norm_product(*given, weight, cut, gated=True)[0]


def main() -> None:
    """Tables of products and of steps, the choice last."""
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
        network, _, parameters = build(job, 0, Alone())
        print(f"{parameters:,} parameters made in {time.perf_counter() - started:.1f} s")
        chosen = {
            name: best_cut(name, product, weights)
            for name, product, weights in products_of(network)
        }
        compare_steps(network, job, chosen)
    print(f"{time.perf_counter() - started:.0f} s in all")


def products_of(network: Network) -> Iterator[tuple[str, Product, list[torch.Tensor]]]:
    """The products of a step by name: what computes one, and its weights in every layer."""
    layers: list[Any] = network.layers
    yield "qkv", normed, [one.attention.qkv for one in layers]
    yield "output", plain, [one.attention.output for one in layers]
    yield "gate-up", gated, [one.feed_forward._block.into for one in layers]
    yield "down", plain, [one.feed_forward._block.down for one in layers]
    yield "head", normed, [network.head] * 8


def best_cut(name: str, product: Product, weights: list[torch.Tensor]) -> MatvecShape | None:
    """The fastest way, the library included; prints each."""
    width = weights[0].shape[1]
    x, residual = (torch.randn(1, width, device="cuda").bfloat16() for _ in range(2))
    norm = torch.rand(width, device="cuda").add(0.5).bfloat16()
    expected = _reference(product, (x, residual, norm), weights[0])
    found = []
    for cut in (None, *(one for one in CUTS if one.takes(x))):
        # The library's norm leaves its sum in the residual.
        out = product(cut, (x, residual.clone(), norm), weights[0]).float()
        error = float((out - expected).norm() / expected.norm())
        if not error < TOLERANCE:
            print(f"{name:8} {_name(cut):18} WRONG by {error:.3g}")
            continue
        given = (x, residual.clone(), norm)
        each_s = _graph_s(product, cut, given, weights) / len(weights)
        rate = weights[0].nbytes / each_s
        found.append((each_s, cut))
        print(f"{name:8} {_name(cut):18} {each_s * 1e6:8.1f} us {rate / 1e12:6.2f} TB/s")
    return min(found, key=lambda one: one[0])[1]


def _name(cut: MatvecShape | None) -> str:
    return "library" if cut is None else cut.name


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


def _graph_s(
    product: Product, cut: MatvecShape | None, given: Given, weights: list[torch.Tensor]
) -> float:
    """Median seconds of a replay of one product a layer."""
    product(cut, given, weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in weights:
            product(cut, given, one)
    graph.replay()
    return median(_event_times(graph.replay, REPLAYS))


def compare_steps(network: Network, job: Job, chosen: dict[str, MatvecShape | None]) -> None:
    """Whole steps: as it is, with the attention kernel, with the products, with both."""
    attention = {
        f"attention {block}": {"append_attend_one": _attention(block)} for block in ATTENTION_BLOCKS
    }
    products = {"products": _products(chosen, network)}
    variants: dict[str, dict[str, Any]] = {"as it is": {}, **attention, **products}
    for name, changes in attention.items():
        variants[f"products, {name}"] = {**products["products"], **changes}
    expected = None
    for name, changes in variants.items():
        with _changed(changes):
            times_s, logits = _step_times(network, job)
        expected = logits if expected is None else expected
        error = float((logits - expected).norm() / expected.norm())
        print(
            f"step {name:24} {median(times_s) * 1e3:7.3f} ms "
            f"({min(times_s) * 1e3:.3f} - {max(times_s) * 1e3:.3f}), logits differ by {error:.2g}"
        )
    print("cuts " + ", ".join(f"{name}: {_name(cut)}" for name, cut in chosen.items()))


def _attention(block: int) -> Callable[..., torch.Tensor]:
    return lambda *given: kernels.append_attend_one(*given, block=block)


def _products(chosen: dict[str, MatvecShape | None], network: Network) -> dict[str, Any]:
    """Functions in place of those of `ops`, each with the cut that won for its weights."""
    by_weight = {weights[0].shape: chosen[name] for name, _, weights in products_of(network)}
    library = (ops.product, ops.norm_product, ops.norm_gate)

    def product(x: torch.Tensor, weight: torch.Tensor, out: Any = None) -> torch.Tensor:
        cut = by_weight.get(weight.shape)
        taken = cut is not None and cut.takes(x)
        return kernels.product(x, weight, cut, out) if taken else library[0](x, weight, out)

    def norm_product(
        x: torch.Tensor, residual: Any, norm: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cut = by_weight.get(weight.shape)
        taken = cut is not None and cut.takes(x)
        given = (x, residual, norm, weight)
        return kernels.norm_product(*given, cut) if taken else library[1](*given)

    def norm_gate(
        x: torch.Tensor, residual: Any, norm: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cut = by_weight.get(weight.shape)
        taken = cut is not None and cut.takes(x)
        given = (x, residual, norm, weight)
        return kernels.norm_product(*given, cut, gated=True) if taken else library[2](*given)

    return {"product": product, "norm_product": norm_product, "norm_gate": norm_gate}


@contextmanager
def _changed(changes: dict[str, Any]) -> Iterator[None]:
    kept = {name: getattr(ops, name) for name in changes}
    for name, value in changes.items():
        setattr(ops, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(ops, name, value)


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
