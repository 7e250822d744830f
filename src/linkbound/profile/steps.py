"""One step of one rank as it is timed: its stages from CUDA graphs, else call by call (P1).

Boundaries between pipeline stages stay outside of the graphs, as engines have it; nothing in a
step waits for the host but an all-to-all of tokens, whose sizes the host must know.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from linkbound.links.types import Arm, Launch
from linkbound.profile.build import prompts
from linkbound.profile.network import Network, Part, States
from linkbound.profile.types import Call, Device, Job, Point
from linkbound.splits.types import Dispatch, Phase

DECODE_WARM_UPS = 3
"""Steps before anything is timed or captured: compiles kernels, opens NCCL's channels."""
ASKS_HOST = "the host must read how many tokens an all-to-all sends"
THROUGH_HOST = "a rank died of a double free after such a capture (NCCL 2.28.9 through the host)"


class Captured(NamedTuple):
    """A stage of one part, to be launched again, and what it leaves for the next stage."""

    replay: Callable[[], None]
    out: States | None


class Step:
    """A point of a job, ready to run again and again from the same state."""

    def __init__(self, network: Network, job: Job, point: Point, extra: int) -> None:
        """Make room for `extra` decode steps after the point's context, and warm up."""
        self._network, self._job, self.point = network, job, point
        prefill = point.phase is Phase.PREFILL
        room = point.tokens if prefill else extra + DECODE_WARM_UPS + 2
        network.allocate(point.batch, point.context + room)
        self._tokens = prompts(job, point, network.device)
        self._parts = (
            network.prefill_parts(self._tokens, point.context, job.chunk_tokens, job.micro_batches)
            if prefill
            else network.decode_parts(job.micro_batches)
        )
        self._stages: list[Captured] = []
        self.eager_because: str | None = None
        self.calls = self._warm_up(1 if prefill else DECODE_WARM_UPS)

    @property
    def launch(self) -> Launch:
        """How the host launches the step."""
        return Launch.GRAPH if self._stages else Launch.EAGER

    def reset(self) -> None:
        """Back to the point's context."""
        self._network.starts.fill_(self.point.context)
        self._network.tokens.copy_(self._tokens[:, :1])

    def run(self) -> None:
        """Once: decode steps go on from each other, a prefill begins anew."""
        network = self._network
        if self.point.phase is Phase.PREFILL:
            network.starts.fill_(self.point.context)
        if self._stages:
            for (piece, _), stage in zip(self._parts, self._stages, strict=True):
                network.receive(piece)
                stage.replay()
                network.send(stage.out)
        else:
            for part in self._parts:
                network.through(*part)
        network.advance(self.point.tokens)

    def capture(self) -> None:
        """Put the stage of every part into a CUDA graph, on all ranks or on none.

        Where that cannot be, `eager_because` says why.
        """
        if self._job.device is not Device.CUDA:
            return
        if self._job.split.ep > 1 and self._job.split.dispatch is Dispatch.ALL_TO_ALL:
            self.eager_because = ASKS_HOST
            return
        if self.point.phase is Phase.PREFILL and goes_through_host(self._job):
            self.eager_because = THROUGH_HOST
            return
        stages, self.eager_because = _captured(self._network, self._parts)
        if not _everywhere(self.eager_because is None):
            stages = []
            self.eager_because = self.eager_because or "another rank could not capture it"
        self._stages = stages

    def _warm_up(self, count: int) -> tuple[Call, ...]:
        ledger = self._network.exchange.ledger
        self.reset()
        with ledger.counting():
            self.run()
        calls = ledger.calls
        for _ in range(count - 1):
            self.run()
        return calls


def goes_through_host(job: Job) -> bool:
    """Whether NCCL's proxy threads move what the ranks send, as they do without peer-to-peer.

    Of such calls only the graph of a decode step is known to work: seen with NCCL 2.28.9.
    """
    return job.arm in (Arm.STAGED, Arm.NET) and job.split.tp * job.split.ep > 1


def _captured(network: Network, parts: Sequence[Part]) -> tuple[list[Captured], str | None]:
    """A graph for each part, or none and the reason: no memory left, a call that cannot be."""
    stream = torch.cuda.current_stream()
    stages: list[Captured] = []
    pool = None
    try:
        for part in parts:
            graph, out = _capture_stage(network, part, pool)
            # They follow one another: what one has freed the next may use.
            pool = graph.pool()
            stages.append(Captured(graph.replay, out))
    except RuntimeError as error:
        # A capture that ends badly leaves its own stream the current one.
        torch.cuda.set_stream(stream)
        return [], f"its capture failed: {_first_words(error)}"
    return stages, None


def _first_words(error: BaseException) -> str:
    """What went wrong first: ending a broken capture raises once more."""
    while error.__context__ is not None:
        error = error.__context__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _capture_stage(
    network: Network, part: Part, pool: tuple[int, int] | None
) -> tuple[torch.cuda.CUDAGraph, States | None]:
    """The stage of one part as a graph, and the states that it leaves."""
    piece, tokens = part
    states = None if network.held.is_first else network.boundary(piece)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Thread-local: NCCL's watchdog thread may ask for events while this thread captures.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        out = network.stage(piece, tokens, states)
    return graph, out


def _everywhere(done: bool) -> bool:
    """Whether it is done on every rank."""
    if not dist.is_initialized():
        return done
    flag = torch.tensor(int(done), device="cuda")
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())
