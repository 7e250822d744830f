"""Whether a split fits on its GPUs, how much context and batch it leaves, and why not (S3)."""

from collections.abc import Collection, Sequence

from linkbound.errors import InputError
from linkbound.model.types import Load, ModelShape
from linkbound.splits.engine import VLLM, EngineAssumptions
from linkbound.splits.memory import CACHE, WEIGHTS, Room, hold
from linkbound.splits.place import place
from linkbound.splits.possible import impossible
from linkbound.splits.types import Fit, Placement, RankMemory, Split
from linkbound.topology.types import Gpu, Machine
from linkbound.units import GIB

Held = tuple[RankMemory, Room]


def fit_machine(
    shape: ModelShape,
    split: Split,
    machine: Machine,
    load: Load,
    *,
    engine: EngineAssumptions = VLLM,
    excluded: Collection[str] = (),
) -> Fit:
    """`fit` on the GPUs that `place` chooses; a split that cannot be placed says why."""
    free = [gpu for gpu in machine.gpus if not {gpu.key, gpu.label} & set(excluded)]
    if split.gpus > len(free):
        return _no_fit(split, f"{split.name} needs {split.gpus} GPUs, here are {len(free)}.")
    return fit(shape, split, place(split, machine, excluded), machine, load, engine=engine)


def fit(
    shape: ModelShape,
    split: Split,
    placement: Placement,
    machine: Machine,
    load: Load,
    *,
    engine: EngineAssumptions = VLLM,
) -> Fit:
    """What each GPU of `placement` holds, and whether one sequence of `load` fits beside it.

    Raises InputError where the machine does not say how much memory a GPU has.
    """
    problem = impossible(shape, split)
    if problem is not None:
        return _no_fit(split, problem.text)
    length = load.prompt_tokens + load.output_tokens
    if shape.max_context is not None and length > shape.max_context:
        return _no_fit(
            split,
            f"{length:,} tokens a sequence are asked for, the model takes {shape.max_context:,}.",
        )
    gpus = [machine.gpu(key) for key in placement.gpus]
    sizes = tuple(_capacity_bytes(gpu, machine) for gpu in gpus)
    held = [
        (one.on(gpu.label, number), one.room)
        for number, (gpu, one) in enumerate(
            zip(gpus, hold(shape, split, sizes, engine), strict=True)
        )
    ]
    reason = _too_small(held, length, split, machine, engine)
    tokens = [memory.kv_tokens for memory, _ in held if memory.kv_tokens is not None]
    contexts = [room.longest(shape.max_context, engine) for _, room in held]
    bounded = [context for context in contexts if context is not None]
    batch = _largest_batch(held, length, split, engine)
    return Fit(
        split=split,
        fits=reason is None,
        reason=reason or _reason(held, length, batch, load, engine),
        ranks=tuple(memory for memory, _ in held),
        kv_tokens=min(tokens, default=None),
        longest_context=min(bounded, default=None) if reason is None else None,
        largest_batch=batch if reason is None else None,
    )


def _no_fit(split: Split, reason: str) -> Fit:
    return Fit(
        split=split,
        fits=False,
        reason=reason,
        ranks=(),
        kv_tokens=None,
        longest_context=None,
        largest_batch=None,
    )


def _capacity_bytes(gpu: Gpu, machine: Machine) -> int:
    if gpu.memory_bytes is None:
        raise InputError(
            f"How much memory {gpu.label} has is said by none of: {', '.join(machine.sources)}.",
            why="What fits depends on it.",
            hint="Put a file that does (nvidia-smi -q) beside it, in one folder. "
            f'Or state it in machine.toml there: [memory], "{gpu.model or "MODEL"}" = "24GiB". '
            "`linkbound fit` also takes it stated: --gpus 2x24GiB.",
        )
    return gpu.memory_bytes


def _largest_batch(
    held: Sequence[Held], length: int, split: Split, engine: EngineAssumptions
) -> int | None:
    """Sequences of `length` tokens at once: the least of a replica's ranks, over all replicas."""
    size = split.tp * split.pp
    total = 0
    for first in range(0, len(held), size):
        counts = [room.sequences(length, engine) for _, room in held[first : first + size]]
        bounded = [count for count in counts if count is not None]
        if not bounded:
            return None
        total += min(bounded)
    return total


def _too_small(
    held: Sequence[Held], length: int, split: Split, machine: Machine, engine: EngineAssumptions
) -> str | None:
    """Why the fullest GPU does not hold its part; None where all do."""
    memory, room = min(held, key=lambda one: one[1].pool_bytes)
    if room.pool_bytes < 0:
        return _over(memory, room) + _apart(split, machine)
    for memory, room in held:
        if room.sequences(length, engine) == 0:
            size = room.cache.sequence_bytes(length, engine.block_tokens)
            return (
                f"{memory.gpu} holds its weights, and beside them has {_gib(room.pool_bytes)} for "
                f"the cache; one sequence of {length:,} tokens takes {_gib(size)} there."
                + _apart(split, machine)
            )
    return None


def _over(memory: RankMemory, room: Room) -> str:
    weights = sum(part.size_bytes for part in memory.parts if part.name == WEIGHTS)
    rest = sum(part.size_bytes for part in memory.parts if part.name not in (WEIGHTS, CACHE))
    share = memory.usable_bytes / memory.capacity_bytes
    text = (
        f"needs {_gib(weights + rest)} on {memory.gpu} ({_gib(weights)} weights, {_gib(rest)} "
        f"beside them), has {_gib(memory.usable_bytes)} usable ({share:.2f} of "
        f"{_gib(memory.capacity_bytes)})."
    )
    if room.high_bytes > 0:
        text += " At the low end of the priors the weights would just fit, with little cache."
    return text


def _apart(split: Split, machine: Machine) -> str:
    """The reminder that memories do not pool, where there is another GPU that could mislead."""
    sizes = [gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes is not None]
    if len(sizes) < 2 or split.tp * split.pp > 1:
        return ""
    if len(set(sizes)) == 1:
        return f" {len(sizes)} GPUs of {_gib(sizes[0])} are not one of {_gib(sum(sizes))}."
    return (
        " GPUs of "
        + ", ".join(_gib(size) for size in sizes)
        + f" are not one of {_gib(sum(sizes))}."
    )


def _reason(
    held: Sequence[Held], length: int, batch: int | None, load: Load, engine: EngineAssumptions
) -> str:
    memory, _ = min(held, key=lambda one: _filled(one, length, engine))
    if memory.kv_tokens is None:
        text = "weights fit; no layer keeps tokens."
    else:
        text = f"~{memory.kv_tokens:,} tokens of cache on {memory.gpu}, the fullest GPU"
        text += "." if batch is None else f"; ~{batch:,} sequences of {length:,} tokens at once"
        text += "" if batch is None else _how(held, memory.kv_tokens, batch, length)
    if batch is not None and batch < load.concurrency:
        text += f" Of {load.concurrency} at once, {load.concurrency - batch} wait."
    if any(
        one.low_bytes < one.cache.sequence_bytes(length, engine.block_tokens) for _, one in held
    ):
        text += " At the high end of the priors it does not fit."
    return text


def _how(held: Sequence[Held], tokens: int, batch: int, length: int) -> str:
    """Why the count is not tokens over length, where it is not."""
    if any(room.cache.window_bytes_per_token for _, room in held):
        return ": layers with a window keep less."
    return ", all replicas together." if batch * length > tokens else "."


def _filled(one: Held, length: int, engine: EngineAssumptions) -> float:
    """Room in sequences of `length`, to find the GPU that allows the fewest."""
    size = one[1].cache.sequence_bytes(length, engine.block_tokens)
    return one[1].pool_bytes / size if size else float("inf")


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:,.1f} GiB"
