"""One engine on several pipeline stages: micro-batches follow one another (vLLM's batch queue).

At most one micro-batch a stage is under way. When the oldest is back, its sequences and what waits
form the next one; a sequence is in one micro-batch at a time, as its next token needs the last one.
A stage takes micro-batches in order, each when the stage before has sent it. Stages rest where few
micro-batches with prompts follow one another, and compute faster then. Where nothing has changed
for two rounds, the rounds until something does are one operation.
"""

import math
from collections import deque

from linkbound.predict.simulate.batching import Batching, Cache
from linkbound.predict.simulate.group import Group, enter
from linkbound.predict.simulate.noise import Noise
from linkbound.predict.simulate.sequence import Sequence
from linkbound.predict.simulate.steptable import Chunks, StepTable
from linkbound.predict.simulate.tally import Tally
from linkbound.predict.stage import rested_in_row
from linkbound.serve.types import SchedulerRules

# Rounds that are worth to be taken as one, and how many are left on either side.
MANY_ROUNDS = 8
MARGIN_ROUNDS = 2
# After so many rounds from rest, groups follow one another as they will for ever.
SETTLING_ROUNDS = 4
# Prompts that wait are counted up to this many steps: of more, stages rest next to nothing.
LONG_ROW = 100


class _Batch:
    """A micro-batch under way."""

    __slots__ = ("came", "end_s", "group", "prompts")

    def __init__(
        self, group: Group, prompts: list[Sequence], came: list[Sequence], end_s: float
    ) -> None:
        self.group = group
        self.prompts = prompts
        self.came = came
        self.end_s = end_s


class Pipeline:
    """Like `Engine`, over several stages."""

    def __init__(
        self,
        rules: SchedulerRules,
        table: StepTable,
        noise: Noise,
        cache: Cache,
        longest_tokens: int,
        *,
        stages: int,
        rested: StepTable | None = None,
    ) -> None:
        """`table` gives a micro-batch's seconds on each stage, sending it on included.

        `rested` gives the same of stages that rest; None where that changes nothing.
        """
        self.coming: deque[Sequence] = deque()
        self.tally = Tally()
        self._table = table
        self._rested = rested
        self._in_row = 0
        """Micro-batches with prompts, one after the other until now."""
        self._noise = noise
        groups = [Group(cache.block_tokens) for _ in range(stages)]
        self.batching = Batching(rules, cache, groups, longest_tokens)
        self._free = deque(groups)
        self._under_way: deque[_Batch] = deque()
        self._stage_free_s = [0.0] * stages
        self._token_s: dict[Group, float] = dict.fromkeys(groups, 0.0)
        """When the last tokens of each group came."""
        self._now_s = 0.0
        # Whether all was formed that can be, until something changes.
        self._settled = True
        self._calm = 0
        """Micro-batches in a row that only decoded, of the groups there were before."""

    @property
    def next_s(self) -> float:
        """When something happens next; infinite where nothing is left to do."""
        if not self._settled:
            return self._now_s
        next_s = self._under_way[0].end_s if self._under_way else math.inf
        if self.coming and self._free:
            next_s = min(next_s, max(self._now_s, self.coming[0].arrived_s))
        return next_s

    def advance(self, until_s: float) -> list[Sequence]:
        """Do all that happens before `until_s`, up to the first result that ends a request."""
        while (next_s := self.next_s) < until_s:
            self._pass_time(next_s)
            if self._settled and self._under_way and self._under_way[0].end_s <= next_s:
                self._settled = False
                done = self._land(self._under_way.popleft())
                if done:
                    return done
            while self.coming and self.coming[0].arrived_s <= next_s:
                self.batching.waiting.append(self.coming.popleft())
            while self._free and self._form():
                pass
            self._settled = True
            if self._calm > MARGIN_ROUNDS * len(self._stage_free_s):
                self._take_rounds(until_s)
        return []

    def _pass_time(self, now_s: float) -> None:
        tally = self.tally
        held = self.batching.prefill_tokens + sum(one.context for one in self.batching.groups)
        tally.token_s += held * (now_s - self._now_s)
        tally.peak_tokens = max(tally.peak_tokens, held)
        self._now_s = now_s

    def _form(self) -> bool:
        """One more micro-batch, of the group that came back or of new prompts; whether one was."""
        group = next((one for one in self._free if one.size), self._free[0])
        batching = self.batching
        put_back = batching.make_room(group)
        came = [] if put_back else batching.take_cached(group)
        chunks, prompts = batching.take(group, start=not put_back)
        if not chunks and not group.size:
            return False
        if chunks or came or put_back:
            self._calm = 0
        factor = self._noise(1)
        at_s = self._now_s
        for stage, seconds in enumerate(self._stages(chunks, group)):
            at_s = max(at_s, self._stage_free_s[stage]) + seconds * factor
            self._stage_free_s[stage] = at_s
            self.tally.busy_s += seconds * factor / len(self._stage_free_s)
        self.tally.steps += 1
        self._free.remove(group)
        self._under_way.append(_Batch(group, prompts, came, at_s))
        return True

    def _stages(self, chunks: Chunks, group: Group) -> list[float]:
        """Seconds of the next micro-batch on every stage."""
        busy = self._table.stages(chunks, group.size, group.context)
        if not chunks or not self._under_way:
            self._in_row = 0
        if not chunks or self._rested is None:
            return busy
        self._in_row += 1
        in_row = self._in_row + self.batching.steps_to_come(LONG_ROW)
        share = rested_in_row(len(busy), in_row)
        rested = self._rested.stages(chunks, group.size, group.context)
        return [one + share * (other - one) for one, other in zip(busy, rested, strict=True)]

    def _land(self, batch: _Batch) -> list[Sequence]:
        """A micro-batch is back: its tokens are there."""
        group, end_s = batch.group, batch.end_s
        if group.size:
            self.tally.gap(end_s - self._token_s[group], group.size)
        self._token_s[group] = end_s
        done = group.advance(1)
        self.batching.land(batch.prompts)
        done += enter(group, batch.prompts, batch.came, end_s)
        for one in done:
            one.end_s = end_s
        self._free.append(group)
        self._calm = 0 if done else self._calm + 1
        return done

    def _take_rounds(self, until_s: float) -> None:
        """As many rounds of all groups as nothing can happen in, at once."""
        groups, batching = [batch.group for batch in self._under_way], self.batching
        # What is under way has its times: the next round reads a token more of each member.
        first = self._round(groups, 1)
        round_s = _period(first)
        if self.coming:
            until_s = min(until_s, self.coming[0].arrived_s)
        rounds = min(group.steps_left for group in groups) - MARGIN_ROUNDS
        if until_s < math.inf:
            rounds = min(rounds, int((until_s - self._now_s) / round_s) - MARGIN_ROUNDS)
        if rounds < MANY_ROUNDS or batching.waiting or not batching.has_room(rounds):
            return
        last = self._round(groups, rounds)
        mean_s = (round_s + _period(last)) / 2 * self._noise(rounds)
        self._calm = 0
        self._shift(rounds * mean_s)
        members = sum(group.size for group in groups)
        self.tally.token_s += rounds * mean_s * members * rounds / 2
        self.tally.steps += rounds * len(groups)
        stages_s = sum(map(sum, first)) + sum(map(sum, last))
        self.tally.busy_s += rounds * stages_s / 2 / len(self._stage_free_s)
        for group in groups:
            self.tally.gap(mean_s, rounds * group.size)
            group.advance(rounds)

    def _round(self, groups: list[Group], rounds: int) -> list[list[float]]:
        """Seconds of every group on every stage, so many rounds from now."""
        return [
            self._table.stages((), group.size, group.context + rounds * group.size)
            for group in groups
        ]

    def _shift(self, seconds: float) -> None:
        """Everything happens so much later."""
        self._pass_time(self._now_s + seconds)
        for batch in self._under_way:
            batch.end_s += seconds
            self._token_s[batch.group] += seconds
        self._stage_free_s = [one + seconds for one in self._stage_free_s]


def _period(groups: list[list[float]]) -> float:
    """Seconds of a round of groups, each of which starts again when it is through all stages."""
    free_s = [0.0] * len(groups[0])
    ends_s = [0.0] * len(groups)
    before_s = 0.0
    for _ in range(SETTLING_ROUNDS):
        before_s = ends_s[-1]
        for at, stages in enumerate(groups):
            at_s = ends_s[at]
            for stage, seconds in enumerate(stages):
                at_s = free_s[stage] = max(at_s, free_s[stage]) + seconds
            ends_s[at] = at_s
    return ends_s[-1] - before_s
