"""Requests over time on a plan's engines: queue, batch, steps, percentiles (P2, D5, E3)."""

from linkbound.predict.simulate.batching import Cache
from linkbound.predict.simulate.fleet import Balance
from linkbound.predict.simulate.outlook import simulate
from linkbound.predict.simulate.types import (
    CALIBRATED,
    FittedCell,
    HostPace,
    Outcome,
    Outlook,
    Scenario,
    Simulation,
)

__all__ = [
    "CALIBRATED",
    "Balance",
    "Cache",
    "FittedCell",
    "HostPace",
    "Outcome",
    "Outlook",
    "Scenario",
    "Simulation",
    "simulate",
]
