"""How much faster a GPU multiplies that rests in between: power, not arithmetic, sets its clock.

Layers of matrix products (8,192 tokens, llama-3.1-8b's shapes, bf16), each followed by a rest of a
share of its time, as a rank rests while data crosses the host; and bursts after a second of rest.
`python benchmarks/bench_rest.py` prints microseconds a layer; needs a GPU and the extra `torch`.
"""

import itertools
import json
import time
from collections.abc import Callable

import torch

TOKENS, HIDDEN, QKV, WIDE = 8192, 4096, 6144, 28672
RESTS = (0.0, 0.12, 0.25, 0.5, 0.62, 0.75)
STEADY_S = 0.8
BURST_LAYERS = 260


def main() -> None:
    """Print one JSON line a measurement."""
    layer = layer_of_products()
    alone_s = steady(layer, 0.0, 1)
    for layers in (1, 32):
        for rest in RESTS:
            layer_s = steady(layer, rest / (1 - rest) * alone_s * layers, layers)
            show(f"rests after {layers} layers", rest_share=rest, layer_s=layer_s)
    for idle_s in (0.05, 1.0):
        time.sleep(idle_s)
        times = burst(layer, BURST_LAYERS)
        for start in (0, 8, 16, 32, 64, 128, 224):
            part = times[start : start + 8]
            show(f"burst after {idle_s} s", after_layers=start, layer_s=sum(part) / 8)


def layer_of_products() -> Callable[[], None]:
    """The products of one layer, in one callable."""
    given = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, device="cuda")
    shapes = ((HIDDEN, QKV), (HIDDEN, HIDDEN), (HIDDEN, WIDE))
    weights = [torch.randn(*shape, dtype=torch.bfloat16, device="cuda") / 64 for shape in shapes]
    down = torch.randn(WIDE // 2, HIDDEN, dtype=torch.bfloat16, device="cuda") / 64

    def run() -> None:
        for weight in weights:
            out = given @ weight
        out[:, : WIDE // 2].contiguous() @ down

    return run


def steady(layer: Callable[[], None], rest_s: float, layers: int) -> float:
    """Seconds a layer, the median of the second half of STEADY_S; a rest after each `layers`."""
    cycles = int(rest_s * 1.98e9)
    laps = []
    began = time.monotonic()
    while time.monotonic() - began < STEADY_S:
        batch = []
        for _ in range(max(1, 32 // layers)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(layers):
                layer()
            end.record()
            if cycles:
                torch.cuda._sleep(cycles)
            batch.append((start, end))
        torch.cuda.synchronize()
        laps += [start.elapsed_time(end) / 1e3 / layers for start, end in batch]
    late = sorted(laps[len(laps) // 2 :])
    return late[len(late) // 2]


def burst(layer: Callable[[], None], layers: int) -> list[float]:
    """Seconds of each of `layers` layers in a row."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(layers + 1)]
    events[0].record()
    for event in events[1:]:
        layer()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]


def show(what: str, **values: float) -> None:
    print(json.dumps({"what": what, **{name: round(one, 7) for name, one in values.items()}}))


if __name__ == "__main__":
    main()
