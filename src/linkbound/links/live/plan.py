"""What to measure, cell by cell: pure, from the GPUs and the options (L1-L3, L5, L6).

Checks of bytes stand before all speeds.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from linkbound.links.live.cell import Cell, CellKind, Member
from linkbound.links.live.contention import PEER, ContentionSet
from linkbound.links.live.rows import HOST
from linkbound.links.live.tasks import (
    METHODS,
    PEER_METHODS,
    STAGED_METHODS,
    Method,
)
from linkbound.values import Value

QUICK_SIZES = (4096, 1024**2, 64 * 1024**2)
"""Latency, the bend, and near the link: enough for a matrix."""
DEFAULT_SIZES = (4, 4096, 65536, 1024**2, 16 * 1024**2, 256 * 1024**2)
RATE_BYTES = 256 * 1024**2
DIRECT_RATE_BYTES = 512 * 1024**2
"""Of direct copies: each costs microseconds between calls, 0.5 % of one of 256 MiB."""
QUICK_RATE_BYTES = 64 * 1024**2
SET_BYTES = 64 * 1024**2
PIECES_BYTES = 64 * 1024**2
PIECES = (1, 16, 256, 4096)
KV_TOKENS = 16
"""Tokens of a block, vLLM's default."""
KV_LAYERS = 32
KV_BLOCKS = 64
KV_PIECE_BYTES = KV_TOKENS * 8 * 128 * 2 * 2
"""A block of one layer: 8 heads of 128 for K and V in 16 bits, as Llama-3.1-8B has them."""
KV_BYTES = KV_PIECE_BYTES * KV_LAYERS * KV_BLOCKS
"""A prompt of 1,024 tokens."""


class Scope(Value, frozen=True, kw_only=True):
    """What was asked for."""

    pairs: tuple[tuple[str, str], ...]
    """Ordered."""
    methods: tuple[Method, ...]
    sizes: tuple[int, ...]
    quick: bool = False
    both_ways_at_all_sizes: bool = False
    nodes: tuple[int | None, ...] = (None,)
    """NUMA nodes for host buffers."""


def size_range(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Sizes from `begin` to `end`, each `factor` times the last, rounded down to whole words."""
    sizes, size = [], begin
    while size <= end:
        sizes.append(max(4, size // 4 * 4))
        size *= factor
    return tuple(dict.fromkeys(sizes))


def peer_cells(scope: Scope, sets: Sequence[ContentionSet]) -> tuple[Cell, ...]:
    """Everything with peer access on: checks of all pairs first, then speeds."""
    methods = [one for one in scope.methods if one in PEER_METHODS]
    if not methods:
        return ()
    cells = [*_checks(scope, methods, None)]
    cells += _speeds(scope, methods, None)
    cells += _latencies(scope)
    if not scope.quick:
        cells += _sets(sets, scope.methods)
        for src, dst in scope.pairs:
            cells += _extras(src, dst, methods)
    return tuple(cells)


def staged_cells(scope: Scope, sets: Sequence[ContentionSet]) -> tuple[Cell, ...]:
    """Everything through the host: peer access is never granted in the child that runs this."""
    cells: list[Cell] = []
    staged = [one for one in scope.methods if one in STAGED_METHODS]
    for number, node in enumerate(scope.nodes):
        # The driver chooses its own buffers: a node is ours to choose only for our own.
        methods = [one for one in staged if number == 0 or METHODS[one].implementation != "driver"]
        cells += _checks(scope, methods, node)
        cells += _speeds(scope, methods, node)
        cells += _host_legs(scope, node)
    if not scope.quick:
        host_sets = [one for one in sets if one.through_host]
        cells += [_set_cell(one, one.members) for one in host_sets if _asked(one, scope)]
    return tuple(cells)


def _asked(one: ContentionSet, scope: Scope) -> bool:
    return all(Method(method) in scope.methods for _, _, method in one.members)


def _checks(scope: Scope, methods: Iterable[Method], node: int | None) -> Iterator[Cell]:
    for method in methods:
        for src, dst in scope.pairs:
            yield Cell(
                kind=CellKind.VERIFY,
                src=src,
                dst=dst,
                method=method,
                sizes=tuple(sorted({*scope.sizes, _rate_bytes(scope, [method])})),
                node=_node_of(method, node),
            )


def _speeds(scope: Scope, methods: Sequence[Method], node: int | None) -> Iterator[Cell]:
    rate_bytes = _rate_bytes(scope, methods)
    for method in methods:
        own = _node_of(method, node)
        for src, dst in scope.pairs:
            base = Cell(kind=CellKind.CURVE, src=src, dst=dst, method=method, node=own)
            for size in scope.sizes:
                yield structs.replace(base, size_bytes=size)
            yield structs.replace(base, kind=CellKind.RATE, size_bytes=rate_bytes)
            if not scope.quick:
                yield structs.replace(base, kind=CellKind.PROOF, size_bytes=rate_bytes)
        if scope.quick and method in (Method.DRIVER_PULL, Method.PAGEABLE):
            continue
        for src, dst in both_ways(scope.pairs):
            base = Cell(kind=CellKind.CURVE, src=src, dst=dst, method=method, node=own)
            sizes = (*scope.sizes, rate_bytes) if scope.both_ways_at_all_sizes else (rate_bytes,)
            for size in dict.fromkeys(sizes):
                yield structs.replace(base, kind=CellKind.BOTH_WAYS, size_bytes=size)


def _node_of(method: Method, node: int | None) -> int | None:
    return node if method in (Method.PINNED, Method.PAGEABLE) else None


def _rate_bytes(scope: Scope, methods: Iterable[Method] = ()) -> int:
    if scope.quick:
        return QUICK_RATE_BYTES
    return DIRECT_RATE_BYTES if set(methods) & set(PEER_METHODS) else RATE_BYTES


def both_ways(pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Each pair once whose both orders were asked for."""
    asked = set(pairs)
    return tuple(
        (src, dst)
        for n, (src, dst) in enumerate(pairs)
        if (dst, src) in asked and (dst, src) not in pairs[:n]
    )


def _latencies(scope: Scope) -> Iterator[Cell]:
    for src, dst in scope.pairs:
        for method in (Method.CE_PUSH, Method.CE_PULL):
            if method in scope.methods:
                base = Cell(kind=CellKind.CURVE, src=src, dst=dst, method=method)
                yield structs.replace(base, kind=CellKind.ISSUE, size_bytes=16)
                yield structs.replace(base, kind=CellKind.END_TO_END, size_bytes=16)
        if Method.SM_READ in scope.methods:
            yield Cell(kind=CellKind.CHASE, src=src, dst=dst)
        if {Method.SM_READ, Method.SM_WRITE} & set(scope.methods):
            yield Cell(kind=CellKind.PINGPONG, src=src, dst=dst)
        if not scope.quick:
            yield Cell(kind=CellKind.LAUNCH, src=src, dst=dst)


def _host_legs(scope: Scope, node: int | None) -> Iterator[Cell]:
    gpus = tuple(dict.fromkeys(label for pair in scope.pairs for label in pair))
    rate_bytes = _rate_bytes(scope)
    for gpu in gpus:
        legs = ((Method.H2D, HOST, gpu), (Method.D2H, gpu, HOST))
        asked = [leg for leg in legs if leg[0] in scope.methods]
        for method, src, dst in asked:
            base = Cell(kind=CellKind.CURVE, src=src, dst=dst, method=method, node=node)
            sizes = tuple(sorted({*scope.sizes, rate_bytes}))
            yield structs.replace(base, kind=CellKind.VERIFY, sizes=sizes)
            for size in scope.sizes:
                yield structs.replace(base, size_bytes=size)
            yield structs.replace(base, kind=CellKind.RATE, size_bytes=rate_bytes)
        if len(asked) == len(legs):
            yield Cell(
                kind=CellKind.BOTH_WAYS,
                src=HOST,
                dst=gpu,
                method=Method.H2D,
                size_bytes=rate_bytes,
                node=node,
            )


def _sets(sets: Sequence[ContentionSet], methods: Sequence[Method]) -> Iterator[Cell]:
    """Each set with pairs by the copy engine and by kernels, where all of its methods are asked."""
    for one in sets:
        for kind in (Method.CE_PUSH, Method.SM_WRITE):
            members = tuple(
                (src, dst, kind if method == PEER else method) for src, dst, method in one.members
            )
            if not one.through_host and all(method in methods for _, _, method in members):
                yield _set_cell(one, members)


def _set_cell(one: ContentionSet, members: Iterable[tuple[str, str, str]]) -> Cell:
    made = tuple(Member(src=src, dst=dst, method=Method(how)) for src, dst, how in members)
    return Cell(
        kind=CellKind.SET,
        src=made[0].src,
        dst=made[0].dst,
        method=made[0].method,
        size_bytes=SET_BYTES,
        name=one.name,
        members=made,
    )


def _extras(src: str, dst: str, methods: Sequence[Method]) -> Iterator[Cell]:
    for method in (Method.CE_PUSH, Method.SM_WRITE):
        if method not in methods:
            continue
        base = Cell(kind=CellKind.CURVE, src=src, dst=dst, method=method)
        for pieces in PIECES:
            yield structs.replace(
                base, kind=CellKind.PIECES, size_bytes=PIECES_BYTES, pieces=pieces
            )
        total = KV_PIECE_BYTES * KV_LAYERS * KV_BLOCKS
        for pieces in (1, KV_LAYERS * KV_BLOCKS):
            yield structs.replace(
                base, kind=CellKind.PIECES, size_bytes=total, pieces=pieces, name="kv"
            )
        for work in ("fma", "memory"):
            yield structs.replace(base, kind=CellKind.WORK, size_bytes=SET_BYTES, name=work)
