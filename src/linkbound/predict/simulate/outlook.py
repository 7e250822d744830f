"""A load played with likely, fastest and slowest steps and in several draws: figures (E3)."""

import math
from collections.abc import Iterable

import msgspec

from linkbound.predict.simulate.host_pace import launching
from linkbound.predict.simulate.play import (
    Pick,
    Tables,
    curve_ids,
    fastest,
    likely,
    off_by,
    play,
    slowest,
)
from linkbound.predict.simulate.summary import (
    figures_of,
    order_interval,
    samples_of,
    summarise,
)
from linkbound.predict.simulate.types import (
    CALIBRATED,
    HostPace,
    Outcome,
    Outlook,
    Scenario,
    Simulation,
)
from linkbound.predict.stated import StatedBook
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate
from linkbound.serve.load_types import Arrival

# Requests of one load depend on each other through the queue, so that the order statistics of one
# draw are too sure of themselves: others are drawn beside it.
DRAWS = 5
# A full plan is watched for this many times the requests that it holds; of many replicas only for
# so many, and twice what they hold.
FULL_ROUNDS = 4
FULL_LEAST = 200
FULL_MOST = 4000


def simulate(calibrated: Engine, scenario: Scenario, host: HostPace = CALIBRATED) -> Simulation:
    """The figures of a plan under a load. Raises NoForecast and UsageError.

    `calibrated` launches as its constants say; `host` is how this host does.
    """
    engine = launching(calibrated, host.value)
    tables, seed = Tables(engine, scenario, likely), scenario.cell.seed
    outcome = _outcome(tables, seed)
    draws = [outcome, *(_outcome(tables, seed + number) for number in range(1, DRAWS))]

    def ends(picks: tuple[Pick, ...]) -> list[dict[str, float]]:
        return [figures_of(_outcome(Tables(engine, scenario, pick), seed)) for pick in picks]

    error = _gain_error(engine, scenario)
    by_steps, apart = ends((fastest, slowest)), ends((off_by(1 - error), off_by(1 + error)))
    paces = [
        figures_of(_outcome(Tables(launching(calibrated, share), scenario, likely), seed))
        for share in dict.fromkeys((host.low, host.high))
        if share != host.value
    ]
    by_steps, apart = [*by_steps, *paces], [*apart, *paces]
    drawn = [figures_of(one) for one in draws]
    figures = {}
    for name, value in drawn[0].items():
        values = tuple(one[name] for one in drawn if name in one)
        figures[name] = Outlook(
            steps=_hull(value, (one[name] for one in by_steps if name in one)),
            apart=_hull(value, (one[name] for one in apart if name in one)),
            draws=_hull(value, (*values, *(order_interval(outcome, name) or ()))),
            drawn=values,
            n=samples_of(outcome, name),
            most=1.0 if name == "goodput" else None,
        )
    return Simulation(
        scenario=scenario,
        outcome=outcome,
        figures=figures,
        uncrossed=_uncrossed(engine, scenario) if crosses(scenario) else None,
        capacity_per_s=_capacity(engine, scenario),
        record_ids=(*engine.calibration.record_ids, *host.record_ids),
        curve_ids=curve_ids(engine, scenario),
    )


def crosses(scenario: Scenario) -> bool:
    """Whether anything crosses between GPUs under this plan."""
    split = scenario.plan.split
    return split.tp * split.pp * split.ep > 1 or scenario.prefill is not None


def _uncrossed(engine: Engine, scenario: Scenario) -> dict[str, float]:
    """The figures of the same draw if all that crosses took no time; ranks wait as before."""
    free = StatedBook(engine.book, latency_s=0.0, bytes_per_s=math.inf)
    tables = Tables(engine.with_book(free), scenario, likely)
    return figures_of(_outcome(tables, scenario.cell.seed))


def _gain_error(engine: Engine, scenario: Scenario) -> float:
    """What a ratio of this plan's times to another plan's may miss."""
    return math.hypot(engine.calibration.gain_error, engine.unseen_gain_error(scenario.plan.split))


def _outcome(tables: Tables, seed: int) -> Outcome:
    fleet, requests = play(tables, seed)
    return summarise(fleet, requests, tables.scenario.slo)


def _hull(value: float, others: Iterable[float]) -> Estimate:
    known = (value, *others)
    return Estimate(value=value, low=min(known), high=max(known))


def _capacity(engine: Engine, scenario: Scenario) -> Estimate | None:
    """Requests a second where every place is always taken; None for a closed loop."""
    if scenario.cell.arrival is Arrival.CLOSED:
        return None
    rates = [_full_rate(engine, scenario, pick) for pick in (likely, fastest, slowest)]
    return _hull(rates[0], rates[1:])


def _full_rate(engine: Engine, scenario: Scenario, pick: Pick) -> float:
    cell = scenario.cell
    places = scenario.rules.max_sequences * scenario.plan.split.replicas
    requests = max(min(FULL_ROUNDS * places, FULL_MOST), 2 * places, FULL_LEAST)
    # A trace comes again and again, all of it at once.
    entries = tuple(msgspec.structs.replace(entry, at_s=0.0) for entry in cell.entries)
    full = msgspec.structs.replace(
        cell,
        arrival=Arrival.TRACE if entries else Arrival.CLOSED,
        rate_per_s=None,
        concurrency=None if entries else places,
        requests=requests,
        entries=(entries * (requests // len(entries) + 1))[:requests] if entries else (),
    )
    _, played = play(Tables(engine, msgspec.structs.replace(scenario, cell=full), pick), cell.seed)
    # The start, where all prompts come at once, and the end, where places stay empty, are left out.
    ends = sorted(one.end_s or 0.0 for one in played)
    first, last = len(ends) // 4, len(ends) * 3 // 4
    return (last - first) / (ends[last] - ends[first])
