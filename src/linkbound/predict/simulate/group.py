"""Sequences that decode together: one number of each kind stands for all of them.

From step to step every member gets a token, so that contexts grow by one each: sums say all that
the time and the blocks of a step need, and many steps are one operation.
"""

from heapq import heappop, heappush

from linkbound.predict.simulate.sequence import Sequence


class Group:
    """Members that decode in the same steps."""

    __slots__ = ("_ends", "_phases", "block", "context", "size", "step")

    def __init__(self, block_tokens: int) -> None:
        self.block = block_tokens
        self.size = 0
        self.context = 0
        """Cached tokens that the next step reads, its own tokens included."""
        self.step = 0
        """Number of the next step."""
        self._ends: list[tuple[int, int, Sequence]] = []
        # How many members have so many tokens at step 0, counted modulo a block.
        self._phases = [0] * block_tokens

    def join(self, one: Sequence) -> None:
        """A sequence decodes from the next step on."""
        tokens = one.tokens
        one.group = self
        one.finish_step = self.step + one.output - one.generated - 1
        self.size += 1
        self.context += tokens
        self._phases[(tokens - self.step) % self.block] += 1
        heappush(self._ends, (one.finish_step, one.index, one))

    def leave(self, one: Sequence) -> None:
        """A member stops here."""
        one.generated = one.output - 1 - (one.finish_step - self.step)
        one.group = None
        one.finish_step = -1
        tokens = one.tokens
        self.size -= 1
        self.context -= tokens
        self._phases[(tokens - self.step) % self.block] -= 1

    @property
    def steps_left(self) -> int:
        """Steps until a member has all its tokens; the group must not be empty."""
        ends = self._ends
        while not self._ends_here(*ends[0]):
            heappop(ends)
        return ends[0][0] - self.step + 1

    def _ends_here(self, finish_step: int, _index: int, one: Sequence) -> bool:
        """Whether a place in the heap holds: one that was put back left it, maybe for another group
        in which its last step has the same number."""
        return one.group is self and one.finish_step == finish_step

    def advance(self, steps: int) -> list[Sequence]:
        """Every member got `steps` tokens; those that have all of them, gone from the group."""
        self.step += steps
        self.context += steps * self.size
        ended: list[Sequence] = []
        ends = self._ends
        while ends and ends[0][0] < self.step:
            end = heappop(ends)
            if self._ends_here(*end):
                self.leave(end[2])
                ended.append(end[2])
        return ended

    def blocks(self, steps: int = 0) -> int:
        """Blocks of cache that the members hold once `steps` more steps are made."""
        block, step = self.block, self.step + steps
        # Of n tokens that a member reads in a step, n - 1 are kept before it.
        pad = sum(
            count * ((1 - phase - step) % block)
            for phase, count in enumerate(self._phases)
            if count
        )
        return (self.context + (steps - 1) * self.size + pad) // block

    def most_blocks(self, steps: int = 0) -> int:
        """At least as many as `blocks`, at a glance."""
        return (self.context + steps * self.size) // self.block + self.size


def enter(
    group: Group, prompts: list[Sequence], came: list[Sequence], now_s: float
) -> list[Sequence]:
    """Sequences get their first token: at the end of their `prompts`, or of the first step after
    they `came` with their cache. Prompts join the group; those that wanted one token are done."""
    for one in came:
        one.first_s = now_s
    done = []
    for one in prompts:
        one.generated += 1
        if one.first_s is None:
            one.first_s = now_s
        if one.generated == one.output:
            done.append(one)
        else:
            group.join(one)
    return done
