"""Which elements each rank sends and gets in a collective, and what the result must be (L4, L6).

Sizes follow nccl-tests: `size_bytes` is the larger of a rank's two buffers.
"""

from linkbound.links.types import Operation
from linkbound.values import Value

_SHARED = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
_NOT_IN_PLACE = (Operation.ALL_TO_ALL, Operation.SEND_RECV)
_MASK = 0xFFFFFFFF
# Odd constants with their bits well spread (from xxHash and Knuth): neighbours differ in all bits.
_BY_INDEX, _BY_RANK, _BY_SEED = 2654435761, 2246822519, 3266489917
EXACT_BELOW = 256
"""Every whole number up to here is exact in bfloat16 (8 significant bits)."""
MOST_DOUBLINGS = 127 - 8
"""bfloat16 and float end at 2^128, the first result below 2^8."""
ROOT = 0
"""Rank that a broadcast comes from."""


class Layout(Value, frozen=True, kw_only=True):
    """Counts in elements; offsets are inside the larger buffer, for the operation in place."""

    count: int
    """What NCCL is given: elements of one rank's share, or of the whole."""
    sent: int
    received: int
    send_offset: int = 0
    receive_offset: int = 0


class Expectation(Value, frozen=True, kw_only=True):
    """What a rank must find: element i is a sum of the elements that `summed` ranks sent.

    Where `chunk` is set, i // chunk is added to the source and i % chunk taken as the index.
    """

    source: int
    summed: int = 1
    chunk: int = 0
    index: int = 0
    """Added to the index in the source's buffer."""
    doublings: int = 0
    """Of a chain: each all-reduce after the first multiplies by the number of ranks."""


def layout(operation: Operation, *, rank: int, ranks: int, elements: int) -> Layout:
    """Buffers of `rank` for about `elements` elements, rounded down to equal shares."""
    if operation not in _SHARED:
        return Layout(count=elements, sent=elements, received=elements)
    share = elements // ranks
    whole = share * ranks
    match operation:
        case Operation.ALL_GATHER:
            return Layout(count=share, sent=share, received=whole, send_offset=rank * share)
        case Operation.REDUCE_SCATTER:
            return Layout(count=share, sent=whole, received=share, receive_offset=rank * share)
        case _:
            return Layout(count=share, sent=whole, received=whole)


def has_in_place(operation: Operation) -> bool:
    """Whether NCCL defines the operation with one buffer for both."""
    return operation not in _NOT_IN_PLACE


def expectation(operation: Operation, *, rank: int, ranks: int, share: int) -> Expectation:
    """What `rank` must hold afterwards; `share` is the layout's count."""
    match operation:
        case Operation.ALL_REDUCE:
            return Expectation(source=0, summed=ranks)
        case Operation.REDUCE_SCATTER:
            return Expectation(source=0, summed=ranks, index=rank * share)
        case Operation.ALL_GATHER:
            return Expectation(source=0, chunk=share)
        case Operation.ALL_TO_ALL:
            return Expectation(source=0, chunk=share, index=rank * share)
        case Operation.BROADCAST:
            return Expectation(source=ROOT)
        case Operation.SEND_RECV:
            return Expectation(source=(rank - 1) % ranks)
        case _:
            raise ValueError(f"'{operation}' is not a collective that is run here")


def modulus(ranks: int) -> int:
    """Values are below it, so that the sum over all ranks is exact in every type."""
    return max(2, EXACT_BELOW // ranks)


def chain_doublings(ranks: int, calls: int) -> int | None:
    """How often the first result is doubled by the all-reduces after it, each on the last's result.

    None where the result would not be exact: ranks that are no power of 2, or past the type's end.
    """
    if calls == 1:
        return 0
    doublings = (calls - 1) * (ranks.bit_length() - 1)
    exact = ranks & (ranks - 1) == 0 and doublings <= MOST_DOUBLINGS
    return doublings if exact else None


def element(seed: int, rank: int, index: int, below: int) -> int:
    """What `rank` sends at `index`: a whole number in 0..below-1, as in `allreduce_pattern.cu`."""
    mixed = (
        (index * _BY_INDEX & _MASK) ^ ((rank + 1) * _BY_RANK & _MASK) ^ (seed * _BY_SEED & _MASK)
    )
    mixed ^= mixed >> 15
    mixed = mixed * _BY_RANK & _MASK
    mixed ^= mixed >> 13
    return mixed % below


def expected(what: Expectation, seed: int, index: int, below: int) -> int:
    """The value that must stand at `index` of the result."""
    source, at = what.source, index
    if what.chunk:
        source, at = what.source + index // what.chunk, index % what.chunk
    total = sum(element(seed, source + step, what.index + at, below) for step in range(what.summed))
    return total << what.doublings
