"""The cells of a job as calls of NCCL, for all ranks of this process (L4)."""

from collections.abc import Sequence

from linkbound.links.live.collective_buffers import RankBuffers
from linkbound.links.live.collective_exchange import Exchange
from linkbound.links.live.collective_layout import ROOT
from linkbound.links.live.collective_types import Cell
from linkbound.links.live.nccl_library import Nccl, group
from linkbound.links.types import Operation


class NcclCalls:
    """One communicator over the group; a call is issued on the stream of each rank here."""

    def __init__(self, nccl: Nccl, ranks: Sequence[RankBuffers], exchange: Exchange) -> None:
        self._nccl = nccl
        self._ranks = ranks
        own = nccl.unique_id() if exchange.process == 0 else b""
        identity = bytes.fromhex(exchange.all(own.hex())[0])
        self._communicators = []
        with group(nccl):
            for each in ranks:
                each.device.activate()
                self._communicators.append(nccl.init_rank(each.ranks, identity, each.rank))

    def issue(self, cell: Cell) -> None:
        """One call of the cell on every rank of this process."""
        # Two ranks of one thread would wait for each other outside a group; so do the pieces of
        # an exchange.
        if len(self._ranks) > 1 or cell.operation in (Operation.ALL_TO_ALL, Operation.SEND_RECV):
            with group(self._nccl):
                self._issue_all(cell)
        else:
            self._issue_all(cell)

    def close(self) -> None:
        """Leave the communicator: all ranks do so at the same time."""
        for each in self._ranks:
            each.device.activate()
            each.device.synchronize()
        with group(self._nccl):
            for communicator in self._communicators:
                self._nccl.destroy(communicator)

    def _issue_all(self, cell: Cell) -> None:
        for each, communicator in zip(self._ranks, self._communicators, strict=True):
            self._issue(cell, each, communicator)

    def _issue(self, cell: Cell, on: RankBuffers, communicator: int) -> None:
        source, result = on.addresses(cell)
        count = on.layout(cell).count
        stream = on.device.stream
        match cell.operation:
            case Operation.ALL_REDUCE:
                self._nccl.all_reduce(source, result, count, communicator, stream)
            case Operation.ALL_GATHER:
                self._nccl.all_gather(source, result, count, communicator, stream)
            case Operation.REDUCE_SCATTER:
                self._nccl.reduce_scatter(source, result, count, communicator, stream)
            case Operation.BROADCAST:
                self._nccl.broadcast(source, result, count, ROOT, communicator, stream)
            case Operation.SEND_RECV:
                to, since = (on.rank + 1) % on.ranks, (on.rank - 1) % on.ranks
                self._nccl.send(source, count, to, communicator, stream)
                self._nccl.receive(result, count, since, communicator, stream)
            case Operation.ALL_TO_ALL:
                share_bytes = count * on.element_bytes
                for peer in range(on.ranks):
                    at = peer * share_bytes
                    self._nccl.send(source + at, count, peer, communicator, stream)
                    self._nccl.receive(result + at, count, peer, communicator, stream)
            case _:
                raise ValueError(f"'{cell.operation}' is not a collective that is run here")
