"""The cells of a job as calls of NCCL, for all ranks of this process (L4)."""

from collections.abc import Callable, Sequence

from linkbound.links.live.collective_buffers import RankBuffers, repeatable
from linkbound.links.live.collective_exchange import Exchange
from linkbound.links.live.collective_layout import ROOT, chain_doublings
from linkbound.links.live.collective_types import Cell
from linkbound.links.live.nccl_library import Nccl, group
from linkbound.links.types import Operation

Call = Callable[[], None]
_GROUPED = (Operation.ALL_TO_ALL, Operation.SEND_RECV)


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

    def most_calls(self, most: int) -> int:
        """NCCL's calls may follow each other as often as one likes."""
        return most

    def batch(self, cell: Cell, calls: int) -> Call:
        """`calls` calls of the cell on every rank of this process."""
        each_rank = [
            call
            for on, communicator in zip(self._ranks, self._communicators, strict=True)
            for call in self._of_rank(cell, on, communicator)
        ]
        # Two ranks of one thread would wait for each other outside a group; so do the pieces of
        # an exchange.
        grouped = len(self._ranks) > 1 or cell.operation in _GROUPED

        def issue() -> None:
            for _ in range(calls):
                if grouped:
                    self._nccl.start_group()
                for call in each_rank:
                    call()
                if grouped:
                    self._nccl.end_group()

        return issue

    def outcome(self, on: RankBuffers, cell: Cell, calls: int) -> tuple[int, int] | None:
        """Where the result of so many calls stands, and its doublings; None if it is not exact."""
        _, result = on.addresses(cell)
        if calls == 1 or repeatable(cell):
            return result, 0
        if cell.operation is not Operation.ALL_REDUCE:
            return None
        doublings = chain_doublings(on.ranks, calls)
        return None if doublings is None else (result, doublings)

    def close(self) -> None:
        """Leave the communicator: all ranks do so at the same time."""
        for each in self._ranks:
            each.device.activate()
            each.device.synchronize()
        with group(self._nccl):
            for communicator in self._communicators:
                self._nccl.destroy(communicator)

    def _of_rank(self, cell: Cell, on: RankBuffers, communicator: int) -> list[Call]:
        source, result = on.addresses(cell)
        count = on.layout(cell).count
        to = (communicator, on.device.stream)
        match cell.operation:
            case Operation.ALL_REDUCE:
                return [self._nccl.all_reduce(source, result, count, *to)]
            case Operation.ALL_GATHER:
                return [self._nccl.all_gather(source, result, count, *to)]
            case Operation.REDUCE_SCATTER:
                return [self._nccl.reduce_scatter(source, result, count, *to)]
            case Operation.BROADCAST:
                return [self._nccl.broadcast(source, result, count, ROOT, *to)]
            case Operation.SEND_RECV:
                ring = {(on.rank + 1) % on.ranks: source}, {(on.rank - 1) % on.ranks: result}
                return self._pieces(*ring, count, to)
            case Operation.ALL_TO_ALL:
                share_bytes = count * on.element_bytes
                sent = {peer: source + peer * share_bytes for peer in range(on.ranks)}
                received = {peer: result + peer * share_bytes for peer in range(on.ranks)}
                return self._pieces(sent, received, count, to)
            case _:
                raise ValueError(f"'{cell.operation}' is not a collective that is run here")

    def _pieces(
        self, sent: dict[int, int], received: dict[int, int], count: int, to: tuple[int, int]
    ) -> list[Call]:
        return [
            *(self._nccl.send(address, count, peer, *to) for peer, address in sent.items()),
            *(self._nccl.receive(address, count, peer, *to) for peer, address in received.items()),
        ]
