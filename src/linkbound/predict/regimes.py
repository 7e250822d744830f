"""The map of batch and length: what takes the largest share of a step, and where links do (S4)."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from linkbound.model.types import Load
from linkbound.predict.forecast import curve_ids, steps_cost
from linkbound.predict.schedule import Step, schedule
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan, Regime, RegimeCell, TermKind
from linkbound.serve.types import SchedulerRules
from linkbound.splits.engine import VLLM
from linkbound.splits.ranks import rank_of
from linkbound.splits.types import Fit, Phase

BATCHES = (1, 4, 16, 64, 256)
LENGTHS = (128, 512, 2048, 8192, 32768)

_REGIME = {
    TermKind.WEIGHTS: Regime.MEMORY,
    TermKind.IMBALANCE: Regime.MEMORY,
    TermKind.MATRIX: Regime.COMPUTE,
    TermKind.ATTENTION: Regime.MEMORY,
    TermKind.LAUNCH: Regime.LATENCY,
    TermKind.ROUTING: Regime.LATENCY,
    TermKind.HOST: Regime.LATENCY,
    TermKind.OVERHEAD: Regime.LATENCY,
    TermKind.CROSSINGS: Regime.LINK,
    TermKind.WAITING: Regime.LINK,
}
_COMPUTING = frozenset({TermKind.ATTENTION, TermKind.IMBALANCE})


def regime_map(
    engine: Engine,
    plan: Plan,
    one_gpu: Plan | None,
    batches: tuple[int, ...] = BATCHES,
    lengths: tuple[int, ...] = LENGTHS,
    *,
    fit: Fit | None = None,
    one_fit: Fit | None = None,
) -> tuple[RegimeCell, ...]:
    """A cell for each phase, batch and length; `one_gpu` is None where one GPU cannot hold it.

    `fit` and `one_fit` say how many tokens the GPUs hold; without them nothing bounds the caches.
    Raises NoForecast where the plan has no curve.
    """
    cells = []
    for batch in batches:
        for length in lengths:
            fits = _holds(engine, plan, fit, batch, length)
            other = one_gpu
            if one_gpu is None or not fits or not _holds(engine, one_gpu, one_fit, batch, length):
                other = None
            for phase in Phase:
                cell = _cell(engine, plan, other, phase, batch, length)
                cells.append(msgspec.structs.replace(cell, fits=fits))
    order = tuple(Phase)
    return tuple(sorted(cells, key=lambda cell: order.index(cell.phase)))


def map_curve_ids(
    engine: Engine,
    plan: Plan,
    batches: tuple[int, ...] = BATCHES,
    lengths: tuple[int, ...] = LENGTHS,
) -> tuple[str, ...]:
    """Records of every curve that prices a cell of the plan's map."""
    found: dict[str, None] = {}
    for phase in Phase:
        for batch in batches:
            for length in lengths:
                steps = steps_of(phase, batch, length, engine.rules)
                found |= dict.fromkeys(curve_ids(engine, plan, steps))
    return tuple(found)


def _holds(engine: Engine, plan: Plan, fit: Fit | None, batch: int, length: int) -> bool:
    """Whether the caches of the batch fit on every GPU, windows and states as they are kept."""
    if fit is None:
        return True
    stages = engine.work.ranks(plan.split)
    for memory in fit.ranks:
        cache = stages[rank_of(plan.split, memory.rank).stage].cache
        if memory.kv_tokens is not None:
            needed = batch * cache.sequence_bytes(length, VLLM.block_tokens)
            if needed > memory.kv_tokens * cache.bytes_per_token:
                return False
    return True


def _cell(
    engine: Engine, plan: Plan, one_gpu: Plan | None, phase: Phase, batch: int, length: int
) -> RegimeCell:
    steps = steps_of(phase, batch, length, engine.rules)
    found = steps_cost(engine, plan, steps)
    shares = regime_shares({kind: value for kind, (value, _, _) in found.parts.items()}, phase)
    faster = None
    if one_gpu is not None:
        faster = found.seconds < steps_cost(engine, one_gpu, steps).seconds
    return RegimeCell(
        phase=phase,
        batch=batch,
        length=length,
        step_s=found.seconds,
        link_share=shares[Regime.LINK],
        regime=max(shares, key=shares.__getitem__),
        faster_than_one=faster,
    )


def steps_of(phase: Phase, batch: int, length: int, rules: SchedulerRules) -> tuple[Step, ...]:
    """One decode step of `batch` sequences at `length`, or the prefill of `batch` such prompts.

    A prefill is the steps in which the engine takes the prompts: what its token budget does not
    hold follows in further ones. Steps that come again are one with a count.
    """
    if phase is Phase.DECODE:
        step = Step(chunks=(), decodes=batch, context_tokens=batch * length, sampled=batch)
        return (step,)
    counts: Counter[Step] = Counter()
    for step in schedule(Load(prompt_tokens=length, output_tokens=1, concurrency=batch), rules):
        counts[msgspec.structs.replace(step, count=1)] += step.count
    return tuple(msgspec.structs.replace(step, count=count) for step, count in counts.items())


def regime_shares(seconds: Mapping[TermKind, float], phase: Phase) -> dict[Regime, float]:
    """Share of the time in each regime; what reads in decode may compute in prefill."""
    shares = dict.fromkeys(Regime, 0.0)
    total = sum(seconds.values())
    for kind, value in seconds.items():
        regime = _REGIME[kind]
        if kind in _COMPUTING and phase is Phase.PREFILL:
            regime = Regime.COMPUTE
        shares[regime] += value / total
    return shares
