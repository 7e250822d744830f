"""What one sequence takes in the cache of one rank, as a sum of a few rates (S3).

Layers that cache alike are added once per stage, so that lengths can be tried at no cost.
"""

from collections import defaultdict
from collections.abc import Iterable

from linkbound.model.derive import token_bytes
from linkbound.model.types import Attention, LatentAttention, Layer, Recurrent
from linkbound.splits.ranks import tensor_share
from linkbound.splits.types import Split
from linkbound.values import Value


class RankCache(Value, frozen=True, kw_only=True):
    """Bytes of cache of one sequence on one rank."""

    full_bytes_per_token: float
    """Layers that keep every token."""
    window_bytes_per_token: tuple[tuple[int, float], ...]
    """(window in tokens, bytes a token) of the layers that keep that many."""
    state_bytes: float
    """Constant, whatever the length."""

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one more token takes while no window is full."""
        return self.full_bytes_per_token + sum(rate for _, rate in self.window_bytes_per_token)

    def sequence_bytes(self, tokens: int, block_tokens: int) -> float:
        """Bytes of a sequence of `tokens` in whole blocks; a full window keeps one block more."""
        held = _whole_blocks(tokens, block_tokens)
        total = self.state_bytes + held * self.full_bytes_per_token
        for window, rate in self.window_bytes_per_token:
            total += rate * min(held, _whole_blocks(window, block_tokens) + block_tokens)
        return total


def rank_cache(layers: Iterable[Layer], split: Split, tensor: int) -> RankCache:
    """What `layers` cache of one sequence on tensor rank `tensor`."""
    share = tensor_share(split, tensor)
    full = state = 0.0
    windows: dict[int, float] = defaultdict(float)
    for layer in layers:
        match layer.mixer:
            case Attention(window=None) as mixer:
                full += token_bytes(mixer) * max(share, 1 / mixer.kv_heads)
            case Attention(window=int(window)) as mixer:
                windows[window] += token_bytes(mixer) * max(share, 1 / mixer.kv_heads)
            case LatentAttention() as mixer:
                # One latent serves all heads: every tensor rank keeps it whole.
                full += token_bytes(mixer)
            case Recurrent(state_bytes=size):
                state += size * share
            case None:
                pass
    return RankCache(
        full_bytes_per_token=full,
        window_bytes_per_token=tuple(sorted(windows.items())),
        state_bytes=state,
    )


def longest_sequence(cache: RankCache, pool_bytes: float, block_tokens: int, limit: int) -> int:
    """Most tokens, in whole blocks up to `limit`, that one sequence can have in `pool_bytes`."""
    low, high = 0, -(-limit // block_tokens)
    while low < high:
        middle = (low + high + 1) // 2
        if cache.sequence_bytes(middle * block_tokens, block_tokens) <= pool_bytes:
            low = middle
        else:
            high = middle - 1
    return min(low * block_tokens, limit)


def _whole_blocks(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens) * block_tokens
