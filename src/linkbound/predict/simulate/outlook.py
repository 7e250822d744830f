"""A load played with likely, fastest and slowest steps and in several draws: figures (E3)."""

import msgspec

from linkbound.predict.simulate.play import Pick, Tables, fastest, likely, play, slowest
from linkbound.predict.simulate.summary import (
    figures_of,
    order_interval,
    samples_of,
    summarise,
)
from linkbound.predict.simulate.types import Outcome, Outlook, Scenario, Simulation
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate
from linkbound.serve.load_types import Arrival

# Requests of one load depend on each other through the queue, so that the order statistics of one
# draw are too sure of themselves: others are drawn beside it.
DRAWS = 5
# A full engine is watched for this many times the requests that it holds, at least so many.
FULL_ROUNDS = 4
FULL_LEAST = 200
FULL_MOST = 4000


def simulate(engine: Engine, scenario: Scenario) -> Simulation:
    """The figures of a plan under a load. Raises NoForecast and UsageError."""
    tables = Tables(engine, scenario, likely)
    seed = scenario.cell.seed
    outcome = _outcome(tables, seed)
    value = figures_of(outcome)
    ends = [
        figures_of(_outcome(Tables(engine, scenario, pick), seed)) for pick in (fastest, slowest)
    ]
    others = [figures_of(_outcome(tables, seed + number)) for number in range(1, DRAWS)]
    return Simulation(
        scenario=scenario,
        outcome=outcome,
        figures={
            name: Outlook(
                steps=_hull(figure, [end.get(name) for end in ends]),
                draws=_hull(
                    figure,
                    [
                        *(draw.get(name) for draw in others),
                        *(order_interval(outcome, name) or ()),
                    ],
                ),
                n=samples_of(outcome, name),
            )
            for name, figure in value.items()
        },
        capacity_per_s=_capacity(engine, scenario),
        record_ids=engine.calibration.record_ids,
    )


def _outcome(tables: Tables, seed: int) -> Outcome:
    fleet, requests = play(tables, seed)
    return summarise(fleet, requests, tables.scenario.slo)


def _hull(value: float, others: list[float | None]) -> Estimate:
    known = [value, *(other for other in others if other is not None)]
    return Estimate(value=value, low=min(known), high=max(known))


def _capacity(engine: Engine, scenario: Scenario) -> Estimate | None:
    """Requests a second where every place is always taken; None for a closed loop."""
    if scenario.cell.arrival is Arrival.CLOSED:
        return None
    rates = [_full_rate(engine, scenario, pick) for pick in (likely, fastest, slowest)]
    return _hull(rates[0], [*rates[1:]])


def _full_rate(engine: Engine, scenario: Scenario, pick: Pick) -> float:
    cell = scenario.cell
    places = scenario.rules.max_sequences * scenario.plan.split.replicas
    requests = min(max(FULL_ROUNDS * places, FULL_LEAST), FULL_MOST, len(cell.entries) or FULL_MOST)
    full = msgspec.structs.replace(
        cell,
        arrival=Arrival.CLOSED if not cell.entries else Arrival.TRACE,
        rate_per_s=None,
        concurrency=None if cell.entries else places,
        requests=requests,
        entries=tuple(msgspec.structs.replace(entry, at_s=0.0) for entry in cell.entries),
    )
    _, played = play(Tables(engine, msgspec.structs.replace(scenario, cell=full), pick), cell.seed)
    # The start, where all prompts come at once, and the end, where places stay empty, are left out.
    ends = sorted(one.end_s or 0.0 for one in played)
    first, last = len(ends) // 4, len(ends) * 3 // 4
    return (last - first) / (ends[last] - ends[first])
