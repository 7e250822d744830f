"""One step of one rank as it is timed: captured in a CUDA graph where it can be, else eager (P1).

Boundaries between pipeline stages stay outside of the graphs, as engines have it; nothing in a
step waits for the host but an all-to-all of tokens, whose sizes the host must know.
"""

from collections.abc import Callable

import torch

from linkbound.links.types import Launch
from linkbound.profile.attention import Piece
from linkbound.profile.build import prompts
from linkbound.profile.network import Network, States
from linkbound.profile.types import Call, Device, Job, Point, chunks_of
from linkbound.splits.types import Dispatch, Phase

WARM_UPS = 3
"""Steps before anything is timed or captured: compiles kernels, opens NCCL's channels."""


class Step:
    """A point of a job, ready to run again and again from the same state."""

    def __init__(self, network: Network, job: Job, point: Point, extra: int) -> None:
        """Make room for `extra` decode steps after the point's context, and warm up."""
        self._network, self._job, self._point = network, job, point
        room = point.tokens if point.phase is Phase.PREFILL else extra + WARM_UPS + 2
        network.allocate(point.batch, point.context + room)
        self._tokens = prompts(job, point, network.device)
        self.launch = Launch.EAGER
        self.run: Callable[[], None] = self._eager
        self.calls = self._warm_up()
        captured = point.phase is Phase.DECODE and job.device is Device.CUDA
        if captured and not self._asks_host():
            self.run = _captured(network, job)
            self.launch = Launch.GRAPH

    def reset(self) -> None:
        """Back to the point's context."""
        self._network.starts.fill_(self._point.context)
        self._network.tokens.copy_(self._tokens[:, :1])

    def _eager(self) -> None:
        if self._point.phase is Phase.DECODE:
            self._network.decode(self._job.micro_batches)
        else:
            self._network.starts.fill_(self._point.context)
            self._network.prefill(
                self._tokens, self._point.context, self._job.chunk_tokens, self._job.micro_batches
            )

    def _warm_up(self) -> tuple[Call, ...]:
        ledger = self._network.exchange.ledger
        self.reset()
        with ledger.counting():
            self._eager()
        calls = ledger.calls
        for _ in range(self._more_warm_ups()):
            self._eager()
        return calls

    def _more_warm_ups(self) -> int:
        if self._point.phase is Phase.DECODE:
            return WARM_UPS - 1
        # Of several chunks the first has warmed the kernels up for the others.
        return 1 if chunks_of(self._point, self._job.chunk_tokens) == 1 else 0

    def _asks_host(self) -> bool:
        return self._job.split.ep > 1 and self._job.split.dispatch is Dispatch.ALL_TO_ALL


def _captured(network: Network, job: Job) -> Callable[[], None]:
    """A decode step whose stage, piece by piece, is replayed."""
    pieces = network.decode_pieces(job.micro_batches)
    stages = [_capture_stage(network, piece) for piece in pieces]

    def run() -> None:
        for piece, (graph, out) in zip(pieces, stages, strict=True):
            network.receive(piece)
            graph.replay()
            network.send(out)
        network.starts += 1
        network.return_sampled()

    return run


def _capture_stage(network: Network, piece: Piece) -> tuple[torch.cuda.CUDAGraph, States | None]:
    states = None if network.held.is_first else network.boundary(piece)
    tokens = network.tokens[piece.first : piece.last]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Thread-local: NCCL's watchdog thread may ask for events while this thread captures.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = network.stage(piece, tokens, states)
    return graph, out
