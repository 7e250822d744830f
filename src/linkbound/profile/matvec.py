"""Triton kernel of a product of one row, its norm, gate and residual sum included (P1).

A step of one token is read from memory once: the library's kernels are made for many rows, and the
small ones between its products leave memory idle. Cuts were compared by benchmarks/bench_decode.py.
"""

# Triton's compiler reads these functions: it knows one annotation, and wants constants in capitals.
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Cut(NamedTuple):
    """Rows and columns of the tile of weights that a program reads at a time, and its warps."""

    rows: int
    columns: int
    warps: int


PLAIN = (Cut(1, 2048, 8), Cut(2, 1024, 4), Cut(2, 512, 2))
LONG = (Cut(2, 1024, 4), Cut(2, 512, 2))
NORMED = (Cut(4, 512, 2),)
GATED = (Cut(2, 1024, 4), Cut(4, 512, 2))
LONG_INPUTS = 8192
"""Inputs from which `LONG` comes before `PLAIN`: between 4,096 and 14,336, where each was fastest
on an H200."""


def cut_of(x: torch.Tensor, *, normed: bool = False, gated: bool = False) -> Cut | None:
    """How the product of `x` (rows x inputs) is cut; None where the library takes it."""
    rows, inputs = x.shape
    if rows != 1:
        return None
    cuts: tuple[Cut, ...]
    if gated:
        cuts = GATED
    elif normed:
        cuts = NORMED
    else:
        cuts = LONG if inputs >= LONG_INPUTS else PLAIN
    return next((cut for cut in cuts if inputs % cut.columns == 0), None)


@triton.jit
def _matvec(
    x, residual, gain, weight, out, total, outputs, eps,
    INPUTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """ROWS outputs of one row: a tile of weights at a time, sums in registers."""
    program = tl.program_id(0)
    row = program * ROWS + tl.arange(0, ROWS)
    # Rows beyond the end read the last one again: no mask in the loop.
    source = tl.minimum(row, outputs - 1).to(tl.int64) * INPUTS
    other = (tl.minimum(row, outputs - 1) + outputs).to(tl.int64) * INPUTS
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    ups = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, INPUTS, BLOCK, num_stages=1):
        at = start + tl.arange(0, BLOCK)
        part = tl.load(weight + source[:, None] + at[None, :], eviction_policy="evict_first")
        if GATED:
            up = tl.load(weight + other[:, None] + at[None, :], eviction_policy="evict_first")
        value = tl.load(x + at).to(tl.float32)
        if NORM:
            if ADD:
                value += tl.load(residual + at).to(tl.float32)
            # As the sum is kept: rounded.
            value = value.to(x.dtype.element_ty).to(tl.float32)
            squares += value * value
            value *= tl.load(gain + at).to(tl.float32)
        sums += part.to(tl.float32) * value[None, :]
        if GATED:
            ups += up.to(tl.float32) * value[None, :]
    result = tl.sum(sums, 1)
    if NORM:
        result *= 1.0 / tl.sqrt(tl.sum(squares, 0) / INPUTS + eps)
    if GATED:
        other_result = tl.sum(ups, 1)
        if NORM:
            other_result *= 1.0 / tl.sqrt(tl.sum(squares, 0) / INPUTS + eps)
        result = result / (1.0 + tl.exp(-result)) * other_result
    tl.store(out + row, result.to(out.dtype.element_ty), mask=row < outputs)
    if NORM and program == 0:
        # Behind the loop: no load of weights may pass a store.
        for start in range(0, INPUTS, BLOCK):
            at = start + tl.arange(0, BLOCK)
            value = tl.load(x + at).to(tl.float32)
            if ADD:
                value += tl.load(residual + at).to(tl.float32)
            tl.store(total + at, value.to(x.dtype.element_ty))


def product(
    x: torch.Tensor, weight: torch.Tensor, cut: Cut, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x · weightᵀ of one row, written to `out` where one is given."""
    if out is None:
        out = torch.empty(1, len(weight), dtype=x.dtype, device=x.device)
    _matvec[(triton.cdiv(len(weight), cut.rows),)](
        x, x, x, weight, out, x, len(weight), 0.0,
        INPUTS=x.shape[1], ROWS=cut.rows, BLOCK=cut.columns,
        NORM=False, ADD=False, GATED=False, num_warps=cut.warps,
    )  # fmt: skip
    return out


def norm_product(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    cut: Cut,
    *,
    gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """norm(x + residual) · weightᵀ of one row, and that sum, in memory of its own.

    With `gated` the weights are gate and up, one below the other, and the result is
    silu(gate) x up.
    """
    outputs = len(weight) // 2 if gated else len(weight)
    out = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
    total = torch.empty_like(x)
    _matvec[(triton.cdiv(outputs, cut.rows),)](
        x, x if residual is None else residual, norm, weight, out, total, outputs, eps,
        INPUTS=x.shape[1], ROWS=cut.rows, BLOCK=cut.columns,
        NORM=True, ADD=residual is not None, GATED=gated, num_warps=cut.warps,
    )  # fmt: skip
    return out, total
