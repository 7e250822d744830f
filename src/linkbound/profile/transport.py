"""How tensors move between ranks: through torch's process groups, or not at all (P1, L4).

Alone, each operation leaves what it would leave in size, from this rank's own data: enough for
the time of a shard, nothing else.
"""

from typing import Protocol

import torch
import torch.distributed as dist

from linkbound.profile.holding import Holding
from linkbound.splits.ranks import expert_group, tensor_group
from linkbound.splits.types import Split


class Transport(Protocol):
    """Collectives over the ranks named, in rank order; the first dimension is what divides."""

    name: str

    def all_reduce(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor: ...

    def all_gather(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor: ...

    def reduce_scatter(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor: ...

    def counts(self, sent: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor: ...

    def all_to_all(
        self, x: torch.Tensor, sent: list[int], received: list[int], ranks: tuple[int, ...]
    ) -> torch.Tensor: ...

    def send(self, x: torch.Tensor, dst: int) -> None: ...

    def receive(self, x: torch.Tensor, src: int) -> None: ...


class Alone:
    """No peers: what they would send is this rank's own."""

    name = "none"

    def all_reduce(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG002
        return x

    def all_gather(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        return x.repeat(len(ranks), *[1] * (x.dim() - 1))

    def reduce_scatter(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        return x[: len(x) // len(ranks)].clone()

    def counts(self, sent: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG002
        return sent.clone()

    def all_to_all(
        self,
        x: torch.Tensor,
        sent: list[int],  # noqa: ARG002
        received: list[int],  # noqa: ARG002
        ranks: tuple[int, ...],  # noqa: ARG002
    ) -> torch.Tensor:
        return x.clone()

    def send(self, x: torch.Tensor, dst: int) -> None:
        """Nobody is there."""

    def receive(self, x: torch.Tensor, src: int) -> None:
        """Leaves what was there."""


class ProcessGroups:
    """torch.distributed: NCCL between GPUs, gloo between processes of a CPU."""

    def __init__(self, split: Split) -> None:
        self.name = dist.get_backend()
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        # Every rank makes every group, in one order: that is how torch agrees on them.
        for ranks in groups_of(split):
            self._groups[ranks] = dist.new_group(list(ranks))

    def group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """torch's handle of the ranks."""
        return self._groups[ranks]

    def all_reduce(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        dist.all_reduce(x, group=self._groups[ranks])
        return x

    def all_gather(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        out = x.new_empty(len(x) * len(ranks), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous(), group=self._groups[ranks])
        return out

    def reduce_scatter(self, x: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        out = x.new_empty(len(x) // len(ranks), *x.shape[1:])
        dist.reduce_scatter_tensor(out, x.contiguous(), group=self._groups[ranks])
        return out

    def counts(self, sent: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._groups[ranks])
        return received

    def all_to_all(
        self, x: torch.Tensor, sent: list[int], received: list[int], ranks: tuple[int, ...]
    ) -> torch.Tensor:
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=self._groups[ranks])
        return out

    def send(self, x: torch.Tensor, dst: int) -> None:
        dist.send(x, dst)

    def receive(self, x: torch.Tensor, src: int) -> None:
        dist.recv(x, src)


def groups_of(split: Split) -> tuple[tuple[int, ...], ...]:
    """Every group of more than one rank in which a collective runs, each once."""
    found: dict[tuple[int, ...], None] = {}
    for replica in range(split.replicas):
        for stage in range(split.pp):
            found[tensor_group(split, stage, replica)] = None
            if split.ep > 1:
                found[expert_group(split, stage, replica)] = None
    return tuple(ranks for ranks in found if len(ranks) > 1)


def tensor_ranks(held: Holding) -> tuple[int, ...]:
    """Ranks that hold the same layers of this rank's replica."""
    return tensor_group(held.split, held.rank.stage, held.rank.replica)


def expert_ranks(held: Holding) -> tuple[int, ...]:
    """Ranks over which the experts of this rank's layers are spread."""
    return expert_group(held.split, held.rank.stage, held.rank.replica)
