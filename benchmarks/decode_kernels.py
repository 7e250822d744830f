"""Candidates for the kernels of a decode step of one token: fewer of them, and closer to memory.

Each computes what a function of `linkbound.profile.ops` does. bench_decode.py compares them; the
ones that win move into `linkbound.profile.kernels`.
"""

# Triton's compiler reads these functions: it knows one annotation, and wants constants in capitals.
# ruff: noqa: N803, N806

import torch
import triton
import triton.language as tl

from linkbound.profile.ops import EPSILON

DOT_ROWS = 16
PROGRAMS = 264
MOST_PIECES = 32


@triton.jit
def _matvec(
    x, residual, gain, weight, out, total, outputs, eps,
    INPUTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    UNROLL: tl.constexpr, NORM: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
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
    for start in tl.range(0, INPUTS, BLOCK, num_stages=STAGES, loop_unroll_factor=UNROLL):
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


class MatvecShape:
    """How a product of one row is cut: rows and columns of a tile, warps, stages, unrolling."""

    __slots__ = ("columns", "rows", "stages", "unroll", "warps")

    def __init__(self, rows: int, columns: int, warps: int, stages: int = 1, unroll: int = 1):
        self.rows, self.columns, self.warps = rows, columns, warps
        self.stages, self.unroll = stages, unroll

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns} w{self.warps} s{self.stages} u{self.unroll}"

    def takes(self, x: torch.Tensor) -> bool:
        return len(x) == 1 and x.shape[1] % self.columns == 0


def product(
    x: torch.Tensor, weight: torch.Tensor, cut: MatvecShape, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x · weightᵀ of one row."""
    if out is None:
        out = torch.empty(1, len(weight), dtype=x.dtype, device=x.device)
    _launch(x, None, None, weight, out, None, len(weight), cut, gated=False)
    return out


def norm_product(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: torch.Tensor,
    weight: torch.Tensor,
    cut: MatvecShape,
    *,
    gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """norm(x + residual) · weightᵀ, with the gate applied where `gated`; and that sum."""
    outputs = len(weight) // 2 if gated else len(weight)
    out = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
    total = torch.empty_like(x)
    _launch(x, residual, norm, weight, out, total, outputs, cut, gated=gated)
    return out, total


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: torch.Tensor | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor | None,
    outputs: int,
    cut: MatvecShape,
    *,
    gated: bool,
) -> None:
    _matvec[(triton.cdiv(outputs, cut.rows),)](
        x, x if residual is None else residual, x if norm is None else norm, weight, out,
        x if total is None else total, outputs, EPSILON,
        INPUTS=x.shape[1], ROWS=cut.rows, BLOCK=cut.columns, STAGES=cut.stages, UNROLL=cut.unroll,
        NORM=norm is not None, ADD=residual is not None, GATED=gated, num_warps=cut.warps,
    )  # fmt: skip


@triton.jit
def _append_attend(
    qkv, keys, values, starts, cosine, sine, parts, weights, scale, row_stride, key_stride,
    value_stride, window, PIECES: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    KV: tl.constexpr, DK: tl.constexpr, HALF_BLOCK: tl.constexpr, DV: tl.constexpr,
    DV_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One piece of the cache of one group of heads; the first piece brings the new token."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    piece = tl.program_id(2)
    HALF: tl.constexpr = DK // 2
    position = tl.load(starts + sequence)
    first = tl.maximum(0, position + 1 - window)
    each = tl.cdiv(tl.cdiv(position - first, PIECES), BLOCK) * BLOCK
    begin = first + piece * each
    end = tl.minimum(begin + each, position)
    row = tl.arange(0, ROWS)
    half = tl.arange(0, HALF_BLOCK)
    in_value = tl.arange(0, DV_BLOCK)
    token = qkv + sequence * row_stride
    cos = tl.load(cosine + position * HALF + half, mask=half < HALF, other=0.0)
    sin = tl.load(sine + position * HALF + half, mask=half < HALF, other=0.0)
    here = token + (head * GROUP + row[:, None]) * DK + half[None, :]
    inside = (row[:, None] < GROUP) & (half[None, :] < HALF)
    one = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(here + HALF, mask=inside, other=0.0).to(tl.float32)
    low = (one * cos[None, :] - two * sin[None, :]).to(keys.dtype.element_ty)
    high = (two * cos[None, :] + one * sin[None, :]).to(keys.dtype.element_ty)

    source = token + (KV * GROUP + head) * DK + half
    one_key = tl.load(source, mask=half < HALF, other=0.0).to(tl.float32)
    two_key = tl.load(source + HALF, mask=half < HALF, other=0.0).to(tl.float32)
    key_low = (one_key * cos - two_key * sin).to(keys.dtype.element_ty)
    key_high = (two_key * cos + one_key * sin).to(keys.dtype.element_ty)
    new = tl.load(
        token + (KV * GROUP + KV) * DK + head * DV + in_value, mask=in_value < DV, other=0.0
    )
    own = piece == 0
    target = keys + sequence * key_stride + position * KV * DK + head * DK + half
    tl.store(target, key_low, mask=(half < HALF) & own)
    tl.store(target + HALF, key_high, mask=(half < HALF) & own)
    place = values + sequence * value_stride + position * KV * DV + head * DV + in_value
    tl.store(place, new, mask=(in_value < DV) & own)

    fresh = tl.sum(low.to(tl.float32) * key_low.to(tl.float32)[None, :], 1)
    fresh += tl.sum(high.to(tl.float32) * key_high.to(tl.float32)[None, :], 1)
    most = tl.where(own, fresh * scale, -1e30)
    total = tl.where(own, 1.0, 0.0) + tl.zeros((ROWS,), tl.float32)
    sums = tl.where(own, new.to(tl.float32)[None, :], 0.0) + tl.zeros((ROWS, DV_BLOCK), tl.float32)
    for start in range(begin, end, BLOCK):
        at = (start + tl.arange(0, BLOCK)).to(tl.int64)
        valid = at < end
        cached = keys + sequence * key_stride + at[None, :] * KV * DK + head * DK + half[:, None]
        both = valid[None, :] & (half[:, None] < HALF)
        score = tl.dot(low, tl.load(cached, mask=both, other=0.0))
        score += tl.dot(high, tl.load(cached + HALF, mask=both, other=0.0))
        score = tl.where(valid[None, :], score * scale, -1e30)
        higher = tl.maximum(most, tl.max(score, 1))
        share = tl.exp(score - higher[:, None])
        keep = tl.exp(most - higher)
        value = tl.load(
            values
            + sequence * value_stride
            + at[:, None] * KV * DV
            + head * DV
            + in_value[None, :],
            mask=valid[:, None] & (in_value[None, :] < DV),
            other=0.0,
        )
        total = total * keep + tl.sum(share, 1)
        sums = sums * keep[:, None] + tl.dot(share.to(value.dtype), value)
        most = higher
    at_row = (sequence * KV * GROUP + head * GROUP + row) * PIECES + piece
    tl.store(
        parts + at_row[:, None] * DV + in_value[None, :],
        sums / tl.maximum(total, 1e-30)[:, None],
        mask=(row[:, None] < GROUP) & (in_value[None, :] < DV),
    )
    tl.store(weights + at_row, most + tl.log(tl.maximum(total, 1e-30)), mask=row < GROUP)


@triton.jit
def _join_pieces(
    parts, weights, out, PIECES: tl.constexpr, DV: tl.constexpr, DV_BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES)
    at = tl.arange(0, DV_BLOCK)
    weight = tl.load(weights + row * PIECES + piece)
    share = tl.exp(weight - tl.max(weight, 0))
    share = share / tl.sum(share, 0)
    part = tl.load(
        parts + (row * PIECES + piece[:, None]) * DV + at[None, :],
        mask=at[None, :] < DV,
        other=0.0,
    )
    value = tl.sum(part * share[:, None], 0)
    tl.store(out + row * DV + at, value.to(out.dtype.element_ty), mask=at < DV)


def append_attend_one(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    scale: float,
    window: int | None,
    *,
    block: int,
) -> torch.Tensor:
    """Rotation, append and attention of one token a sequence, in two kernels."""
    rows = qkv.shape[0]
    length, kv, key_dim, value_dim = keys.shape[1], keys.shape[2], keys.shape[3], values.shape[3]
    heads = (qkv.shape[1] - kv * (key_dim + value_dim)) // key_dim
    group = heads // kv
    pieces = 1
    while pieces < MOST_PIECES and rows * kv * pieces < PROGRAMS and pieces * block < length:
        pieces *= 2
    parts = torch.empty(rows * heads * pieces * value_dim, dtype=torch.float32, device=qkv.device)
    weights = torch.empty(rows * heads * pieces, dtype=torch.float32, device=qkv.device)
    out = torch.empty(rows, heads * value_dim, dtype=qkv.dtype, device=qkv.device)
    value_block = triton.next_power_of_2(value_dim)
    _append_attend[(rows, kv, pieces)](
        qkv, keys, values, starts, *rotation, parts, weights, scale, qkv.stride(0),
        keys.stride(0), values.stride(0), length if window is None else window,
        PIECES=pieces, GROUP=group, ROWS=max(DOT_ROWS, triton.next_power_of_2(group)), KV=kv,
        DK=key_dim, HALF_BLOCK=max(DOT_ROWS, triton.next_power_of_2(key_dim // 2)), DV=value_dim,
        DV_BLOCK=value_block, BLOCK=block,
    )  # fmt: skip
    _join_pieces[(rows * heads,)](
        parts, weights, out, PIECES=pieces, DV=value_dim, DV_BLOCK=value_block, num_warps=4
    )
    return out
