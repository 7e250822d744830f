"""Feed-forward of one layer on one rank: dense, or routed experts and how tokens reach them (P1).

Experts of one rank are one grouped product over tokens sorted by expert; nothing of it is read
back by the host, but for the all-to-all, whose sizes the host must know.
"""

import torch
import torch.nn.functional as functional

from linkbound.model.types import DenseFfn, Layer, MoeFfn, Weights
from linkbound.profile import ops
from linkbound.profile.exchange import ROUTING, Exchange
from linkbound.profile.holding import (
    Holding,
    Range,
    dense_columns,
    even,
    expert_bounds,
    expert_columns,
    expert_index,
    shared_width,
    weights_of,
)
from linkbound.profile.weights import Maker
from linkbound.splits.types import CrossingKind, Dispatch


class DenseBlock:
    """Columns of a gated or plain block."""

    def __init__(
        self,
        name: str,
        width: int,
        columns: Range,
        hidden: int,
        gated: bool,
        maker: Maker,
        stored: tuple[tuple[Weights, ...], tuple[Weights, ...]],
    ) -> None:
        self.gated = gated
        parts = [
            maker.matrix(f"{name}.{which}", (width, hidden), (columns, (0, hidden)), hidden)
            for which in (("gate", "up") if gated else ("up",))
        ]
        into = torch.cat(parts) if gated else parts[0]
        self.into = maker.stored(into, stored[0], hidden)
        down = maker.matrix(f"{name}.down", (hidden, width), ((0, hidden), columns), width)
        self.down = maker.stored(down, stored[1], width)

    def normed_inner(
        self, x: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Before the second product, of the norm of x + residual; and that sum."""
        if self.gated:
            return ops.norm_gate(x, residual, norm, self.into)
        into, residual = ops.norm_product(x, residual, norm, self.into)
        return functional.gelu(into), residual

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum."""
        into = ops.product(x, self.into)
        inner = ops.silu_mul(into) if self.gated else functional.gelu(into)
        return ops.product(inner, self.down)


class DenseFeedForward:
    """A block whose second product is reduced over the tensor group."""

    def __init__(self, name: str, layer: Layer, ffn: DenseFfn, held: Holding, maker: Maker) -> None:
        columns = dense_columns(ffn, held.split, held.rank)
        stored = weights_of(layer, "gate up", "up"), weights_of(layer, "down")
        self._block = DenseBlock(
            name, ffn.intermediate, columns, held.shape.hidden, ffn.gated, maker, stored
        )

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, exchange: Exchange
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the norm of x + residual; and that sum."""
        inner, residual = self._block.normed_inner(x, residual, norm)
        return exchange.reduced_product(inner, self._block.down), residual


class MoeFeedForward:
    """Router, this rank's experts, and shared experts."""

    def __init__(self, name: str, layer: Layer, ffn: MoeFfn, held: Holding, maker: Maker) -> None:
        hidden, split, rank = held.shape.hidden, held.split, held.rank
        self.ffn, self._held = ffn, held
        every = (0, hidden)
        self.router = maker.matrix(
            f"{name}.router", (ffn.experts, hidden), ((0, ffn.experts), every), hidden
        )
        self.bounds = expert_bounds(ffn.experts, split)
        self.mine = self.bounds[expert_index(split, rank) if split.ep > 1 else 0]
        columns = expert_columns(ffn, split, rank)
        whole = (ffn.experts, ffn.intermediate, hidden)
        parts = [
            maker.matrix(f"{name}.experts.{which}", whole, (self.mine, columns, every), hidden)
            for which in (("gate", "up") if ffn.gated else ("up",))
        ]
        stored = weights_of(layer, "experts")
        into = torch.cat(parts, dim=1) if ffn.gated else parts[0]
        self.into = maker.stored(into, stored, hidden)
        down = maker.matrix(
            f"{name}.experts.down",
            (ffn.experts, hidden, ffn.intermediate),
            (self.mine, every, columns),
            ffn.intermediate,
        )
        self.down = maker.stored(down, stored, ffn.intermediate)
        width = shared_width(held.shape, layer, ffn)
        self.shared = None
        if width:
            # Where tokens move to experts no all-reduce is left: shared experts are whole then.
            part = (0, width) if held.exchanges_experts else even(width, split.tp, rank.tensor)
            beside = (
                weights_of(layer, "shared gate up", "shared up"),
                weights_of(layer, "shared down"),
            )
            self.shared = DenseBlock(
                f"{name}.shared", width, part, hidden, ffn.gated, maker, beside
            )

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, exchange: Exchange
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the norm of x + residual; and that sum."""
        normed, residual = ops.add_rms_norm(x, residual, norm)
        return self._reduced(normed, exchange), residual

    def _reduced(self, x: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        if not self._held.exchanges_experts:
            into = exchange.summand(*x.shape)
            routed = self.experts(x, *self.route(x), into if self.shared is None else None)
            return exchange.all_reduce(self._with_shared(routed, x, into), CrossingKind.TENSOR)
        tp, tensor = self._held.split.tp, self._held.rank.tensor
        padded = functional.pad(x, (0, 0, 0, -len(x) % tp))
        first, last = even(len(padded), tp, tensor)
        part = padded[first:last]
        if self._held.split.dispatch is Dispatch.ALL_TO_ALL:
            out = self._sent_to_experts(part, exchange)
        else:
            gathered = exchange.all_gather(part, exchange.experts, CrossingKind.EXPERT)
            routed = self.experts(gathered, *self.route(gathered))
            out = exchange.reduce_scatter(routed, exchange.experts)
        out = self._with_shared(out, part)
        return exchange.all_gather(out, exchange.tensor, CrossingKind.EXPERT)[: len(x)]

    def _with_shared(
        self, routed: torch.Tensor, x: torch.Tensor, into: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shared experts added, the sum written to `into` where one is given."""
        if self.shared is None:
            return routed
        return torch.add(routed, self.shared.partial(x), out=into)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts of each token and their weights, which add up to 1."""
        score = functional.linear(x, self.router).float()
        best, experts = score.topk(self.ffn.top_k, dim=-1)
        return experts, best.softmax(-1).to(x.dtype)

    def experts(
        self,
        x: torch.Tensor,
        chosen: torch.Tensor,
        weights: torch.Tensor,
        total: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Weighted sum over those of a token's experts that are on this rank.

        Written to `total` where one is given.
        """
        first, last = self.mine
        own = (chosen >= first) & (chosen < last)
        # Tokens of other ranks' experts sort behind the last group, where no product reaches.
        local = torch.where(own, chosen - first, last - first).flatten()
        order = local.argsort(stable=True)
        ends = torch.searchsorted(
            local[order], torch.arange(last - first, device=x.device), right=True
        ).to(torch.int32)
        rows = x[order // self.ffn.top_k]
        into = ops.grouped_product(rows, self.into, ends)
        inner = ops.silu_mul(into) if self.ffn.gated else functional.gelu(into)
        out = ops.grouped_product(inner, self.down, ends)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        each = out[back].unflatten(0, (-1, self.ffn.top_k))
        # Rows that no group covers hold whatever was in memory: replaced, not multiplied by 0.
        each = torch.where(own.unsqueeze(-1), each, 0)
        if total is None:
            total = torch.empty_like(x)
        torch.bmm(weights.unsqueeze(1), each, out=total.unsqueeze(1))
        return total

    def _sent_to_experts(self, x: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        """Each token goes once to every rank that has one of its experts, and comes back summed."""
        chosen, weights = self.route(x)
        starts = torch.tensor([start for start, _ in self.bounds], device=x.device)
        owner = torch.searchsorted(starts, chosen.flatten(), right=True).sub_(1).view_as(chosen)
        goes = torch.zeros(len(x), len(self.bounds), dtype=torch.bool, device=x.device)
        goes.scatter_(1, owner, True)
        token = goes.t().nonzero()[:, 1]
        sent = goes.sum(0)
        received = exchange.counts(sent).tolist()
        out_counts = sent.tolist()
        rows = exchange.all_to_all(x[token], out_counts, received, CrossingKind.EXPERT)
        ids = exchange.all_to_all(chosen[token], out_counts, received, ROUTING)
        shares = exchange.all_to_all(weights[token], out_counts, received, ROUTING)
        done = self.experts(rows, ids, shares)
        home = exchange.all_to_all(done, received, out_counts, CrossingKind.EXPERT)
        return torch.zeros_like(x).index_add_(0, token, home)


FeedForward = DenseFeedForward | MoeFeedForward


def feed_forward(name: str, layer: Layer, held: Holding, maker: Maker) -> FeedForward:
    """The feed-forward block that `layer` states."""
    match layer.ffn:
        case DenseFfn() as ffn:
            return DenseFeedForward(name, layer, ffn, held, maker)
        case MoeFfn() as ffn:
            return MoeFeedForward(name, layer, ffn, held, maker)
        case None:
            raise AssertionError("a layer without feed-forward was let in")
