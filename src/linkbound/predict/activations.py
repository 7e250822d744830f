"""Bytes that the small kernels between matrix products move for a token, on one rank (S4).

Elements read and written by fused kernels, as engines have them: a norm adds the residual (reads
two, writes two), rotation reads and writes queries and keys, the cache is written from what is
read, an activation reads what it gates. Results of matrix products themselves are not counted.
"""

from linkbound.model.types import Attention, DenseFfn, LatentAttention, Layer, Mixer, MoeFfn
from linkbound.splits.ranks import tensor_share
from linkbound.splits.types import Split

NORM = 4
"""Reads and writes of one hidden state in a norm that adds the residual."""


def moved_elements(layer: Layer, hidden: int, split: Split, tensor: int) -> float:
    """Elements for each token of a step in one layer on tensor rank `tensor`.

    Of a recurrent mixer only the norm is known.
    """
    share = tensor_share(split, tensor)
    parts = sum(one is not None for one in (layer.mixer, layer.ffn))
    total = float(NORM * hidden * parts)
    if layer.mixer is not None:
        total += _mixer_elements(layer.mixer, share)
    match layer.ffn:
        case DenseFfn() as ffn:
            total += (3 if ffn.gated else 2) * ffn.intermediate * share
        case MoeFfn() as ffn:
            wide = share * (ffn.top_k + ffn.shared_experts) * ffn.intermediate
            # Every rank adds up what its part of each expert gave, or its whole experts.
            summed = ffn.top_k * (share if split.ep > 1 else 1.0) + 1
            total += (3 if ffn.gated else 2) * wide + summed * hidden
        case None:
            pass
    return total


def _mixer_elements(mixer: Mixer, share: float) -> float:
    match mixer:
        case Attention():
            queries = mixer.query_heads * mixer.key_dim * share
            held = mixer.kv_heads * max(share, 1 / mixer.kv_heads)
            keys, values = held * mixer.key_dim, held * mixer.value_dim
            return 2 * queries + 4 * keys + 2 * values
        case LatentAttention():
            queries = mixer.query_heads * (mixer.nope_dim + mixer.rope_dim) * share
            return 2 * queries + 4 * (mixer.latent_dim + mixer.rope_dim)
        case _:
            return 0.0
