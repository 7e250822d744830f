"""The crossings of a rank as the network calls them: counted, delayed on purpose, carried (P1).

Every call is written into the ledger with the payload that nccl-tests would count.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import torch

from linkbound.links.types import Operation
from linkbound.profile import ops
from linkbound.profile.float8 import Matrix
from linkbound.profile.holding import Holding
from linkbound.profile.ledger import Ledger
from linkbound.profile.transport import Transport, expert_ranks, tensor_ranks
from linkbound.profile.types import Call
from linkbound.splits.types import CrossingKind

if TYPE_CHECKING:
    from linkbound.profile.symmetric import SymmetricAllReduce

SAMPLED = "sampled"
"""Token ids from the last stage to the first: 8 bytes a sequence, in no list of crossings."""
ROUTING = "routing"
"""Counts and weights that go with an all-to-all of tokens."""


class Again(NamedTuple):
    """A call to run again, and the elements that it sends, flat."""

    sent: torch.Tensor
    run: Callable[[], object]


class Exchange:
    """One rank's way to its peers."""

    def __init__(
        self,
        held: Holding,
        transport: Transport,
        ledger: Ledger,
        dtype: torch.dtype,
        device: torch.device,
        symmetric: "SymmetricAllReduce | None" = None,
        delay: Callable[[], None] | None = None,
    ) -> None:
        self.held, self.ledger = held, ledger
        self.dtype, self.device = dtype, device
        self._transport, self._symmetric = transport, symmetric
        self._delay = delay or _no_delay
        self.tensor, self.experts = tensor_ranks(held), expert_ranks(held)

    def reduced_product(self, x: torch.Tensor, weight: Matrix) -> torch.Tensor:
        """x · weightᵀ summed over the tensor group: the row-parallel product of a layer."""
        into = self.summand(len(x), weight.shape[0])
        return self.all_reduce(ops.product(x, weight, into), CrossingKind.TENSOR)

    def summand(self, rows: int, columns: int) -> torch.Tensor | None:
        """Where to write what `all_reduce` is to sum; None where any tensor does.

        Peers read it there: what is elsewhere is copied first.
        """
        own = self._symmetric
        if own is None or not own.takes(rows * columns * self.dtype.itemsize):
            return None
        return own.input(rows, columns)

    def all_reduce(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        """Sum of token x hidden over the tensor group; holds until the next summand is written."""
        if len(self.tensor) == 1:
            return x
        into = self.summand(*x.shape)
        self._delay()
        if self._symmetric is None or into is None:
            with self._call(kind, Operation.ALL_REDUCE, self.tensor, x.nbytes):
                return self._transport.all_reduce(x, self.tensor)
        if x.data_ptr() != into.data_ptr():
            into.copy_(x)
        name = self._symmetric.implementation(x.nbytes)
        with self._call(kind, Operation.ALL_REDUCE, self.tensor, x.nbytes, name):
            return self._symmetric.reduce(into)

    def all_gather(self, x: torch.Tensor, ranks: tuple[int, ...], kind: str) -> torch.Tensor:
        """Rows of every rank, in rank order."""
        if len(ranks) == 1:
            return x
        self._delay()
        with self._call(kind, Operation.ALL_GATHER, ranks, x.nbytes * len(ranks)):
            return self._transport.all_gather(x, ranks)

    def reduce_scatter(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        """This rank's rows of the sum over the ranks."""
        self._delay()
        with self._call(CrossingKind.EXPERT, Operation.REDUCE_SCATTER, ranks, x.nbytes):
            return self._transport.reduce_scatter(x, ranks)

    def counts(self, sent: torch.Tensor) -> torch.Tensor:
        """How many rows each rank of the experts sends here, for how many go there."""
        self._delay()
        with self._call(ROUTING, Operation.ALL_TO_ALL, self.experts, sent.nbytes):
            return self._transport.counts(sent, self.experts)

    def all_to_all(
        self, x: torch.Tensor, sent: list[int], received: list[int], kind: str
    ) -> torch.Tensor:
        """Rows for each rank of the experts, in order, for the rows that each has for this one."""
        with self._call(kind, Operation.ALL_TO_ALL, self.experts, x.nbytes):
            return self._transport.all_to_all(x, sent, received, self.experts)

    def send_states(self, *states: torch.Tensor) -> None:
        """To the next stage: of each tensor this rank's slice."""
        dst = self.held.rank.number + self.held.split.tp
        for state in states:
            mine = state.reshape(len(self.tensor), -1)[self.held.rank.tensor].contiguous()
            self._delay()
            ranks = (self.held.rank.number, dst)
            with self._call(CrossingKind.PIPELINE, Operation.SEND_RECV, ranks, mine.nbytes):
                self._transport.send(mine, dst)

    def receive_states(self, *states: torch.Tensor) -> None:
        """From the stage before, into tensors of the right shape; slices are gathered again."""
        src = self.held.rank.number - self.held.split.tp
        for state in states:
            mine = state.view(len(self.tensor), -1)[self.held.rank.tensor].clone()
            ranks = (src, self.held.rank.number)
            with self._call(CrossingKind.PIPELINE, Operation.SEND_RECV, ranks, mine.nbytes):
                self._transport.receive(mine, src)
            whole = self.all_gather(mine.unsqueeze(0), self.tensor, CrossingKind.PIPELINE)
            state.copy_(whole.view_as(state))

    def return_sampled(self, tokens: torch.Tensor) -> None:
        """From the last stage to the first, in place."""
        split, rank = self.held.split, self.held.rank
        away = (split.pp - 1) * split.tp
        if self.held.is_last:
            ranks = (rank.number, rank.number - away)
            with self._call(SAMPLED, Operation.SEND_RECV, ranks, tokens.nbytes):
                self._transport.send(tokens, rank.number - away)
        elif self.held.is_first:
            ranks = (rank.number + away, rank.number)
            with self._call(SAMPLED, Operation.SEND_RECV, ranks, tokens.nbytes):
                self._transport.receive(tokens, rank.number + away)

    def again(self, call: Call) -> Again | None:
        """A collective of this kind and size, uncounted; None for what takes two sides.

        Sums of sums grow beyond all bounds unless what is sent is written anew.
        """
        element_bytes = self.dtype.itemsize
        elements, ranks = call.size_bytes // element_bytes, call.ranks
        own = self._symmetric
        if own is not None and call.implementation in own.IMPLEMENTATIONS:
            reduced = own.input(1, elements)
            return Again(reduced.view(-1), lambda: own.reduce(reduced))
        match call.operation:
            case Operation.ALL_REDUCE:
                x = self._random(elements)
                return Again(x, lambda: self._transport.all_reduce(x, ranks))
            case Operation.ALL_GATHER:
                x = self._random(elements // len(ranks))
                return Again(x, lambda: self._transport.all_gather(x, ranks))
            case Operation.REDUCE_SCATTER:
                x = self._random(elements)
                return Again(x, lambda: self._transport.reduce_scatter(x, ranks))
            case _:
                return None

    def _random(self, elements: int) -> torch.Tensor:
        return torch.randn(elements, dtype=self.dtype, device=self.device)

    def _call(
        self,
        kind: str,
        operation: Operation,
        ranks: tuple[int, ...],
        size_bytes: int,
        implementation: str | None = None,
    ) -> AbstractContextManager[None]:
        name = implementation or self._transport.name
        return self.ledger.call(str(kind), operation, name, ranks, size_bytes)


def _no_delay() -> None:
    """Nothing is slowed."""


def host_delay(seconds: float) -> Callable[[], None]:
    """A rank that sleeps before every collective."""
    return lambda: time.sleep(seconds)


def device_delay(seconds: float) -> Callable[[], None]:
    """A GPU that spins before every collective; its clock is timed first."""
    cycles = 20_000_000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    per_s = cycles / (start.elapsed_time(end) * 1e-3)
    spin = round(seconds * per_s)
    return lambda: torch.cuda._sleep(spin)
