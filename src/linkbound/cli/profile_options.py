"""Values of the options of `linkbound profile`: counts, the limit, the rank to slow (P1)."""

from collections.abc import Sequence

from linkbound.cli.given import refuse_given
from linkbound.errors import UsageError
from linkbound.profile.plan import sends
from linkbound.profile.types import Delay
from linkbound.splits.types import Split
from linkbound.units import parse_duration_s


def to_counts(option: str, text: str) -> list[int]:
    """Counts above 0, with commas. Raises UsageError."""
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= one <= 1_000_000 for one in found):
        raise UsageError(
            f"{option} '{text}' is not a list of counts.",
            why="Each is a whole number from 1 to 1,000,000.",
            hint="Write 1,8,32.",
        )
    return found


def to_limit_s(text: str) -> float:
    """Seconds above 0. Raises UsageError."""
    try:
        found = parse_duration_s(text)
    except UsageError:
        found = 0.0
    if found <= 0:
        raise UsageError(
            f"--limit '{text}' is not a time above 0.",
            why="Each child is ended after it.",
            hint="Write 90s or 10min.",
        )
    return found


def refuse_ignored(splits: Sequence[Split], shards: str | None) -> None:
    """Raises UsageError for options that none of these splits reads, run or as shards alone."""
    if shards is not None:
        refuse_given(
            ("arms", "micro_batches"),
            "a shard alone sends nothing",
            why="--shards times the work of one rank without its peers.",
            hint="Leave it out, or run the split without --shards.",
        )
    elif not any(sends(split) for split in splits):
        refuse_given(
            ("arms",),
            "no split has two GPUs that talk",
            why="An arm decides how GPUs of one model talk to each other.",
            hint="Add --split tp2 or --split pp2.",
        )
    if all(split.pp == 1 for split in splits):
        refuse_given(
            ("micro_batches",),
            "no split has a pipeline",
            why="They follow each other through its stages.",
            hint="Add --split pp2.",
        )


def to_delay(text: str | None, splits: Sequence[Split], shards: str | None) -> Delay | None:
    """The rank to slow: it must be in every split whose ranks wait for each other.

    Raises UsageError.
    """
    if text is None:
        return None
    rank, colon, duration = text.partition(":")
    if not colon or not rank.isascii() or not rank.isdigit():
        raise UsageError(
            f"--slow '{text}' names no rank and time.",
            why="One rank waits that long before each of its collectives.",
            hint="Write --slow 1:100us.",
        )
    found = Delay(rank=int(rank), seconds=parse_duration_s(duration))
    waiting = [] if shards is not None else [split for split in splits if sends(split)]
    if not waiting or found.seconds == 0:
        raise UsageError(
            f"--slow '{text}' slows nothing.",
            why="A rank waits before its collectives: shards alone and one GPU have none.",
            hint="Write --slow 1:100us with --split tp2, without --shards.",
        )
    few = next((split for split in waiting if split.gpus <= found.rank), None)
    if few is not None:
        raise UsageError(
            f"--slow '{text}' names rank {found.rank}, {few.name} has {few.gpus} ranks.",
            why="They are numbered from 0, and each split is run with the same control.",
            hint=f"Name a rank from 0 to {few.gpus - 1}, or leave {few.name} out.",
        )
    return found
