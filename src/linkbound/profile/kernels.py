"""Triton kernels of the step: norm, 8-bit rows, rotation with append, gate, attention (P1).

Each has its plain counterpart in `ops`; a decode step has no other small kernel than these.
"""

# Triton's compiler reads these functions: it knows one annotation, and wants constants in capitals.
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import torch
import triton
import triton.language as tl

DOT_ROWS = 16
"""Least rows of a matrix product on the tensor cores: groups of query heads are padded to it."""
KEY_BLOCK = 64
PROGRAMS = 264
"""Programs aimed at by attention of one token: two on each multiprocessor of a large GPU."""
MOST_PIECES = 32


@triton.jit
def _add_rms_norm(x, residual, weight, out, width, eps, HAS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if HAS:
        value += tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * width + at, value.to(residual.dtype.element_ty), mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (value * scale * gain).to(out.dtype.element_ty), mask=inside)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Norm of x + residual, the sum left in `residual`."""
    out = torch.empty_like(x)
    width = x.shape[-1]
    _add_rms_norm[(x.shape[0],)](
        x,
        x if residual is None else residual,
        weight,
        out,
        width,
        eps,
        HAS=residual is not None,
        BLOCK=triton.next_power_of_2(width),
        num_warps=8,
    )
    return out


@triton.jit
def _silu_mul(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + at, value.to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(first half of the columns) x second half."""
    rows, both = gate_up.shape
    width = both // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(width))
    _silu_mul[(rows, triton.cdiv(width, block))](gate_up, out, width, BLOCK=block)
    return out


@triton.jit
def _quantise_rows(x, out, scales, width, stride, most, least, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0) / most, least)
    tl.store(scales + row, scale)
    # Rounding of the scale may leave the greatest a little beyond what the type holds.
    scaled = tl.minimum(tl.maximum(value / scale, -most), most)
    tl.store(out + row * width + at, scaled.to(out.dtype.element_ty), mask=inside)


def quantise_rows(x: torch.Tensor, most: float, least: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in 8-bit floats up to `most`, and the scale of each, `least` or more (row x 1)."""
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    _quantise_rows[(rows,)](
        x, out, scales, width, x.stride(0), most, least, BLOCK=block,
        num_warps=16 if block > 8192 else 8,
    )  # fmt: skip
    return out, scales


@triton.jit
def _rotate_append(
    qkv, keys, values, starts, cosine, sine, new, key_stride, value_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    HALF: tl.constexpr, DV_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head = tl.program_id(1)
    sequence = (token // new).to(tl.int64)
    position = (tl.load(starts + sequence) + token % new).to(tl.int64)
    row = qkv + token.to(tl.int64) * (HEADS * DK + KV * (DK + DV))
    if head < HEADS + KV:
        at = tl.arange(0, HALF)
        inside = at < DK // 2
        source = row + head * DK + at
        first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + DK // 2, mask=inside, other=0.0).to(tl.float32)
        cos = tl.load(cosine + position * (DK // 2) + at, mask=inside, other=0.0)
        sin = tl.load(sine + position * (DK // 2) + at, mask=inside, other=0.0)
        low = (first * cos - second * sin).to(qkv.dtype.element_ty)
        high = (second * cos + first * sin).to(qkv.dtype.element_ty)
        if head < HEADS:
            target = source
        else:
            target = keys + sequence * key_stride + position * KV * DK + (head - HEADS) * DK + at
        tl.store(target, low, mask=inside)
        tl.store(target + DK // 2, high, mask=inside)
    else:
        # Names of their own: the compiler wants one shape for a name in both branches.
        each = tl.arange(0, DV_BLOCK)
        one = head - HEADS - KV
        value = tl.load(row + (HEADS + KV) * DK + one * DV + each, mask=each < DV)
        place = values + sequence * value_stride + position * KV * DV + one * DV + each
        tl.store(place, value, mask=each < DV)


def rotate_append(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    new: int,
) -> None:
    """Rotate queries in place and keys into the cache, copy values into theirs."""
    kv, key_dim, value_dim = keys.shape[2], keys.shape[3], values.shape[3]
    heads = (qkv.shape[1] - kv * (key_dim + value_dim)) // key_dim
    _rotate_append[(qkv.shape[0], heads + 2 * kv)](
        qkv, keys, values, starts, *rotation, new, keys.stride(0), values.stride(0),
        HEADS=heads, KV=kv, DK=key_dim, DV=value_dim,
        HALF=triton.next_power_of_2(key_dim // 2), DV_BLOCK=triton.next_power_of_2(value_dim),
        num_warps=1,
    )  # fmt: skip


@triton.jit
def _attend_piece(
    queries, keys, values, starts, parts, weights, scale, row_stride, key_stride, value_stride,
    window, PIECES: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, KV: tl.constexpr,
    DK: tl.constexpr, DK_BLOCK: tl.constexpr, DV: tl.constexpr, DV_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    piece = tl.program_id(2)
    length = tl.load(starts + sequence) + 1
    first = tl.maximum(0, length - window)
    each = tl.cdiv(tl.cdiv(length - first, PIECES), BLOCK) * BLOCK
    begin = first + piece * each
    end = tl.minimum(begin + each, length)
    row = tl.arange(0, ROWS)
    in_key = tl.arange(0, DK_BLOCK)
    in_value = tl.arange(0, DV_BLOCK)
    query = tl.load(
        queries + sequence * row_stride + (head * GROUP + row[:, None]) * DK + in_key[None, :],
        mask=(row[:, None] < GROUP) & (in_key[None, :] < DK),
        other=0.0,
    )
    most = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, DV_BLOCK), tl.float32)
    for start in range(begin, end, BLOCK):
        at = (start + tl.arange(0, BLOCK)).to(tl.int64)
        inside = at < end
        key = tl.load(
            keys + sequence * key_stride + at[None, :] * KV * DK + head * DK + in_key[:, None],
            mask=inside[None, :] & (in_key[:, None] < DK),
            other=0.0,
        )
        score = tl.where(inside[None, :], tl.dot(query, key) * scale, -1e30)
        higher = tl.maximum(most, tl.max(score, 1))
        share = tl.exp(score - higher[:, None])
        keep = tl.exp(most - higher)
        value = tl.load(
            values
            + sequence * value_stride
            + at[:, None] * KV * DV
            + head * DV
            + in_value[None, :],
            mask=inside[:, None] & (in_value[None, :] < DV),
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


def attend_one(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of one new token a sequence over its cache, the new token included.

    `queries` are the first columns of rows of any stride; the cache is sequence x token x head x
    dim; `starts` holds the tokens that each sequence had before this one.
    """
    rows = queries.shape[0]
    kv, key_dim, value_dim = keys.shape[2], keys.shape[3], values.shape[3]
    heads = queries.shape[1] // key_dim
    group = heads // kv
    pieces = 1
    while pieces < MOST_PIECES and rows * kv * pieces < PROGRAMS:
        pieces *= 2
    parts = torch.empty(
        rows * heads * pieces * value_dim, dtype=torch.float32, device=queries.device
    )
    weights = torch.empty(rows * heads * pieces, dtype=torch.float32, device=queries.device)
    out = torch.empty(rows, heads * value_dim, dtype=queries.dtype, device=queries.device)
    value_block = triton.next_power_of_2(value_dim)
    _attend_piece[(rows, kv, pieces)](
        queries, keys, values, starts, parts, weights, scale, queries.stride(0), keys.stride(0),
        values.stride(0), keys.shape[1] if window is None else window, PIECES=pieces, GROUP=group,
        ROWS=max(DOT_ROWS, triton.next_power_of_2(group)), KV=kv, DK=key_dim,
        DK_BLOCK=triton.next_power_of_2(key_dim), DV=value_dim, DV_BLOCK=value_block,
        BLOCK=KEY_BLOCK,
    )  # fmt: skip
    _join_pieces[(rows * heads,)](
        parts, weights, out, PIECES=pieces, DV=value_dim, DV_BLOCK=value_block, num_warps=1
    )
    return out
