"""Products of one row by our kernel against float32; a program too, for the interpreter."""

import json
import sys

import torch

from linkbound.profile import matvec
from linkbound.profile.ops import EPSILON

CASES = {
    "plain": (37, 2048, {}),
    "plain, no multiple of 2,048": (37, 7168, {}),
    "plain, many inputs": (37, 14336, {}),
    "normed": (37, 1536, {"normed": True}),
    "gated": (37, 4096, {"gated": True}),
    "gated, no multiple of 1,024": (37, 1536, {"gated": True}),
}
"""Outputs, inputs and kind: no tile divides the outputs."""


def errors(device: str) -> dict[str, list[float]]:
    """Relative errors of each case: of the result, and of the sum that a norm leaves."""
    torch.manual_seed(0)
    return {name: _errors(device, *case) for name, case in CASES.items()}


def _errors(device: str, outputs: int, inputs: int, kind: dict[str, bool]) -> list[float]:
    cut = matvec.cut_of(torch.empty(1, inputs), **kind)
    assert cut is not None
    gated = kind.get("gated", False)
    rows = 2 * outputs if gated else outputs
    x, residual, weight = (
        torch.randn(size, inputs, device=device).bfloat16() for size in (1, 1, rows)
    )
    if not kind:
        room = torch.empty(1, outputs, device=device).bfloat16()
        expected = x.float() @ weight.float().t()
        given = matvec.product(x, weight, cut, room)
        assert given is room
        return [_error(matvec.product(x, weight, cut), expected), _error(given, expected)]
    norm = torch.rand(inputs, device=device).add(0.5).bfloat16()
    found = []
    for other in (residual, None):
        out, total = matvec.norm_product(x, other, norm, weight, EPSILON, cut, gated=gated)
        summed = x.float() if other is None else x.float() + other.float()
        scale = torch.rsqrt(summed.square().mean() + EPSILON)
        expected = (summed * scale * norm.float()) @ weight.float().t()
        if gated:
            gate, up = expected.chunk(2, dim=-1)
            expected = torch.nn.functional.silu(gate) * up
        found += [_error(out, expected), _error(total, summed)]
    return found


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


if __name__ == "__main__":
    json.dump(errors("cpu"), sys.stdout)
