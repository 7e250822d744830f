"""One engine token by token, as plainly as can be: what the simulation must agree with."""

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec

from linkbound.predict.simulate.batching import Cache
from linkbound.predict.simulate.engine import Engine
from linkbound.predict.simulate.fleet import Balance, Fleet, Pool
from linkbound.predict.simulate.noise import Noise, steady
from linkbound.predict.simulate.pipeline import Pipeline
from linkbound.predict.simulate.sequence import Sequence
from linkbound.predict.simulate.steptable import Chunks, StagePrices, StepTable
from linkbound.serve import VLLM
from linkbound.serve.load_types import Arrival, Cell, TraceEntry
from linkbound.serve.types import SchedulerRules

BLOCK = 4


def rules(
    budget: int = 8192,
    sequences: int = 256,
    *,
    ahead: int = 1,
    blocks: int | None = None,
    mixes: bool = True,
) -> tuple[SchedulerRules, Cache]:
    """Limits of an engine and its cache."""
    limits = msgspec.structs.replace(
        VLLM, max_batched_tokens=budget, max_sequences=sequences, steps_ahead=ahead, mixes=mixes
    )
    return limits, Cache(blocks=blocks, block_tokens=BLOCK)


def linear(chunks: Chunks, decodes: int, context: float) -> tuple[float, ...]:
    """A step of 10 ms, 1 ms a decode, 0.1 ms a prompt token, 0.02 ms a cached token."""
    tokens = sum(one for one, _ in chunks)
    return (0.01 + 1e-3 * decodes + 1e-4 * tokens + 2e-5 * context,)


def launching(chunks: Chunks, _decodes: int, _context: float) -> tuple[float, ...]:
    """Steps with prompts are launched in 2 ms a prompt token, up to 10 ms of it waited for.

    The wait is in the step's own time: `linear` has as much of any step.
    """
    tokens = sum(one for one, _ in chunks)
    return (2e-3 * tokens, min(0.01, 1e-3 * tokens))


def trace(*entries: tuple[float, int, int]) -> Cell:
    """(seconds, prompt, output) of each request, in order of time."""
    return Cell(
        arrival=Arrival.TRACE,
        requests=len(entries),
        prompt_tokens=1,
        output_tokens=1,
        seed=1,
        entries=tuple(
            TraceEntry(at_s=at_s, prompt_tokens=prompt, output_tokens=output)
            for at_s, prompt, output in entries
        ),
    )


def poisson(rate_per_s: float, requests: int, *, prompt: int = 1, output: int = 1) -> Cell:
    return Cell(
        arrival=Arrival.POISSON,
        requests=requests,
        prompt_tokens=prompt,
        output_tokens=output,
        seed=7,
        rate_per_s=rate_per_s,
    )


def closed(concurrency: int, requests: int, *, prompt: int = 8, output: int = 5) -> Cell:
    return Cell(
        arrival=Arrival.CLOSED,
        requests=requests,
        prompt_tokens=prompt,
        output_tokens=output,
        seed=7,
        concurrency=concurrency,
    )


def engine(
    limits: tuple[SchedulerRules, Cache],
    prices: StagePrices = linear,
    *,
    noise: Noise = steady,
    longest: int = 10**6,
    stages: int = 1,
    launches: StagePrices | None = None,
) -> Any:
    """An engine on one stage or several."""
    settings, cache = limits
    if stages > 1:
        return Pipeline(settings, StepTable(prices), noise, cache, longest, stages=stages)
    launched = None if launches is None else StepTable(launches)
    return Engine(settings, StepTable(prices), noise, cache, longest, launched)


def played(cell: Cell, *engines: Any, balance: Balance = Balance.LEAST, **how: Any) -> Fleet:
    """The fleet, its requests in `fleet.done`."""
    fleet = Fleet(cell, Pool(engines, balance), block_tokens=BLOCK, **how)
    fleet.done = fleet.play()  # type: ignore[attr-defined]
    return fleet


@dataclass
class Life:
    index: int
    at_s: float
    prompt: int
    output: int
    todo: int = 0
    made: int = 0
    first_s: float = math.nan
    end_s: float = math.nan
    order: int = 0
    preempted: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.prompt + self.made


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK)


def by_token(
    cell: Cell,
    limits: tuple[SchedulerRules, Cache],
    prices: StagePrices = linear,
    launches: StagePrices | None = None,
) -> list[Life]:
    """All requests of an open load, one step after the other, every sequence by itself."""
    settings, cache = limits
    total = math.inf if cache.blocks is None else cache.blocks
    coming = [
        Life(index, entry.at_s, entry.prompt_tokens, entry.output_tokens, todo=entry.prompt_tokens)
        for index, entry in enumerate(cell.entries)
    ]
    lives = list(coming)
    waiting: list[Life] = []
    running: list[Life] = []
    leaving: list[tuple[float, int]] = []
    clock_s = formed_s = launched_s = 0.0

    def held() -> int:
        kept = sum(
            blocks_of(one.tokens - 1) if not one.todo else blocks_of(one.tokens) for one in running
        )
        return kept + sum(blocks for _, blocks in leaving)

    while coming or waiting or running:
        leaving = [one for one in leaving if one[0] > formed_s]
        while coming and coming[0].at_s <= formed_s:
            waiting.append(coming.pop(0))
        # Blocks for the next token of everybody who decodes, or the newest goes back.
        back = False
        while True:
            decoding = [one for one in running if not one.todo]
            more = sum(blocks_of(one.tokens) - blocks_of(one.tokens - 1) for one in decoding)
            if not decoding or held() + more <= total:
                break
            victim = running.pop()
            victim.todo = victim.tokens
            victim.preempted += 1
            waiting.insert(0, victim)
            back = True
        left = settings.max_batched_tokens - (len(decoding) if settings.mixes else 0)
        chunks: list[tuple[int, int]] = []
        prompts: list[Life] = []
        taken = held()
        for one in (*running, *waiting):
            if left <= 0 or (one in waiting and back):
                break
            if one in waiting:
                # A prompt starts where all of it fits beside what is held before this step.
                places = settings.max_sequences - len(running) - len(leaving)
                taken += blocks_of(one.tokens)
                if places <= 0 or taken > total:
                    break
                waiting.remove(one)
                running.append(one)
            if one.todo:
                tokens = min(one.todo, left)
                chunks.append((tokens, one.tokens - one.todo))
                one.todo -= tokens
                left -= tokens
                if not one.todo:
                    prompts.append(one)
        if chunks and not settings.mixes:
            decoding = []
        if not chunks and not decoding:
            if formed_s < clock_s:
                formed_s = clock_s
            else:
                formed_s = clock_s = coming[0].at_s
            continue
        seconds = prices(tuple(chunks), len(decoding), sum(one.tokens for one in decoding))[0]
        if launches is not None:
            launch_s, waits_s = launches(tuple(chunks), len(decoding), 0.0)
            begun_s = max(formed_s, launched_s)
            seconds -= min(waits_s, max(0.0, clock_s - begun_s))
            launched_s = begun_s + launch_s
        start_s, clock_s = clock_s, clock_s + seconds
        formed_s = start_s if settings.steps_ahead > 1 else clock_s
        for one in (*decoding, *prompts):
            one.made += 1
            one.times.append(clock_s)
            if one.made == 1:
                one.first_s = clock_s
            if one.made == one.output:
                one.end_s = clock_s
                running.remove(one)
                if settings.steps_ahead > 1:
                    leaving.append((clock_s, blocks_of(one.tokens)))
    return lives


def same(found: list[Sequence], expected: list[Life]) -> None:
    """First and last token of every request come at the same time."""
    assert [one.index for one in found] == [one.index for one in expected]
    for mine, other in zip(found, expected, strict=True):
        assert mine.first_s is not None
        assert mine.end_s is not None
        assert math.isclose(mine.first_s, other.first_s, rel_tol=1e-9), (mine.index, other)
        assert math.isclose(mine.end_s, other.end_s, rel_tol=1e-9), (mine.index, other)
