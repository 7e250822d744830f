"""What is compared with what: splits in arms, their turns, and which numbers name a cell (P2)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from linkbound.links.types import Arm
from linkbound.serve.batch_types import Batch
from linkbound.serve.load_types import Cell, Slo
from linkbound.serve.path_types import PathAnswer
from linkbound.splits.types import Split
from linkbound.values import Value


class Contender(Value, frozen=True, kw_only=True):
    """A split in an arm."""

    split: Split
    arm: Arm | None
    """None where nothing is split, and for a server that somebody else started."""
    label: str | None = None
    """What the user calls a server that somebody else started."""
    twin_of: Split | None = None
    """The split whose shard is run alone, on one GPU: what its ranks compute, and nothing else."""

    @property
    def name(self) -> str:
        """`tp2 staged`, `one GPU`, `twin of tp2`, the label of an external server."""
        if self.label is not None:
            return self.label
        if self.twin_of is not None:
            return f"twin of {self.twin_of.name}"
        return self.split.name if self.arm is None else f"{self.split.name} {self.arm}"

    @property
    def model_key(self) -> str:
        """What is alike where ranks hold alike parts: arms of a split; replicas and one GPU."""
        if self.twin_of is not None:
            return self.name
        return msgspec.structs.replace(self.split, replicas=1).name


class ServeRun(Value, frozen=True, kw_only=True):
    """Everything that was asked of one comparison."""

    engine: str
    model: str
    contenders: tuple[Contender, ...]
    cells: tuple[Cell, ...] = ()
    batches: tuple[Batch, ...] = ()
    """Of engines that take whole batches; these have no cells."""
    repeats: int
    devices: tuple[int, ...] = ()
    """Ordinals in rank order; empty: the engine sees what it sees."""
    urls: tuple[str, ...] = ()
    """Of servers that somebody else started."""
    slo: Slo | None = None
    context_tokens: int
    sequences: int
    dummy_weights: bool = False
    program: str | None = None
    extra: tuple[str, ...] = ()
    ready_limit_s: float = 600.0
    batch_limit_s: float = 600.0
    side_by_side: bool = False
    """All engines at once on the same GPUs, one at work while the others wait."""
    cache_bytes: tuple[int, ...] = ()
    """Of each contender's cache on each of its GPUs; empty: engines are told of no bytes."""
    allow_multicast: bool = False
    machine: str | None = None
    """Fingerprint of the host; None where it was not asked."""

    def cache_of(self, contender: Contender) -> int | None:
        """Bytes of cache that this contender is told of; None where it is told none."""
        return self.cache_bytes[self.contenders.index(contender)] if self.cache_bytes else None


def turns(contenders: Sequence[Contender], repeats: int) -> Iterator[tuple[int, Contender]]:
    """(repeat, contender) in the order ABBA: what drifts slowly meets every contender alike."""
    for repeat in range(repeats):
        for contender in in_order(contenders, repeat):
            yield repeat, contender


def in_order(contenders: Sequence[Contender], repeat: int) -> Sequence[Contender]:
    """Contenders in the order of this repeat: every second one the other way round."""
    return contenders if repeat % 2 == 0 else tuple(reversed(contenders))


def cell_subject(run: ServeRun, contender: Contender, cell: Cell, repeat: int) -> Mapping[str, Any]:
    """The dimensions that name a cell among the records of its kind."""
    return {
        "machine": run.machine,
        "engine": run.engine,
        "model": run.model,
        "contender": contender.name,
        "split": contender.split.name,
        "gpus": contender.split.gpus if contender.label is None else None,
        "arm": None if contender.arm is None else contender.arm.value,
        **cell_dimensions(cell),
        # None, not False: cells of older studies do not name it.
        "side_by_side": run.side_by_side or None,
        "repeat": repeat,
    }


CELL_NAMES = (
    *("cell", "arrival", "rate_per_s", "concurrency", "burstiness", "requests"),
    *("prompt_tokens", "output_tokens", "seed"),
)
"""The dimensions of `cell_dimensions`."""


def cell_dimensions(cell: Cell) -> dict[str, Any]:
    """What a cell asks, whoever answers it."""
    return {
        "cell": cell.name,
        "arrival": cell.arrival.value,
        "rate_per_s": cell.rate_per_s,
        "concurrency": cell.concurrency,
        "burstiness": cell.burstiness,
        "requests": cell.requests,
        "prompt_tokens": cell.prompt_tokens,
        "output_tokens": cell.output_tokens,
        "seed": cell.seed,
    }


def cell_key(subject: Mapping[str, Any]) -> str:
    """What tells cells apart in a table: arrivals and lengths."""
    lengths = f"{subject['prompt_tokens']} in, {subject['output_tokens']} out"
    return f"{subject['cell']}, {lengths}"


_SEEDS = 1_000
"""Cells of one seed, each with one of its own."""


def reseeded(cell: Cell, number: int, repeat: int) -> Cell:
    """The cell of this repeat: new prompts for each, arrivals alike, all contenders the same."""
    return msgspec.structs.replace(cell, seed=cell.seed * _SEEDS + number, repeat=repeat)


def asked_seed(cell: Cell) -> int:
    """The seed that was asked for, of a cell that `reseeded` gave."""
    return cell.seed // _SEEDS


def breaks_arm(arm: Arm | None, answer: PathAnswer) -> bool:
    """Whether the proven path is another than the arm is there to take."""
    match arm:
        case None:
            return False
        case Arm.P2P | Arm.NCCL:
            return answer is PathAnswer.STAGED
        case Arm.STAGED | Arm.NET:
            return answer in (PathAnswer.DIRECT, PathAnswer.MIXED)
