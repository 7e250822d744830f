"""Engines behind a balancer, with the load that comes to them: one clock for all (P2).

What happens first is done first. An engine may go ahead of the others only up to when another
could send it something.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from heapq import heappop, heappush

from linkbound.predict.simulate.engine import Engine
from linkbound.predict.simulate.pipeline import Pipeline
from linkbound.predict.simulate.sequence import Sequence as Request
from linkbound.serve.arrivals import due_times_s, lengths_of
from linkbound.serve.load_types import Arrival, Cell

AnyEngine = Engine | Pipeline
Handover = Callable[[int, int, int], float]
"""Seconds to send a prompt's cache: (prefill engine, decode engine, prompt tokens)."""


class Balance(StrEnum):
    """Which engine gets the next request."""

    LEAST = "least"
    """The one with the fewest requests under way: what `linkbound serve` does."""
    ROUND_ROBIN = "round-robin"


class Pool:
    """Engines that do the same, and who of them is next."""

    def __init__(self, engines: Sequence[AnyEngine], balance: Balance) -> None:
        self.engines = list(engines)
        self.balance = balance
        self._turn = 0
        self._under_way = [0] * len(self.engines)
        self._ends: list[deque[float]] = [deque() for _ in self.engines]

    def choose(self, now_s: float) -> int:
        """The engine for a request that comes now; calls must not go back in time."""
        if self.balance is Balance.ROUND_ROBIN or len(self.engines) == 1:
            chosen = self._turn
            self._turn = (self._turn + 1) % len(self.engines)
            return chosen
        for at, ends in enumerate(self._ends):
            while ends and ends[0] <= now_s:
                ends.popleft()
                self._under_way[at] -= 1
        chosen = self._under_way.index(min(self._under_way))
        self._under_way[chosen] += 1
        return chosen

    def note_end(self, at: int, end_s: float) -> None:
        """A request of engine `at` ended."""
        self._ends[at].append(end_s)


class Fleet:
    """All engines under one load. Played once."""

    def __init__(
        self,
        cell: Cell,
        serving: Pool,
        *,
        prefilling: Pool | None = None,
        handover: Handover | None = None,
        front_s: float = 0.0,
        reuse: float = 0.0,
        block_tokens: int,
    ) -> None:
        """`serving` engines do all, or decode what `prefilling` ones hand over.

        `front_s` passes from when a request is due to when an engine has it; `reuse` is the share
        of a prompt that the prefix cache holds, in whole blocks.
        """
        self._cell = cell
        self._serving = serving
        self._prefilling = prefilling
        self._handover = handover
        self._front_s = front_s
        self._reuse = reuse
        self._block_tokens = block_tokens
        self._pools = [pool for pool in (prefilling, serving) if pool is not None]
        self._coming: list[tuple[float, int, Request, int | None]] = []
        self._links_free_s: dict[tuple[int, int], float] = {}
        self._sent = 0
        self._ended: list[Request] = []
        self._tied = self._are_tied()

    @property
    def engines(self) -> list[AnyEngine]:
        """Every engine, those that prefill first."""
        return [engine for pool in self._pools for engine in pool.engines]

    def play(self) -> list[Request]:
        """Every request with its times, in order of number."""
        self._open()
        lanes = [(pool, at, one) for pool in self._pools for at, one in enumerate(pool.engines)]
        while True:
            pool, at, engine = min(lanes, key=lambda lane: lane[2].next_s)
            next_s = engine.next_s
            coming_s = self._coming[0][0] if self._coming else math.inf
            if coming_s <= next_s:
                if coming_s == math.inf:
                    break
                self._dispatch(*heappop(self._coming))
                continue
            until_s = coming_s
            if self._tied and len(lanes) > 1:
                others = min(lane[2].next_s for lane in lanes if lane[2] is not engine)
                until_s = min(until_s, max(others, math.nextafter(next_s, math.inf)))
            for one in engine.advance(until_s):
                self._note_end(pool, at, one)
        return sorted(self._ended, key=lambda one: one.index)

    def _are_tied(self) -> bool:
        """Whether the end of a request at one engine may send another engine something.

        In a closed loop the engine at which a request ended has the fewest under way: where all
        have as many, the next one comes back to it.
        """
        if self._prefilling is not None:
            return True
        even = (self._cell.concurrency or 0) % len(self._serving.engines) == 0
        alone = even and self._serving.balance is Balance.LEAST
        return self._cell.arrival is Arrival.CLOSED and not alone

    def _open(self) -> None:
        """The arrivals that do not wait for an end."""
        cell = self._cell
        if cell.arrival is Arrival.CLOSED:
            assert cell.concurrency is not None
            for _ in range(min(cell.concurrency, cell.requests)):
                self._send(0.0)
            return
        for due_s in due_times_s(cell):
            self._send(due_s)

    def _send(self, due_s: float) -> None:
        index, self._sent = self._sent, self._sent + 1
        prompt, output = lengths_of(self._cell, index)
        # The last token of a prompt is always computed: it gives the first of the answer.
        cached = int(min(self._reuse * prompt, prompt - 1)) // self._block_tokens
        one = Request(index, due_s, prompt, output, cached=cached * self._block_tokens)
        heappush(self._coming, (due_s + self._front_s, index, one, None))

    def _dispatch(self, now_s: float, _: int, one: Request, prefilled_by: int | None) -> None:
        if self._prefilling is None:
            self._put(self._serving, self._serving.choose(now_s), one, now_s)
        elif prefilled_by is None:
            alone = Request(one.index, one.due_s, one.prompt, 1, cached=one.cached)
            self._put(self._prefilling, self._prefilling.choose(now_s), alone, now_s)
        else:
            self._hand_over(now_s, one, prefilled_by)

    def _put(self, pool: Pool, at: int, one: Request, now_s: float) -> None:
        one.arrived_s = now_s
        pool.engines[at].coming.append(one)

    def _hand_over(self, now_s: float, one: Request, src: int) -> None:
        """The cache of a prompt goes to a decode engine, after what the two sent before."""
        assert self._handover is not None
        dst = self._serving.choose(now_s)
        start_s = max(now_s, self._links_free_s.get((src, dst), 0.0))
        there_s = start_s + self._handover(src, dst, one.prompt)
        self._links_free_s[src, dst] = there_s
        one.todo = 0
        one.arrived_s = there_s
        engine = self._serving.engines[dst]
        engine.coming.append(one)
        if len(engine.coming) > 1 and engine.coming[-2].arrived_s > there_s:
            # Over another link it was there sooner than one that left before.
            engine.coming = deque(sorted(engine.coming, key=lambda other: other.arrived_s))

    def _note_end(self, pool: Pool, at: int, one: Request) -> None:
        assert one.end_s is not None
        pool.note_end(at, one.end_s)
        if pool is self._prefilling:
            output = lengths_of(self._cell, one.index)[1]
            decoding = Request(one.index, one.due_s, one.prompt, output, cached=one.cached)
            heappush(self._coming, (one.end_s, one.index, decoding, at))
            return
        self._ended.append(one)
        if self._cell.arrival is Arrival.CLOSED and self._sent < self._cell.requests:
            self._send(one.end_s)
