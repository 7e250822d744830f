"""The operations of a layer, on a GPU by our kernels, elsewhere by plain torch (P1)."""

import torch
import torch.nn.functional as functional

from linkbound.profile import float8
from linkbound.profile.float8 import Float8, Matrix

EPSILON = 1e-5
ROTATION_BASE = 500_000.0
"""Any base costs the same time; this is Llama-3's."""


def rotation_tables(
    length: int, dim: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position and pair of a head of `dim`."""
    pair = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
    speed = ROTATION_BASE ** (-pair / dim)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * speed
    return torch.cos(angle).contiguous(), torch.sin(angle).contiguous()


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm of x + residual, and that sum; a residual given is overwritten by it."""
    if x.is_cuda:
        from linkbound.profile import kernels

        normed = kernels.add_rms_norm(x, residual, weight, EPSILON)
        return normed, x if residual is None else residual
    total = x if residual is None else residual.add_(x)
    return functional.rms_norm(total, total.shape[-1:], weight, EPSILON), total


def product(x: torch.Tensor, weight: Matrix, out: torch.Tensor | None = None) -> torch.Tensor:
    """x · weightᵀ, written to `out` where one is given."""
    if isinstance(weight, Float8):
        return float8.product(x, weight, out)
    if x.is_cuda:
        from linkbound.profile import matvec

        cut = matvec.cut_of(x)
        if cut is not None:
            return matvec.product(x, weight, cut, out)
    return functional.linear(x, weight) if out is None else torch.mm(x, weight.t(), out=out)


def norm_product(
    x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, weight: Matrix
) -> tuple[torch.Tensor, torch.Tensor]:
    """norm(x + residual) · weightᵀ, and that sum; a residual given may be overwritten."""
    if x.is_cuda and not isinstance(weight, Float8):
        from linkbound.profile import matvec

        cut = matvec.cut_of(x, normed=True)
        if cut is not None:
            return matvec.norm_product(x, residual, norm, weight, EPSILON, cut)
    normed, residual = add_rms_norm(x, residual, norm)
    return product(normed, weight), residual


def norm_gate(
    x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, gate_up: Matrix
) -> tuple[torch.Tensor, torch.Tensor]:
    """silu(gate) x up of norm(x + residual), and that sum; a residual given may be overwritten."""
    if x.is_cuda and not isinstance(gate_up, Float8):
        from linkbound.profile import matvec

        cut = matvec.cut_of(x, gated=True)
        if cut is not None:
            return matvec.norm_product(x, residual, norm, gate_up, EPSILON, cut, gated=True)
    both, residual = norm_product(x, residual, norm, gate_up)
    return silu_mul(both), residual


def grouped_product(rows: torch.Tensor, weights: Matrix, ends: torch.Tensor) -> torch.Tensor:
    """Rows up to each group's end (group) times that group's weights (group x output x input)."""
    if isinstance(weights, Float8):
        return float8.grouped_product(rows, weights, ends)
    # The public name came after 2.9.
    product = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    out: torch.Tensor = product(rows, weights.transpose(1, 2), offs=ends)
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(first half of the columns) x second half."""
    if gate_up.is_cuda:
        from linkbound.profile import kernels

        return kernels.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def rotate(
    heads: torch.Tensor, positions: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Rotary embedding of `heads` (token x head x dim) at `positions` (token)."""
    cosine, sine = (table[positions].unsqueeze(1) for table in rotation)
    first, second = heads.float().chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(heads.dtype)


def rotate_append(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    new: int,
) -> None:
    """Rotate queries in place and keys into the cache, copy values into theirs.

    `qkv` has a row a token, `new` rows a sequence, at positions from `starts` on.
    """
    if qkv.is_cuda:
        from linkbound.profile import kernels

        kernels.rotate_append(qkv, keys, values, starts, rotation, new)
        return
    kv, key_dim, value_dim = keys.shape[2], keys.shape[3], values.shape[3]
    split = qkv.shape[1] - kv * value_dim
    positions = token_positions(starts, new)
    turned = rotate(qkv[:, :split].unflatten(1, (-1, key_dim)), positions, rotation)
    qkv[:, :split] = turned.flatten(1)
    sequence = torch.arange(len(starts), device=qkv.device).repeat_interleave(new)
    keys[sequence, positions] = turned[:, -kv:]
    values[sequence, positions] = qkv[:, split:].unflatten(1, (kv, value_dim))


def token_positions(starts: torch.Tensor, new: int) -> torch.Tensor:
    """Position of each of `new` tokens of each sequence, flat."""
    return (starts[:, None] + torch.arange(new, device=starts.device)).flatten()


def append_attend_one(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Append one new token a sequence to its cache, and attend over it: token x heads · dim."""
    kv, key_dim, value_dim = keys.shape[2], keys.shape[3], values.shape[3]
    rotate_append(qkv, keys, values, starts, rotation, 1)
    queries = qkv[:, : qkv.shape[1] - kv * (key_dim + value_dim)]
    return attend_one(queries, keys, values, starts, scale, window)


def attend_one(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of one new token a sequence over its cache, the new token included."""
    if queries.is_cuda:
        from linkbound.profile import kernels

        return kernels.attend_one(queries, keys, values, starts, scale, window)
    kv, key_dim = keys.shape[2], keys.shape[3]
    query = queries.unflatten(1, (kv, -1, key_dim))
    score = torch.einsum("bkgd,bskd->bkgs", query, keys) * scale
    score = score.masked_fill(~visible(starts, keys.shape[1], window)[:, None, None], -torch.inf)
    return torch.einsum("bkgs,bskd->bkgd", score.softmax(-1), values).flatten(1)


def visible(starts: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
    """Which of `length` cached positions the new token of each sequence sees."""
    at = torch.arange(length, device=starts.device)
    seen = at <= starts[:, None]
    return seen if window is None else seen & (at > starts[:, None] - window)


def attend_many(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Causal attention of a chunk; all are sequence x token x head x dim, keys with the context."""
    new, length = query.shape[1], key.shape[1]
    q, k, v = (one.transpose(1, 2) for one in (query, key, value))
    grouped = q.shape[1] != k.shape[1]
    if window is not None and window < length:
        mask = _band(new, length, window, query.device)
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped
        )
    elif new == length:
        out = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=grouped
        )
    else:
        from torch.nn.attention.bias import causal_lower_right

        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=causal_lower_right(new, length), scale=scale, enable_gqa=grouped
        )
    return out.transpose(1, 2)


def _band(new: int, length: int, window: int, device: torch.device) -> torch.Tensor:
    row = torch.arange(length - new, length, device=device)[:, None]
    at = torch.arange(length, device=device)
    return (at <= row) & (at > row - window)
