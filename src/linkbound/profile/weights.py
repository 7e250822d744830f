"""Random weights from a name and a position: any shard of any degree can be made alone (P1).

An element is a hash of the seed, the tensor's name and its index in the whole tensor, in integer
arithmetic that is the same on every device; a shard therefore equals the slice of the whole.
"""

import math
import zlib
from collections.abc import Sequence

import torch

from linkbound.model.types import Weights
from linkbound.profile import float8
from linkbound.profile.float8 import ALIGNED, Matrix

# Multipliers of the 32-bit finaliser found by Chris Wellons' search, cut to 31 bits so that no
# product leaves a signed 64-bit integer.
_FIRST, _SECOND, _MASK = 0x21F0AAAD, 0x735A2D97, 0x7FFFFFFF
# int64 scratch of one slab of rows: bounds what making a tensor takes beside the tensor itself.
_SLAB_ELEMENTS = 1 << 25

PLAIN_BITS = 16
Range = tuple[int, int]


class Maker:
    """Makes weights of one model on one device, and counts what it made."""

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self.seed, self.dtype, self.device = seed, dtype, device
        self.parameters = 0
        self.float8_parameters = 0
        self._plain: dict[str, dict[str, None]] = {}

    def matrix(
        self, name: str, shape: Sequence[int], ranges: Sequence[Range], inputs: int
    ) -> torch.Tensor:
        """The slice `ranges` of a tensor of `shape`, scaled so that `inputs` inputs keep size."""
        return self._make(name, shape, ranges, 0.0, _half(inputs))

    def stored(self, matrix: torch.Tensor, weights: Sequence[Weights], inputs: int) -> Matrix:
        """What `matrix` made, in 8-bit floats where the file has these weights so and torch can.

        `weights` are all that the matrix is of: it is one product.
        """
        small = [one for one in weights if one.float8]
        if not small:
            return matrix
        because = self._not_float8(matrix, [one.name for one in weights if not one.float8])
        if because is None:
            self.float8_parameters += matrix.numel()
            return float8.stored(matrix, _half(inputs))
        for one in small:
            self.keep_plain(one.name, one.bits, because)
        return matrix

    def _not_float8(self, matrix: torch.Tensor, beside: Sequence[str]) -> str | None:
        if beside:
            return f"one product with {', '.join(beside)}"
        if any(size % ALIGNED for size in matrix.shape[-2:]):
            outputs, inputs = matrix.shape[-2:]
            return f"{outputs} x {inputs} on a rank, no multiples of {ALIGNED}"
        return float8.refused(self.device, grouped=matrix.dim() == 3)

    def keep_plain(self, name: str, bits: float, because: str) -> None:
        """Note that what the file stores in `bits` is in the maker's own type here, and why."""
        if bits < PLAIN_BITS:
            self._plain.setdefault(because, {})[name] = None

    @property
    def bf16_because(self) -> tuple[str, ...]:
        """What is in bf16 though the file stores it in fewer bits: `experts: 4.25 bits, ...`."""
        return tuple(f"{', '.join(names)}: {because}" for because, names in self._plain.items())

    def norm(self, name: str, width: int) -> torch.Tensor:
        """Weights of a norm: near 1, none equal, so that a missing norm shows."""
        return self._make(name, (width,), ((0, width),), 1.0, 0.25)

    def _make(
        self, name: str, shape: Sequence[int], ranges: Sequence[Range], mean: float, half: float
    ) -> torch.Tensor:
        sizes = [end - start for start, end in ranges]
        made = torch.empty(sizes, dtype=self.dtype, device=self.device)
        rows = made.view(sizes[0], -1)
        inner = self._inner_index(shape, ranges)
        stride = math.prod(shape[1:])
        key = zlib.crc32(f"{self.seed}/{name}".encode()) & _MASK
        slab = max(1, _SLAB_ELEMENTS // max(1, inner.numel()))
        for first in range(0, sizes[0], slab):
            last = min(first + slab, sizes[0])
            row = torch.arange(first, last, device=self.device) + ranges[0][0]
            index = (row * stride).unsqueeze(1) + inner
            rows[first:last] = _uniform(index, key).mul_(half).add_(mean)
        self.parameters += made.numel()
        return made

    def _inner_index(self, shape: Sequence[int], ranges: Sequence[Range]) -> torch.Tensor:
        """Index of each element of one row of the slice, within the whole row."""
        index = torch.zeros(1, dtype=torch.int64, device=self.device)
        for size, (start, end) in zip(shape[1:], ranges[1:], strict=True):
            here = torch.arange(start, end, device=self.device)
            index = (index.unsqueeze(1) * size + here).flatten()
        return index


def _half(inputs: int) -> float:
    """Greatest element of a matrix over `inputs` inputs: products keep the size of what goes in."""
    return math.sqrt(3.0 / inputs)


def _uniform(index: torch.Tensor, key: int) -> torch.Tensor:
    """Numbers in [-1, 1) of 24 bits, hashed from `index`, which is overwritten."""
    # The part above 31 bits is folded in, so that large tensors do not repeat themselves.
    high = index >> 31
    index.add_(high.mul_(0x51ED27)).bitwise_and_(_MASK).bitwise_xor_(key)
    for multiplier in (_FIRST, _SECOND):
        index.bitwise_xor_(index >> 15).mul_(multiplier).bitwise_and_(_MASK)
    index.bitwise_xor_(index >> 15).bitwise_right_shift_(7)
    return index.to(torch.float32).mul_(2.0**-23).sub_(1.0)
