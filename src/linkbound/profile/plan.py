"""Which jobs a profile takes, in which order: arms interleaved, so that drift shows (P1)."""

from collections.abc import Sequence

from linkbound.links.types import Arm
from linkbound.model.types import ModelShape
from linkbound.profile.holding import hold
from linkbound.profile.types import (
    CHUNK_TOKENS,
    TRACED_STEPS,
    Delay,
    Device,
    Job,
    Point,
    chunks_of,
)
from linkbound.splits.types import Phase, Split

MOST_CHUNKS = 4
"""Of a prefill: what follows are the same chunks again, and a pipeline is full by then."""


def points(batches: Sequence[int], prompt: int) -> tuple[Point, ...]:
    """Prefill of `prompt` tokens and a decode step after them, for each batch, small ones first.

    Where memory ends only the large ones are lost. A batch whose prompts are more than
    `MOST_CHUNKS` chunks has no prefill of its own, unless it is the smallest.
    """
    found: list[Point] = []
    for batch in sorted(set(batches)):
        prefill = Point(phase=Phase.PREFILL, batch=batch, tokens=prompt)
        if not found or chunks_of(prefill, CHUNK_TOKENS) <= MOST_CHUNKS:
            found.append(prefill)
        found.append(Point(phase=Phase.DECODE, batch=batch, tokens=1, context=prompt))
    return tuple(found)


def shard_points(
    batches: Sequence[int], chunks: Sequence[int], contexts: Sequence[int]
) -> tuple[Point, ...]:
    """The grid of a shard table: decode over batch x context, one chunk over chunk x context."""
    decode = [
        Point(phase=Phase.DECODE, batch=batch, tokens=1, context=context)
        for context in sorted(set(contexts))
        for batch in sorted(set(batches))
    ]
    prefill = [
        Point(phase=Phase.PREFILL, batch=1, tokens=chunk, context=context)
        for context in sorted({0, *contexts})
        for chunk in sorted(set(chunks))
    ]
    return (*decode, *prefill)


def plan_jobs(
    shape: ModelShape,
    splits: Sequence[Split],
    arms: Sequence[Arm],
    asked: tuple[Point, ...],
    device: Device,
    *,
    steps: int,
    micro_batches: int = 1,
    delay: Delay | None = None,
) -> tuple[Job, ...]:
    """One job for each split and arm; a split that sends nothing has no arm. Raises UsageError."""
    jobs = []
    for split in dict.fromkeys(splits):
        hold(shape, split, 0)
        for arm in arms if sends(split) else (None,):
            jobs.append(
                Job(
                    shape=shape,
                    split=split,
                    arm=arm,
                    device=device,
                    points=asked,
                    steps=steps,
                    micro_batches=micro_batches,
                    delay=delay,
                )
            )
    return tuple(jobs)


def plan_shards(
    shape: ModelShape,
    splits: Sequence[Split],
    asked: tuple[Point, ...],
    device: Device,
    *,
    steps: int,
) -> tuple[Job, ...]:
    """One job for the first tensor rank of every stage of each split: its shard, without peers."""
    return tuple(
        Job(
            shape=shape,
            split=split,
            arm=None,
            device=device,
            points=asked,
            steps=steps,
            # There a trace would show what stands for the missing peers as calls.
            traced_steps=0 if device is Device.CPU else TRACED_STEPS,
            alone=stage * split.tp,
        )
        for split in dict.fromkeys(splits)
        if hold(shape, split, 0)
        for stage in range(split.pp)
    )


def sends(split: Split) -> bool:
    """Whether ranks of the split send each other anything; replicas do not."""
    return split.tp > 1 or split.pp > 1 or split.ep > 1


def interleave(jobs: Sequence[Job], repeats: int) -> tuple[tuple[int, Job], ...]:
    """Every job once, then every job again: (repeat, job) in the order to run."""
    return tuple((repeat, job) for repeat in range(repeats) for job in jobs)
