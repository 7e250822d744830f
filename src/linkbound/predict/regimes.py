"""The map of batch and length: what takes the largest share of a step, and where links do (S4)."""

from linkbound.predict.schedule import Chunk, Step
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import Plan, Regime, RegimeCell, StepTime, TermKind
from linkbound.splits.types import Phase

BATCHES = (1, 4, 16, 64, 256)
LENGTHS = (128, 512, 2048, 8192, 32768)

_REGIME = {
    TermKind.WEIGHTS: Regime.MEMORY,
    TermKind.MATRIX: Regime.COMPUTE,
    TermKind.ATTENTION: Regime.MEMORY,
    TermKind.LAUNCH: Regime.LATENCY,
    TermKind.ROUTING: Regime.LATENCY,
    TermKind.HOST: Regime.LATENCY,
    TermKind.OVERHEAD: Regime.LATENCY,
    TermKind.CROSSINGS: Regime.LINK,
    TermKind.WAITING: Regime.LINK,
}


def regime_map(
    engine: Engine,
    plan: Plan,
    one_gpu: Plan | None,
    batches: tuple[int, ...] = BATCHES,
    lengths: tuple[int, ...] = LENGTHS,
) -> tuple[RegimeCell, ...]:
    """A cell for each phase, batch and length; `one_gpu` is None where one GPU cannot hold it.

    Raises NoForecast where the plan has no curve.
    """
    return tuple(
        _cell(engine, plan, one_gpu, phase, batch, length)
        for phase in Phase
        for batch in batches
        for length in lengths
    )


def _cell(
    engine: Engine, plan: Plan, one_gpu: Plan | None, phase: Phase, batch: int, length: int
) -> RegimeCell:
    step = step_of(phase, batch, length)
    found = step_time(engine, plan, step)
    shares = regime_shares(found, phase)
    faster = None
    if one_gpu is not None:
        faster = found.time.value < step_time(engine, one_gpu, step).time.value
    return RegimeCell(
        phase=phase,
        batch=batch,
        length=length,
        step_s=found.time.value,
        link_share=shares[Regime.LINK],
        regime=max(shares, key=shares.__getitem__),
        faster_than_one=faster,
    )


def step_of(phase: Phase, batch: int, length: int) -> Step:
    """One decode step of `batch` sequences at `length`, or one prefill of `batch` such prompts."""
    if phase is Phase.DECODE:
        return Step(chunks=(), decodes=batch, context_tokens=batch * length, sampled=batch)
    chunk = Chunk(tokens=length, cached=0, count=batch)
    return Step(chunks=(chunk,), decodes=0, context_tokens=0, sampled=batch)


def regime_shares(step: StepTime, phase: Phase) -> dict[Regime, float]:
    """Share of the step's time in each regime; in prefill attention computes, it does not read."""
    shares = dict.fromkeys(Regime, 0.0)
    for term in step.terms:
        regime = _REGIME[term.kind]
        if term.kind is TermKind.ATTENTION and phase is Phase.PREFILL:
            regime = Regime.COMPUTE
        shares[regime] += term.time.value / step.time.value
    return shares
