"""Products of 8-bit floats: a row of activations and a row of weights have a scale each (P1).

Weights are scaled by what they are drawn from, so that a shard's scale is the whole matrix's;
activations by the greatest of each row, as engines do it in every step.
"""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as functional

TYPE = torch.float8_e4m3fn
MOST = 448.0
"""The greatest number of this type."""
ALIGNED = 16
"""What torch asks rows and columns of both matrices to be a multiple of."""
LEAST_SCALE = 1e-12
"""Of a row of zeros."""
_SLAB_ROWS = 4096
_TRIED = (16, 128, 128)
"""Rows, outputs and inputs of the product that shows whether there are any."""


class Float8(NamedTuple):
    """A weight (output x input), or one for each group, in 8 bits, and the scale of each output."""

    values: torch.Tensor
    scale: torch.Tensor
    """Float32: 1 x output, or group x output."""

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


Matrix = torch.Tensor | Float8


def stored(matrix: torch.Tensor, most: float) -> Float8:
    """The matrix in 8 bits; none of its elements is greater than `most`."""
    outputs = matrix.shape[-2]
    values = torch.empty(matrix.shape, dtype=TYPE, device=matrix.device)
    rows, into = (one.view(-1, matrix.shape[-1]) for one in (matrix, values))
    scale = most / MOST
    for part, out in zip(rows.split(_SLAB_ROWS), into.split(_SLAB_ROWS), strict=True):
        # Rounding to bf16 may have taken an element beyond `most`.
        out.copy_((part.float() / scale).clamp_(-MOST, MOST))
    groups = len(matrix) if matrix.dim() == 3 else 1
    scales = torch.full((groups, outputs), scale, dtype=torch.float32, device=matrix.device)
    return Float8(values, scales)


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in 8 bits, and the scale of each (row x 1)."""
    if x.is_cuda:
        from linkbound.profile import kernels

        return kernels.quantise_rows(x, MOST, LEAST_SCALE)
    scale = (x.float().abs().amax(-1, keepdim=True) / MOST).clamp_(min=LEAST_SCALE)
    return (x.float() / scale).clamp_(-MOST, MOST).to(TYPE), scale


def product(x: torch.Tensor, weight: Float8, out: torch.Tensor | None = None) -> torch.Tensor:
    """x · weightᵀ in the type of x, written to `out` where one is given."""
    rows, scale = quantised(x)
    if x.is_cuda:
        return _scaled(rows, scale, weight, x.dtype, out)
    found = functional.linear(rows.float(), weight.values.float()) * scale * weight.scale
    return found.to(x.dtype) if out is None else out.copy_(found)


def grouped_product(rows: torch.Tensor, weights: Float8, ends: torch.Tensor) -> torch.Tensor:
    """Rows up to each group's end (group) times that group's weights (group x output x input)."""
    values, scale = quantised(rows)
    if rows.is_cuda:
        return _scaled_grouped(values, scale, weights, ends, rows.dtype)
    whole = weights.values.float() * weights.scale.unsqueeze(2)
    found = rows.new_zeros(len(rows), whole.shape[1])
    start = 0
    for weight, end in zip(whole, ends.tolist(), strict=True):
        found[start:end] = functional.linear(values[start:end].float(), weight) * scale[start:end]
        start = end
    return found


def _scaled(
    rows: torch.Tensor,
    scale: torch.Tensor,
    weight: Float8,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    # Sums of the tensor cores' own width, as engines take them.
    found: torch.Tensor = torch._scaled_mm(
        rows, weight.values.t(), scale, weight.scale, out_dtype=dtype, use_fast_accum=True, out=out
    )
    return found


def _scaled_grouped(
    rows: torch.Tensor,
    scale: torch.Tensor,
    weights: Float8,
    ends: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    found: torch.Tensor = torch._scaled_grouped_mm(
        rows,
        weights.values.transpose(1, 2),
        scale.flatten(),
        weights.scale,
        offs=ends,
        out_dtype=dtype,
        use_fast_accum=True,
    )
    return found


@cache
def refused(device: torch.device, *, grouped: bool) -> str | None:
    """Why torch multiplies no 8-bit floats on this device; None where it does, tried once."""
    if device.type != "cuda":
        return None
    rows, outputs, inputs = _TRIED
    x = torch.ones(rows, inputs, device=device).to(TYPE)
    scale = torch.ones(rows, 1, device=device)
    sizes = (2, outputs, inputs) if grouped else (outputs, inputs)
    weight = stored(torch.ones(sizes, device=device), 1.0)
    try:
        if grouped:
            ends = torch.tensor([rows // 2, rows], dtype=torch.int32, device=device)
            _scaled_grouped(x, scale, weight, ends, torch.bfloat16)
        else:
            _scaled(x, scale, weight, torch.bfloat16)
        torch.cuda.synchronize(device)
    except (AttributeError, RuntimeError, ValueError) as error:
        return f"torch has none here ({str(error).strip().splitlines()[0][:120]})"
    return None
