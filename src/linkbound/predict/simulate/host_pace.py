"""How fast a host launches steps, as a share of what the constants say, and its fit (E3).

Hosts of one kind went at two paces, a factor of two apart, for seconds or for hours
(docs/simulation.md). A load that was measured on a host says which one it has.
"""

from collections.abc import Callable

import msgspec

from linkbound.predict.calibration import Calibration, Constant
from linkbound.predict.simulate.play import Tables, likely, play
from linkbound.predict.simulate.summary import figures_of, summarise
from linkbound.predict.simulate.types import Scenario
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate

FIGURE = "tpot_p50_s"
"""What is fitted: half of all requests, however long the queue's tail is."""
LEAST, MOST = 0.25, 2.0
"""Shares that are tried: half of the quickest pace and twice the slowest that were assumed."""
FLOOR = 1.01
"""Times the figure at `LEAST`: what is no longer than this waits for no host."""
LEAST_EFFECT = 1.1
"""By how much the figure must grow between `LEAST` and 1 to say anything of the host."""
_HALVINGS = 10

_LAUNCHES = ("host_step_s", "host_layer_s", "host_layer_split_s", "host_mixture_s")


def launching(engine: Engine, share: float) -> Engine:
    """The same engine on a host that launches in `share` of the time."""
    if share == 1:
        return engine
    return Engine(
        engine.shape,
        engine.book,
        engine.rules,
        _scaled(engine.calibration, share),
        work=engine.work,
        others={model: _scaled(one, share) for model, one in engine.paces.others.items()},
    )


def _scaled(constants: Calibration, share: float) -> Calibration:
    scaled = {name: _times(getattr(constants, name), share) for name in _LAUNCHES}
    return msgspec.structs.replace(constants, **scaled)


def _times(constant: Constant, share: float) -> Constant:
    found = constant.estimate
    return msgspec.structs.replace(
        constant,
        estimate=Estimate(
            value=found.value * share, low=found.low * share, high=found.high * share
        ),
    )


def fit_share(engine: Engine, scenario: Scenario, measured_s: float) -> float | str:
    """The share at which this load's median time a token is `measured_s`, or why none is found.

    Of a load that waits for no host it is the slowest pace of which that is true. Raises NoForecast
    and UsageError.
    """

    def simulated_s(share: float) -> float | None:
        tables = Tables(launching(engine, share), scenario, likely)
        fleet, requests = play(tables, scenario.cell.seed)
        return figures_of(summarise(fleet, requests, None)).get(FIGURE)

    quickest_s, calibrated_s, slowest_s = map(simulated_s, (LEAST, 1.0, MOST))
    if quickest_s is None or calibrated_s is None or slowest_s is None:
        return "too few of its requests have a time a token."
    if calibrated_s < LEAST_EFFECT * quickest_s:
        return "its steps hardly wait for the host."
    if measured_s >= slowest_s:
        return f"a host {MOST:g} times as slow as calibrated does not explain it."
    return _where(simulated_s, max(measured_s, FLOOR * quickest_s), LEAST, MOST)


def _where(found: Callable[[float], float | None], wanted: float, low: float, high: float) -> float:
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        figure = found(middle)
        if figure is not None and figure < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2
