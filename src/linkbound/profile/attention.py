"""Attention of one layer on one rank: grouped heads or a latent, over a cache of fixed size (P1).

Both stop before the output projection, whose product the exchange reduces over the ranks.
"""

import torch
import torch.nn.functional as functional

from linkbound.model.types import Attention, LatentAttention, Layer
from linkbound.profile import ops
from linkbound.profile.float8 import Matrix
from linkbound.profile.holding import Holding, kv_heads, parameters, query_heads, weights_of
from linkbound.profile.weights import Maker

CACHE = "attention is computed in bf16"


class Piece:
    """The sequences and tokens of one step, or of one micro-batch of it.

    `context` is what each sequence has in the cache before, None in decode, where `starts` on the
    device says it: a captured step must not depend on a number of the host.
    """

    def __init__(
        self, first: int, last: int, new: int, context: int | None, starts: torch.Tensor
    ) -> None:
        self.first, self.last, self.new, self.context = first, last, new, context
        self.starts = starts[first:last]

    @property
    def tokens(self) -> int:
        return (self.last - self.first) * self.new


class GroupedAttention:
    """MHA, GQA or MQA: this rank's query heads and the key/value heads they need."""

    def __init__(
        self, name: str, mixer: Attention, layer: Layer, held: Holding, maker: Maker
    ) -> None:
        hidden = held.shape.hidden
        self.mixer = mixer
        first, last = query_heads(mixer.query_heads, held.split, held.rank)
        low, high = kv_heads(mixer, held.split, held.rank)
        self.heads, self.kv = last - first, high - low
        self.scale = mixer.key_dim**-0.5
        self._plain = torch.empty(0, dtype=maker.dtype, device=maker.device)
        every = (0, hidden)
        parts = []
        for which, heads, dim, (start, end) in (
            ("q", mixer.query_heads, mixer.key_dim, (first, last)),
            ("k", mixer.kv_heads, mixer.key_dim, (low, high)),
            ("v", mixer.kv_heads, mixer.value_dim, (low, high)),
        ):
            rows = (start * dim, end * dim)
            parts.append(
                maker.matrix(f"{name}.{which}", (heads * dim, hidden), (rows, every), hidden)
            )
        self.qkv = maker.stored(torch.cat(parts), weights_of(layer, *"qkv"), hidden)
        width = mixer.query_heads * mixer.value_dim
        columns = (first * mixer.value_dim, last * mixer.value_dim)
        output = maker.matrix(f"{name}.o", (hidden, width), (every, columns), width)
        self.output = maker.stored(output, weights_of(layer, "o"), width)
        maker.keep_plain("cache", mixer.cache_bits, CACHE)

    def allocate(self, sequences: int, length: int) -> None:
        """A cache for `sequences` sequences of up to `length` tokens, filled at random.

        So a context of any length can be timed without computing it first.
        """
        rows = (sequences, length, self.kv)
        self.keys = self._plain.new_empty(*rows, self.mixer.key_dim).normal_()
        self.values = self._plain.new_empty(*rows, self.mixer.value_dim).normal_()
        self.rotation = ops.rotation_tables(length, self.mixer.key_dim, self._plain.device)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, piece: Piece
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the norm of x + residual (token x hidden): token x heads · dim, and that sum."""
        qkv, residual = ops.norm_product(x, residual, norm, self.qkv)
        return self._attend(qkv, piece), residual

    def _attend(self, qkv: torch.Tensor, piece: Piece) -> torch.Tensor:
        keys, values = self.keys[piece.first : piece.last], self.values[piece.first : piece.last]
        window = self.mixer.window
        if piece.context is None:
            return ops.append_attend_one(
                qkv, keys, values, piece.starts, self.rotation, self.scale, window
            )
        ops.rotate_append(qkv, keys, values, piece.starts, self.rotation, piece.new)
        queries = qkv[:, : self.heads * self.mixer.key_dim]
        seen = piece.context + piece.new
        out = ops.attend_many(
            queries.unflatten(0, (-1, piece.new)).unflatten(2, (self.heads, -1)),
            keys[:, :seen],
            values[:, :seen],
            self.scale,
            window,
        )
        return out.reshape(piece.tokens, -1)


class LatentAttentionBlock:
    """Multi-head latent attention: the latent of every token is whole on every rank.

    A chunk expands its context into keys and values; a decode step attends over the latents
    themselves, with the up-projections absorbed into query and output.
    """

    def __init__(
        self, name: str, mixer: LatentAttention, layer: Layer, held: Holding, maker: Maker
    ) -> None:
        hidden = held.shape.hidden
        self.mixer = mixer
        first, last = query_heads(mixer.query_heads, held.split, held.rank)
        self.heads = last - first
        self.query_dim = mixer.nope_dim + mixer.rope_dim
        self.scale = self.query_dim**-0.5
        rank = parameters(layer, "q down") // hidden
        self.query_down: Matrix | None = None
        if rank:
            whole = (rank, hidden)
            query_down = maker.matrix(f"{name}.qa", whole, ((0, rank), (0, hidden)), hidden)
            self.query_down = maker.stored(query_down, weights_of(layer, "q down"), hidden)
            self.query_norm = maker.norm(f"{name}.qa.norm", rank)
        inputs = rank or hidden
        query_up = maker.matrix(
            f"{name}.qb",
            (mixer.query_heads * self.query_dim, inputs),
            ((first * self.query_dim, last * self.query_dim), (0, inputs)),
            inputs,
        )
        self.query_up = maker.stored(query_up, weights_of(layer, "q up" if rank else "q"), inputs)
        down = mixer.latent_dim + mixer.rope_dim
        into = maker.matrix(f"{name}.kva", (down, hidden), ((0, down), (0, hidden)), hidden)
        self.down = maker.stored(into, weights_of(layer, "kv down"), hidden)
        self.norm = maker.norm(f"{name}.kva.norm", mixer.latent_dim)
        up = mixer.nope_dim + mixer.value_dim
        self.up = maker.matrix(
            f"{name}.kvb",
            (mixer.query_heads, up, mixer.latent_dim),
            ((first, last), (0, up), (0, mixer.latent_dim)),
            mixer.latent_dim,
        )
        for one in weights_of(layer, "kv up"):
            maker.keep_plain(one.name, one.bits, "taken into queries and outputs in bf16")
        width = mixer.query_heads * mixer.value_dim
        columns = (first * mixer.value_dim, last * mixer.value_dim)
        output = maker.matrix(f"{name}.o", (hidden, width), ((0, hidden), columns), width)
        self.output = maker.stored(output, weights_of(layer, "o"), width)
        maker.keep_plain("cache", mixer.cache_bits, CACHE)

    def allocate(self, sequences: int, length: int) -> None:
        """A cache for `sequences` sequences of up to `length` tokens, filled at random."""
        width = self.mixer.latent_dim + self.mixer.rope_dim
        self.cache = self.up.new_empty(sequences, length, width).normal_()
        self.rotation = ops.rotation_tables(length, self.mixer.rope_dim, self.up.device)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, piece: Piece
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the norm of x + residual (token x hidden): token x heads · dim, and that sum."""
        normed, residual = ops.add_rms_norm(x, residual, norm)
        return self._attend(normed, piece), residual

    def _attend(self, x: torch.Tensor, piece: Piece) -> torch.Tensor:
        positions = ops.token_positions(piece.starts, piece.new)
        cache = self.cache[piece.first : piece.last]
        self._append(x, positions, cache, piece)
        plain, turned = self._queries(x, positions)
        if piece.context is None:
            return self._absorbed(plain, turned, cache, piece.starts)
        return self._expanded(plain, turned, cache[:, : piece.context + piece.new], piece)

    def _append(
        self, x: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor, piece: Piece
    ) -> None:
        down = ops.product(x, self.down)
        latent, key = down.split([self.mixer.latent_dim, self.mixer.rope_dim], dim=-1)
        latent, _ = ops.add_rms_norm(latent.contiguous(), None, self.norm)
        key = ops.rotate(key.unsqueeze(1), positions, self.rotation).squeeze(1)
        sequence = torch.arange(len(piece.starts), device=x.device).repeat_interleave(piece.new)
        cache[sequence, positions] = torch.cat((latent, key), dim=-1)

    def _queries(
        self, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.query_down is not None:
            x, _ = ops.add_rms_norm(ops.product(x, self.query_down), None, self.query_norm)
        query = ops.product(x, self.query_up).unflatten(1, (self.heads, -1))
        plain, turned = query.split([self.mixer.nope_dim, self.mixer.rope_dim], dim=-1)
        return plain, ops.rotate(turned, positions, self.rotation)

    def _absorbed(
        self, plain: torch.Tensor, turned: torch.Tensor, cache: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        into_key, into_value = self.up.split([self.mixer.nope_dim, self.mixer.value_dim], dim=1)
        latent_query = torch.einsum("bnd,ndc->bnc", plain, into_key)
        query = torch.cat((latent_query, turned), dim=-1)
        score = torch.einsum("bnc,bsc->bns", query, cache).float() * self.scale
        hidden = ~ops.visible(starts, cache.shape[1], None)
        share = score.masked_fill(hidden[:, None], -torch.inf).softmax(-1).to(cache.dtype)
        mixed = torch.einsum("bns,bsc->bnc", share, cache[..., : self.mixer.latent_dim])
        return torch.einsum("bnc,nvc->bnv", mixed, into_value).flatten(1)

    def _expanded(
        self, plain: torch.Tensor, turned: torch.Tensor, seen: torch.Tensor, piece: Piece
    ) -> torch.Tensor:
        latent, key = seen.split([self.mixer.latent_dim, self.mixer.rope_dim], dim=-1)
        both = functional.linear(latent, self.up.flatten(0, 1)).unflatten(2, (self.heads, -1))
        key_plain, value = both.split([self.mixer.nope_dim, self.mixer.value_dim], dim=-1)
        turned_key = key.unsqueeze(2).expand(-1, -1, self.heads, -1)
        query = torch.cat((plain, turned), dim=-1).unflatten(0, (-1, piece.new))
        out = ops.attend_many(
            query, torch.cat((key_plain, turned_key), dim=-1), value, self.scale, None
        )
        return out.reshape(piece.tokens, -1)


AttentionBlock = GroupedAttention | LatentAttentionBlock


def attention_block(name: str, layer: Layer, held: Holding, maker: Maker) -> AttentionBlock:
    """The attention that `layer` states."""
    match layer.mixer:
        case Attention() as mixer:
            return GroupedAttention(name, mixer, layer, held, maker)
        case LatentAttention() as mixer:
            return LatentAttentionBlock(name, mixer, layer, held, maker)
        case other:
            raise AssertionError(f"{other} was let in")
