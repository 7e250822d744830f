"""Products of 8-bit floats on a GPU against float32; a program too, for the interpreter."""

import itertools
import json
import math
import sys

import torch

from linkbound.profile import float8, kernels, ops
from linkbound.profile.float8 import Float8


def rows_error(device: str) -> float:
    """Relative error of rows that the kernel has put into 8 bits, of unlike sizes."""
    torch.manual_seed(0)
    sizes = torch.tensor([1e-3, 1.0, 1e3, 1.0], device=device)[:, None]
    x = (torch.randn(4, 3000, device=device) * sizes).bfloat16()
    values, scale = kernels.quantise_rows(x, float8.MOST, float8.LEAST_SCALE)
    expected = x.float().abs().amax(-1, keepdim=True) / float8.MOST
    assert torch.allclose(scale, expected)
    assert values.dtype == float8.TYPE
    found = values.float()
    if device == "cpu":
        # Triton 3.8's interpreter forgets the carry where rounding reaches a power of two.
        right = float8.quantised(x)[0].float()
        found = torch.where(right.abs().log2().frac() == 0, right, found)
    each = (found * scale - x.float()).norm(dim=-1) / x.float().norm(dim=-1)
    assert each.max() < 2 * each.min()
    return float(each.mean())


def product_errors(rows: int, outputs: int, inputs: int) -> tuple[float, float]:
    """Against float32 products of the same 8-bit numbers, and of those before rounding."""
    plain, weight, x = _drawn((outputs, inputs), rows)
    return _errors(ops.product(x, weight), x, plain, weight)


def grouped_errors(rows: int) -> tuple[float, float]:
    """The same of four groups, one of them empty, and rows behind the last."""
    plain, weights, x = _drawn((4, 512, 2048), rows)
    bounds = [0, rows // 4, rows // 4, rows // 2, rows - 2]
    ends = torch.tensor(bounds[1:], dtype=torch.int32, device="cuda")
    out = ops.grouped_product(x, weights, ends)
    found = []
    for group, (start, end) in enumerate(itertools.pairwise(bounds)):
        if start < end:
            one = Float8(weights.values[group], weights.scale[group : group + 1])
            found.append(_errors(out[start:end], x[start:end], plain[group], one))
    return max(one for one, _ in found), max(one for _, one in found)


def replayed_error(rows: int) -> float:
    """Of a product in a graph with other numbers than those it was captured with."""
    _, weight, x = _drawn((5120, 4096), rows)
    ops.product(x, weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.product(x, weight)
    x.copy_(torch.randn_like(x))
    graph.replay()
    expected = ops.product(x, weight)
    return float((out.float() - expected.float()).abs().max())


def _drawn(shape: tuple[int, ...], rows: int) -> tuple[torch.Tensor, Float8, torch.Tensor]:
    torch.manual_seed(0)
    half = math.sqrt(3.0 / shape[-1])
    plain = torch.empty(shape, device="cuda").uniform_(-half, half).bfloat16()
    x = torch.randn(rows, shape[-1], device="cuda").bfloat16()
    return plain, float8.stored(plain, half), x


def _errors(
    found: torch.Tensor, x: torch.Tensor, plain: torch.Tensor, weight: Float8
) -> tuple[float, float]:
    assert found.dtype == x.dtype
    values, scale = float8.quantised(x)
    # In float64: float32 products may go through tensor cores of fewer bits.
    same = values.double() @ weight.values.double().t() * scale.double() * weight.scale.double()
    unrounded = x.double() @ plain.double().t()
    return _error(found, same), _error(found, unrounded)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


if __name__ == "__main__":
    json.dump(rows_error("cpu"), sys.stdout)
