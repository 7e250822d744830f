"""Plans under a load of requests over time, simulated and kept (D1, D5, E3)."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from linkbound.errors import UsageError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Outcome, Predicted, Reason, Record, Skipped
from linkbound.links import Arm
from linkbound.model.types import Load
from linkbound.predict.calibrate import OBSERVATION_SPREAD
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.plans import candidate_splits
from linkbound.predict.pricing import NoForecast
from linkbound.predict.simulate import (
    CALIBRATED,
    Balance,
    Cache,
    HostPace,
    Scenario,
    Simulation,
    simulate,
)
from linkbound.predict.simulate.play import longest
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan
from linkbound.report.types import CellShown
from linkbound.serve.contenders import cell_dimensions
from linkbound.serve.load_types import Cell, Slo
from linkbound.serve.types import SchedulerRules
from linkbound.splits.engine import VLLM as MEMORY
from linkbound.splits.fit import fit
from linkbound.splits.place import place
from linkbound.splits.types import Fit, Split
from linkbound.study.predicting import engine_for
from linkbound.study.reading import (
    MachineRead,
    read_access,
    read_machine_record,
    read_shape,
)
from linkbound.values import Value
from linkbound.verdict.compare import MIN_GAIN
from linkbound.verdict.under_load import LoadComparison, judge_under_load

METHOD = "linkbound.predict.simulate"
# Nobody timed single steps of an engine here: whole calls, when repeated, differ by about this.
STEP_SPREAD = OBSERVATION_SPREAD


class Asked(Value, frozen=True, kw_only=True):
    """What is simulated: contenders in cells."""

    engine: str
    """Whose scheduler rules."""
    rules: SchedulerRules
    splits: tuple[Split, ...] = ()
    """None of them: every split of all usable GPUs, one GPU and replicas."""
    arms: tuple[Arm, ...] = (Arm.P2P,)
    """How GPUs of a split, and engines that hand caches over, may talk."""
    cells: tuple[Cell, ...]
    slo: Slo | None = None
    balance: Balance = Balance.LEAST
    reuse: float = 0.0
    step_spread: float = STEP_SPREAD
    prefill: Split | None = None
    """Split of engines of their own that take the prompts."""
    host: HostPace = CALIBRATED
    """How the host that is simulated launches."""
    cache_tokens: int | None = None
    """Of one replica, as an engine's log says; None: as memory is counted."""
    min_gain: float = MIN_GAIN


def scenarios_of(
    study: Study, machine: str, model: str, asked: Asked
) -> tuple[Engine, tuple[Scenario, ...]]:
    """What `simulate_all` would play, and what it would price it with."""
    held = read_machine_record(study, machine)
    engine = engine_for(study, machine, read_shape(study, model)[1])
    excluded = excluded_gpus(held.machine, read_access(study, held.name))
    found = [
        scenario
        for cell in asked.cells
        for scenario, holds in _scenarios(engine, held, excluded, asked, cell)
        if holds.fits
    ]
    return engine, tuple(found)


def simulate_all(study: Study, machine: str, model: str, asked: Asked) -> tuple[CellShown, ...]:
    """Every cell with every contender; a record of each, and of what is compared."""
    held = read_machine_record(study, machine)
    shape_record, shape = read_shape(study, model)
    engine = engine_for(study, machine, shape)
    excluded = excluded_gpus(held.machine, read_access(study, held.name))
    found = []
    for cell in asked.cells:
        kept, skipped = [], []
        for scenario, holds in _scenarios(engine, held, excluded, asked, cell):
            outcome, simulation = _outcome(engine, scenario, holds, asked.host)
            record = Record(
                kind="predict.simulation",
                subject=_subject(held.name, model, asked, scenario),
                outcome=outcome,
                method=METHOD,
                machine=held.fingerprint.id,
                parents=_parents(held, shape_record, engine, simulation, asked.host),
            )
            record_id = study.append(record)
            if simulation is None:
                assert isinstance(outcome, Skipped)
                skipped.append(outcome.reason.text)
            else:
                kept.append((record_id, simulation))
        simulations = tuple(simulation for _, simulation in kept)
        comparisons = judge_under_load(simulations, asked.min_gain)
        ids = tuple(record_id for record_id, _ in kept)
        if comparisons:
            study.append(_verdict_record(held, model, asked, cell, comparisons, ids))
        found.append(
            CellShown(
                cell=cell,
                simulations=simulations,
                record_ids=ids,
                skipped=tuple(skipped),
                comparisons=comparisons,
            )
        )
    return tuple(found)


def _scenarios(
    engine: Engine,
    held: MachineRead,
    excluded: Collection[str],
    asked: Asked,
    cell: Cell,
) -> Iterable[tuple[Scenario, Fit]]:
    """Every contender on this machine, with what it holds."""
    for split, arm in _contenders(engine, held, excluded, asked):
        plan = _place(split, arm, held, excluded)
        load = _load(cell, split)
        holds = fit(engine.shape, split, plan.placement, held.machine, load)
        prefill, prefill_cache = None, None
        if asked.prefill is not None:
            prefill = _place(asked.prefill, arm, held, {*excluded, *plan.placement.gpus})
            other = fit(engine.shape, asked.prefill, prefill.placement, held.machine, load)
            prefill_cache = _cache(other, load, asked)
            holds = holds if other.fits else other
        yield (
            Scenario(
                plan=plan,
                cell=cell,
                rules=asked.rules,
                cache=_cache(holds, load, asked),
                balance=asked.balance,
                reuse=asked.reuse,
                slo=asked.slo,
                step_spread=asked.step_spread,
                prefill=prefill,
                prefill_cache=prefill_cache,
                handover_arm=None if prefill is None else arm,
            ),
            holds,
        )


def _contenders(
    engine: Engine, held: MachineRead, excluded: Collection[str], asked: Asked
) -> Iterable[tuple[Split, Arm]]:
    """Splits and the arms in which their GPUs may talk, once where nothing talks."""
    splits = asked.splits or candidate_splits(held.machine, engine.shape, excluded)
    for split in splits:
        talks = _talks(split) or asked.prefill is not None
        for arm in asked.arms if talks else asked.arms[:1]:
            yield split, arm


def _talks(split: Split) -> bool:
    return split.tp * split.pp * split.ep > 1


def _place(split: Split, arm: Arm, held: MachineRead, excluded: Collection[str]) -> Plan:
    return Plan(
        split=split,
        placement=place(split, held.machine, excluded),
        arm=arm if _talks(split) else None,
    )


def _load(cell: Cell, split: Split) -> Load:
    """The longest request of the cell, as many at once as there are replicas."""
    entries = cell.entries[: cell.requests]
    output = max((one.output_tokens for one in entries), default=cell.output_tokens)
    return Load(
        prompt_tokens=longest(cell) - output,
        output_tokens=output,
        concurrency=split.replicas,
    )


def _cache(holds: Fit, load: Load, asked: Asked) -> Cache:
    """The cache of one replica: tokens of its fullest GPU, windows as they are kept."""
    block = MEMORY.block_tokens
    if asked.cache_tokens is not None:
        return Cache(blocks=asked.cache_tokens // block, block_tokens=block)
    if holds.kv_tokens is None:
        return Cache(blocks=None, block_tokens=block)
    blocks = holds.kv_tokens // block
    if holds.largest_batch is not None:
        length = -(-(load.prompt_tokens + load.output_tokens) // block)
        blocks = max(blocks, holds.largest_batch // holds.split.replicas * length)
    return Cache(blocks=blocks, block_tokens=block)


def _outcome(
    engine: Engine, scenario: Scenario, holds: Fit, host: HostPace
) -> tuple[Outcome, Simulation | None]:
    if not holds.fits:
        text = f"{scenario.name}: {holds.reason}"
        return Skipped(reason=Reason(code="does-not-fit", text=text)), None
    try:
        found = simulate(engine, scenario, host)
    except NoForecast as error:
        return Skipped(reason=Reason(code="no-curve", text=str(error))), None
    except UsageError as error:
        return Skipped(reason=Reason(code="not-simulated", text=str(error))), None
    whole = found.figures["output_tokens_per_s"].whole
    return (
        Predicted(
            value=whole.value,
            low=whole.low,
            high=whole.high,
            basis="output tokens a second, simulated: the engine's scheduler over steps that are "
            "priced term by term",
            values={"simulation": msgspec.to_builtins(found)},
        ),
        found,
    )


def _subject(machine: str, model: str, asked: Asked, scenario: Scenario) -> dict[str, Any]:
    """The dimensions by which a measured cell of a load is named too."""
    plan, prefill = scenario.plan, scenario.prefill
    return {
        "machine": machine,
        "engine": asked.engine,
        "model": model,
        "split": plan.split.name,
        "arm": None if plan.arm is None else plan.arm.value,
        "prefill": None if prefill is None else prefill.split.name,
        "balance": scenario.balance.value,
        "reuse": scenario.reuse,
        **cell_dimensions(scenario.cell),
    }


def _verdict_record(
    held: MachineRead,
    model: str,
    asked: Asked,
    cell: Cell,
    comparisons: Sequence[LoadComparison],
    parents: tuple[str, ...],
) -> Record:
    return Record(
        kind="verdict.rate",
        subject={
            "machine": held.name,
            "model": model,
            "engine": asked.engine,
            **cell_dimensions(cell),
        },
        outcome=Derived(values={"comparisons": msgspec.to_builtins(tuple(comparisons))}),
        method="linkbound.verdict.under_load",
        machine=held.fingerprint.id,
        parents=parents,
    )


def _parents(
    held: MachineRead,
    shape: Record,
    engine: Engine,
    simulation: Simulation | None,
    host: HostPace,
) -> tuple[str, ...]:
    curves = () if simulation is None else simulation.curve_ids
    constants = (*engine.calibration.record_ids, *host.record_ids)
    return tuple(dict.fromkeys((held.record_id, shape.id, *constants, *curves)))
