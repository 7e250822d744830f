"""The steps an engine makes of a batch that is given at once (predicting notes, section 9).

A fixed batch needs no random arrivals: the scheduler's rules give the exact sequence of steps.
Equal steps are kept as one with a count, so that a call of thousands of tokens stays small.
"""

from collections import deque
from functools import lru_cache
from itertools import groupby

import msgspec

from linkbound.model.types import Load
from linkbound.serve.types import SchedulerRules
from linkbound.splits.types import Split
from linkbound.values import Value

# Schedules up to this length are priced step by step; longer ones in this many blocks of mixed
# steps and as many of decode steps.
EXACT_STEPS = 16
BLOCKS = 4


class Chunk(Value, frozen=True, kw_only=True):
    """`tokens` of one prompt, after `cached` of the same prompt; or `count` prompts alike."""

    tokens: int
    cached: int
    count: int = 1


class Step(Value, frozen=True, kw_only=True):
    """One forward pass, or `count` like it."""

    chunks: tuple[Chunk, ...]
    decodes: int
    context_tokens: float
    """Sum of the cached tokens that the decoding sequences read; the mean over `count`."""
    sampled: int
    """Sequences that get a token out of this step."""
    count: int = 1

    @property
    def tokens(self) -> int:
        return self.decodes + sum(chunk.tokens * chunk.count for chunk in self.chunks)

    @property
    def prompts(self) -> int:
        """Sequences with a part of their prompt in this step."""
        return sum(chunk.count for chunk in self.chunks)


class _Sequence:
    __slots__ = ("generated", "prompt_left")

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_left = prompt_tokens
        self.generated = 0


def steps_ahead(split: Split, rules: SchedulerRules) -> int:
    """Steps that form while a call's sequences still come in; 0 where all are there before.

    One GPU is driven by the scheduler's own process: the first sequences wake it, and forming the
    next step waits until that one is launched; by then the rest has come.
    """
    if rules.entered is None:
        return 0
    alone = split.tp * split.pp * split.ep == 1
    return 1 if alone else rules.steps_ahead + split.pp - 1


@lru_cache(maxsize=4096)
def schedule(load: Load, rules: SchedulerRules, ahead: int = 0) -> tuple[Step, ...]:
    """Steps of `load.concurrency` sequences given at once: decodes first, then prompt chunks.

    Follows vLLM's V1 scheduler for running and waiting requests: every running sequence gets its
    decode token, what is left of the token budget goes to prompts in order. The first `ahead`
    steps know only the sequences that have come by then (`steps_ahead`, `rules.entered`).
    """
    coming = [_Sequence(load.prompt_tokens) for _ in range(load.concurrency)]
    coming.reverse()
    waiting: deque[_Sequence] = deque()
    running: list[_Sequence] = []
    steps: list[Step] = []
    formed = 0
    while coming or waiting or running:
        known = _known(load, rules, formed) if formed < ahead else load.concurrency
        while coming and load.concurrency - len(coming) < known:
            waiting.append(coming.pop())
        formed += 1
        if not (coming or waiting) or len(running) >= rules.max_sequences:
            # Nobody can start before somebody ends.
            steps.append(_decode_run(running, load))
            running = [one for one in running if one.generated < load.output_tokens]
            continue
        decodes = len(running)
        context = sum(load.prompt_tokens + one.generated for one in running)
        chunks, started = _take_chunks(waiting, running, load, rules)
        for one in running:
            one.generated += 1
        for one in started:
            one.generated = 1
        _append(
            steps,
            Step(
                chunks=chunks,
                decodes=decodes,
                context_tokens=context,
                sampled=decodes + len(started),
            ),
        )
        running = [one for one in (*running, *started) if one.generated < load.output_tokens]
    return tuple(steps)


def _known(load: Load, rules: SchedulerRules, formed: int) -> int:
    """Sequences that have come when `formed` steps went out before."""
    if rules.entered is None:
        return load.concurrency
    first, more = rules.entered
    return first + formed * more


@lru_cache(maxsize=4096)
def sampled_schedule(load: Load, rules: SchedulerRules, ahead: int = 0) -> tuple[Step, ...]:
    """The schedule, long ones sampled: one step stands for a block of neighbours like it.

    Neighbouring steps of a long call differ by a few decodes, and their time is nearly a straight
    line in those: the mean of a block is priced. Schedules of up to 16 steps stay as they are.
    """
    steps = schedule(load, rules, ahead)
    if len(steps) <= EXACT_STEPS:
        return steps
    found = [steps[0]]
    for _, alike in groupby(steps[1:], key=lambda step: _launched_as(step, rules)):
        block = list(alike)
        size = max(1, -(-len(block) // BLOCKS))
        found += [_mean(block[at : at + size]) for at in range(0, len(block), size)]
    return tuple(found)


def _launched_as(step: Step, rules: SchedulerRules) -> tuple[bool, int]:
    """Steps of one size and kind; a decode step counts as the graph it is padded to."""
    if step.chunks:
        return True, step.tokens
    return False, next((size for size in rules.graph_sizes if size >= step.decodes), step.decodes)


def _mean(block: list[Step]) -> Step:
    """One step for all: the chunks of the middle one, the mean of what is cached and decodes."""
    count = sum(step.count for step in block)
    decodes = sum(step.count * step.decodes for step in block) / count
    middle = block[len(block) // 2]
    return msgspec.structs.replace(
        middle,
        chunks=_with_mean_cached(middle.chunks, block, count),
        decodes=round(decodes),
        context_tokens=sum(step.count * step.context_tokens for step in block) / count,
        sampled=round(sum(step.count * step.sampled for step in block) / count),
        count=count,
    )


def _with_mean_cached(
    chunks: tuple[Chunk, ...], block: list[Step], count: int
) -> tuple[Chunk, ...]:
    """Chunks that see as much cache as those of the block on average: attention grows with both."""
    prompt_tokens = sum(chunk.tokens * chunk.count for chunk in chunks)
    if not prompt_tokens:
        return chunks
    seen = sum(
        step.count * chunk.count * chunk.tokens * chunk.cached
        for step in block
        for chunk in step.chunks
    )
    cached = round(seen / count / prompt_tokens)
    return tuple(msgspec.structs.replace(chunk, cached=cached) for chunk in chunks)


def _append(steps: list[Step], step: Step) -> None:
    """One more step, or one more of the last."""
    if steps and step == msgspec.structs.replace(steps[-1], count=1):
        step = msgspec.structs.replace(step, count=steps.pop().count + 1)
    steps.append(step)


def _take_chunks(
    waiting: deque[_Sequence], running: list[_Sequence], load: Load, rules: SchedulerRules
) -> tuple[tuple[Chunk, ...], list[_Sequence]]:
    budget = rules.max_batched_tokens - len(running)
    room = rules.max_sequences - len(running)
    taken: list[tuple[int, int]] = []
    started: list[_Sequence] = []
    while waiting and budget > 0 and room > 0:
        one = waiting[0]
        tokens = min(one.prompt_left, budget)
        taken.append((tokens, load.prompt_tokens - one.prompt_left))
        one.prompt_left -= tokens
        budget -= tokens
        room -= 1
        if one.prompt_left:
            break
        started.append(waiting.popleft())
    chunks = tuple(
        Chunk(tokens=tokens, cached=cached, count=len(list(alike)))
        for (tokens, cached), alike in groupby(taken)
    )
    return chunks, started


def _decode_run(running: list[_Sequence], load: Load) -> Step:
    """All steps until the next sequence ends; contexts grow by one a step, so the mean is exact."""
    count = min(load.output_tokens - one.generated for one in running)
    first = sum(load.prompt_tokens + one.generated for one in running)
    for one in running:
        one.generated += count
    return Step(
        chunks=(),
        decodes=len(running),
        context_tokens=first + len(running) * (count - 1) / 2,
        sampled=len(running),
        count=count,
    )
