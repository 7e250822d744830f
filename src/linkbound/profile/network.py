"""A decoder-only transformer of one rank, and its steps: a chunk of the prompt, or one token (P1).

The stage between two boundaries is one function of device tensors, so that it can be captured.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as functional

from linkbound.model.types import Layer
from linkbound.profile import ops
from linkbound.profile.attention import Piece, attention_block
from linkbound.profile.exchange import Exchange
from linkbound.profile.feedforward import feed_forward
from linkbound.profile.holding import Holding
from linkbound.profile.weights import Maker
from linkbound.splits.types import CrossingKind
from linkbound.splits.weights import padded_vocabulary

States = tuple[torch.Tensor, torch.Tensor]
"""What crosses a stage's boundary: the output of its last block, and the sum before it."""
Part = tuple[Piece, torch.Tensor]
"""What goes through the stages together, and its tokens (sequence x token)."""


class DecoderLayer:
    """Norm, attention, norm, feed-forward."""

    def __init__(self, index: int, layer: Layer, held: Holding, maker: Maker) -> None:
        self.attention = attention_block(f"{index}.attention", layer, held, maker)
        self.feed_forward = feed_forward(f"{index}.ffn", layer, held, maker)
        self._norms = [maker.norm(f"{index}.norm.{one}", held.shape.hidden) for one in range(2)]

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, piece: Piece, exchange: Exchange
    ) -> States:
        mixed, residual = self.attention(x, residual, self._norms[0], piece)
        reduced = exchange.reduced_product(mixed, self.attention.output)
        return self.feed_forward(reduced, residual, self._norms[1], exchange)


class Network:
    """This rank's layers with embedding and head where the rank has them."""

    def __init__(self, held: Holding, maker: Maker, exchange: Exchange) -> None:
        self.held, self.exchange, self.device = held, exchange, maker.device
        self.dtype = maker.dtype
        shape = held.shape
        rows = (padded_vocabulary(shape.vocabulary), shape.hidden)
        own = (held.vocabulary, (0, shape.hidden))
        if held.is_first:
            self.embedding = maker.matrix("embedding", rows, own, shape.hidden)
        self.layers = [
            DecoderLayer(index, shape.layers[index], held, maker)
            for index in range(held.first_layer, held.last_layer)
        ]
        self._note_plain(maker)
        if held.is_last:
            self.norm = maker.norm("norm", shape.hidden)
            if shape.tied and held.is_first:
                self.head = self.embedding
            else:
                name = "embedding" if shape.tied else "head"
                self.head = maker.matrix(name, rows, own, shape.hidden)

    def _note_plain(self, maker: Maker) -> None:
        """Weights of this rank that the file stores in few bits, and that are no 8-bit floats."""
        held, shape = self.held, self.held.shape
        outside = [shape.embedding] if held.is_first else []
        if held.is_last:
            outside.append(shape.head or shape.embedding)
        for one in outside:
            maker.keep_plain(one.name, one.bits, "outside of layers all is in bf16")
        for layer in shape.layers[held.first_layer : held.last_layer]:
            for one in layer.weights:
                if not one.float8:
                    maker.keep_plain(one.name, one.bits, f"{one.bits:g} bits, no 8-bit floats")

    def allocate(self, sequences: int, length: int) -> None:
        """Cache and token buffers for `sequences` sequences of up to `length` tokens."""
        for layer in self.layers:
            # Lets go of the cache before: two at once may not fit.
            layer.attention.allocate(0, 0)
        for layer in self.layers:
            layer.attention.allocate(sequences, length)
        self.starts = torch.zeros(sequences, dtype=torch.int64, device=self.device)
        self.tokens = torch.zeros(sequences, 1, dtype=torch.int64, device=self.device)
        self.logits: torch.Tensor | None = None
        self._boundaries: dict[tuple[int, int], States] = {}

    def prefill(
        self, prompts: torch.Tensor, context: int, chunk_tokens: int, micro_batches: int
    ) -> None:
        """Run prompts (sequence x token) through after `context` tokens; samples one token."""
        for part in self.prefill_parts(prompts, context, chunk_tokens, micro_batches):
            self.through(*part)
        self.advance(prompts.shape[1])

    def prefill_parts(
        self, prompts: torch.Tensor, context: int, chunk_tokens: int, micro_batches: int
    ) -> list[Part]:
        """The chunks of prompts, each in its micro-batches, one after another through the stages.

        Short prompts share a chunk; of a longer one each chunk comes after those before it.
        """
        sequences, length = prompts.shape
        together = max(1, chunk_tokens // length)
        found = []
        for first in range(0, sequences, together):
            last = min(first + together, sequences)
            for start in range(0, length, chunk_tokens):
                new = prompts[first:last, start : start + chunk_tokens]
                # Tokens before this chunk are in the cache: kernels read that from the device.
                starts = torch.full_like(self.starts, context + start)
                for low, high in even_pieces(last - first, micro_batches):
                    piece = Piece(first + low, first + high, new.shape[1], context + start, starts)
                    found.append((piece, new[low:high]))
        return found

    def decode(self, micro_batches: int) -> None:
        """One token of every sequence."""
        for part in self.decode_parts(micro_batches):
            self.through(*part)
        self.advance(1)

    def decode_parts(self, micro_batches: int) -> list[Part]:
        """The micro-batches of a decode step, one after another through the stages."""
        return [
            (Piece(low, high, 1, None, self.starts), self.tokens[low:high])
            for low, high in even_pieces(len(self.starts), micro_batches)
        ]

    def advance(self, new: int) -> None:
        """Every sequence is `new` tokens longer, and the first stage learns what was sampled."""
        self.starts += new
        self.return_sampled()

    def return_sampled(self) -> None:
        """The first stage learns what the last one sampled."""
        if self.held.split.pp > 1:
            self.exchange.return_sampled(self.tokens)

    def through(self, piece: Piece, tokens: torch.Tensor) -> None:
        """One piece through this rank's stage, boundaries included."""
        states = self.receive(piece)
        out = self.stage(piece, tokens, states)
        self.send(out)

    def receive(self, piece: Piece) -> States | None:
        """What the stage before sends; None on the first."""
        if self.held.is_first:
            return None
        states = self.boundary(piece)
        self.exchange.receive_states(*states)
        return states

    def boundary(self, piece: Piece) -> States:
        """Room for what crosses a boundary: the same for the same piece, as a graph needs it.

        Filled at random: without peers it stays so, and zeros would be too easy to multiply.
        """
        key = (piece.first, piece.tokens)
        if key not in self._boundaries:
            size = (piece.tokens, self.held.shape.hidden)
            x, residual = (
                torch.randn(size, dtype=self.dtype, device=self.device) for _ in range(2)
            )
            self._boundaries[key] = (x, residual)
        return self._boundaries[key]

    def send(self, states: States | None) -> None:
        """To the next stage, unless this is the last."""
        if states is not None and not self.held.is_last:
            self.exchange.send_states(*states)

    def stage(self, piece: Piece, tokens: torch.Tensor, states: States | None) -> States | None:
        """The layers of this rank; on the last stage sampled tokens are left in `tokens`."""
        if states is None:
            x, residual = self.embed(tokens.flatten()), None
        else:
            x, residual = states
        for layer in self.layers:
            x, residual = layer(x, residual, piece, self.exchange)
        if self.held.is_last:
            assert residual is not None
            self.sample(x, residual, piece)
            return None
        assert residual is not None
        return x, residual

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of the vocabulary-parallel embedding."""
        if self.held.split.tp == 1:
            return functional.embedding(tokens, self.embedding)
        first, last = self.held.vocabulary
        own = (tokens >= first) & (tokens < last)
        rows = functional.embedding(torch.where(own, tokens - first, 0), self.embedding)
        rows = torch.where(own.unsqueeze(-1), rows, 0)
        # It outlives the next all-reduce, whose summand may be written to the same place.
        return self.exchange.all_reduce(rows, CrossingKind.EMBEDDING).clone()

    def sample(self, x: torch.Tensor, residual: torch.Tensor, piece: Piece) -> None:
        """Head and argmax at each sequence's last position."""
        if piece.new > 1:
            at = slice(piece.new - 1, None, piece.new)
            x, residual = x[at].contiguous(), residual[at].contiguous()
        part, _ = ops.norm_product(x, residual, self.norm, self.head)
        if self.held.split.tp > 1:
            ranks = self.exchange.tensor
            gathered = self.exchange.all_gather(part, ranks, CrossingKind.LOGITS)
            part = gathered.view(len(ranks), len(part), -1).transpose(0, 1).flatten(1)
        logits = part[:, : self.held.shape.vocabulary]
        self.logits = logits
        self.tokens[piece.first : piece.last, 0] = logits.argmax(-1)


def even_pieces(size: int, pieces: int) -> Iterator[tuple[int, int]]:
    """`size` things in up to `pieces` parts that differ by one at most."""
    pieces = min(size, pieces)
    for index in range(pieces):
        yield size * index // pieces, size * (index + 1) // pieces
