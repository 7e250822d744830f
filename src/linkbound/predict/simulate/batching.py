"""Which sequences a step takes, and who is put back when the cache is full (vLLM's V1 scheduler).

Every decoding sequence gets its token first; what is left of the token budget goes to prompts in
the order they came, in chunks. A waiting sequence starts only where all of its tokens fit into
free blocks (`scheduler_reserve_full_isl`) and no sequence was put back in the same step. A prompt
takes its blocks when it starts.
"""

from collections import deque
from itertools import chain

from linkbound.predict.simulate.group import Group
from linkbound.predict.simulate.sequence import Sequence
from linkbound.predict.simulate.steptable import Chunks
from linkbound.serve.types import SchedulerRules
from linkbound.values import Value


class Cache(Value, frozen=True, kw_only=True):
    """The paged cache of one engine."""

    blocks: int | None
    """None where nothing bounds it."""
    block_tokens: int

    @property
    def tokens(self) -> int | None:
        """How many it holds."""
        return None if self.blocks is None else self.blocks * self.block_tokens


class Batching:
    """Queue, places and blocks of one engine."""

    def __init__(
        self,
        rules: SchedulerRules,
        cache: Cache,
        groups: list[Group],
        longest_tokens: int,
    ) -> None:
        """`longest_tokens` is the length of the longest sequence that will come."""
        self.budget = rules.max_batched_tokens
        self.places = rules.max_sequences
        self.mixes = rules.mixes
        self.cache = cache
        self._blocks = cache.blocks
        if self._blocks is not None and self._blocks >= self._most_needed(longest_tokens):
            # All places can be taken by the longest: nothing is ever short.
            self._blocks = None
        self.groups = groups
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        """Started and not yet decoding, in the order they started."""
        self.preemptions = 0
        self._leaving: deque[tuple[float, int]] = deque()
        # Everything that was started, newest last; what has ended meanwhile is passed over.
        self._started: list[Sequence] = []

    @property
    def running(self) -> int:
        """Sequences that have a place."""
        decoding = sum(group.size for group in self.groups)
        return decoding + len(self.prefilling) + len(self._leaving)

    @property
    def waits_for_place(self) -> bool:
        """Whether somebody waits while a place that is done with is not yet free."""
        return bool(self.waiting and self._leaving)

    @property
    def prefill_tokens(self) -> int:
        """Tokens of the sequences that have a place and do not decode yet."""
        return sum(one.tokens for one in self.prefilling)

    def steps_to_come(self, most: int) -> int:
        """Steps that the prompts fill of which a part is still to be taken; `most` at most."""
        tokens = 0
        for one in chain(self.prefilling, self.waiting):
            tokens += one.todo
            if tokens >= most * self.budget:
                return most
        return -(-tokens // self.budget)

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens could run alone."""
        return self._blocks is None or self._blocks_of(tokens) <= self._blocks

    def has_room(self, steps: int) -> bool:
        """Whether all groups can surely make so many steps."""
        if self._blocks is None:
            return True
        return (
            self._held(None, 0)
            + sum(group.size for group in self.groups) * (steps // self.cache.block_tokens + 1)
            <= self._blocks
        )

    def keep_until(self, one: Sequence, end_s: float) -> None:
        """A sequence that ended keeps place and blocks until its last result is seen."""
        self._leaving.append((end_s, self._blocks_of(one.tokens)))

    def release(self, now_s: float) -> None:
        """Free what was kept until now."""
        while self._leaving and self._leaving[0][0] <= now_s:
            self._leaving.popleft()

    def make_room(self, group: Group) -> bool:
        """Put sequences back until the group's next step has its blocks; whether any was."""
        if self._blocks is None or self._held(group, 1, exact=False) <= self._blocks:
            return False
        any_back = False
        while group.size and self._held(group, 1) > self._blocks:
            victim = self._newest(group)
            if victim is None:
                break
            self._put_back(victim, group)
            any_back = True
        return any_back

    def steps_with_room(self, group: Group, steps: int) -> int:
        """How many of `steps` decode steps of the group have their blocks, at least one."""
        if self._blocks is None or self._held(group, steps, exact=False) <= self._blocks:
            return steps
        low, high = 1, steps
        while low < high:
            middle = (low + high + 1) // 2
            if self._held(group, middle) <= self._blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def take(self, group: Group, *, start: bool = True) -> tuple[Chunks, list[Sequence]]:
        """Chunks of prompts beside the group's decodes, and the sequences whose prompt they end.

        Nobody is started where `start` is false.
        """
        left = self.budget - (group.size if self.mixes else 0)
        chunks: list[tuple[int, int]] = []
        ended: list[Sequence] = []
        for one in self.prefilling:
            if one.todo and left > 0:
                left -= _take_chunk(one, left, chunks, ended)
        if start and self.waiting and left > 0:
            places = self.places - self.running
            while self.waiting and left > 0 and places > 0 and self._has_blocks(self.waiting[0]):
                one = self._start()
                self.prefilling.append(one)
                places -= 1
                left -= _take_chunk(one, left, chunks, ended)
        return tuple(chunks), ended

    def take_cached(self, group: Group) -> list[Sequence]:
        """Start waiting sequences that came with all of their cache: they decode at once."""
        started: list[Sequence] = []
        while (
            self.waiting
            and not self.waiting[0].todo
            and self.running < self.places
            and self._has_blocks(self.waiting[0])
        ):
            started.append(self._start())
            group.join(started[-1])
        return started

    def land(self, ended: list[Sequence]) -> None:
        """Prompts whose last chunk was computed: they decode or are done."""
        if len(ended) == len(self.prefilling):
            self.prefilling.clear()
        else:
            self.prefilling = [one for one in self.prefilling if one not in ended]

    def _start(self) -> Sequence:
        one = self.waiting.popleft()
        if len(self._started) > 4 * self.places:
            self._started = [other for other in self._started if other.end_s is None]
        self._started.append(one)
        return one

    def _has_blocks(self, one: Sequence) -> bool:
        if self._blocks is None:
            return True
        free = self._blocks - self._blocks_of(one.tokens)
        return self._held(None, 0, exact=False) <= free or self._held(None, 0) <= free

    def _held(self, group: Group | None, steps: int, *, exact: bool = True) -> int:
        """Blocks that are taken after `steps` more steps of `group`; at least so, not `exact`."""
        held = sum(blocks for _, blocks in self._leaving)
        held += sum(self._blocks_of(one.tokens) for one in self.prefilling)
        for one in self.groups:
            more = steps if one is group else 0
            held += one.blocks(more) if exact else one.most_blocks(more)
        return held

    def _most_needed(self, tokens: int) -> int:
        """Blocks of every place taken by a sequence of so many tokens."""
        return self.places * self._blocks_of(tokens)

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.cache.block_tokens)

    def _newest(self, group: Group) -> Sequence | None:
        """The sequence that started last, of those that are in no other group's step."""
        for at in range(len(self._started) - 1, -1, -1):
            one = self._started[at]
            if one.group is group or (one.group is None and one.todo):
                return self._started.pop(at)
        return None

    def _put_back(self, one: Sequence, group: Group) -> None:
        if one.group is group:
            group.leave(one)
        else:
            self.prefilling.remove(one)
        one.put_back()
        self.preemptions += 1
        self.waiting.appendleft(one)


def _take_chunk(
    one: Sequence, left: int, chunks: list[tuple[int, int]], ended: list[Sequence]
) -> int:
    """The next tokens of a prompt into a step that has `left` tokens; how many they are."""
    tokens = min(one.todo, left)
    chunks.append((tokens, one.tokens - one.todo))
    one.todo -= tokens
    if not one.todo:
        ended.append(one)
    return tokens
