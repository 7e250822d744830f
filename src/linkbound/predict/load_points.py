"""What is predicted of requests over time on a plan, figure by figure (E3)."""

from collections.abc import Mapping

from linkbound.predict.types import Estimate
from linkbound.serve.load_types import Cell
from linkbound.values import Value


class LoadPrediction(Value, frozen=True, kw_only=True):
    """A contender in a cell, as `serve` names both: what is fixed before it is loaded."""

    engine: str
    model: str
    contender: str
    cell: Cell
    sequences: int
    """At once in an engine."""
    figures: Mapping[str, Estimate]
    """As `serve.compare_runs` names them; goodput is none, as a measured cell has no target."""
    overloaded: bool
    """Whether more comes than the plan can serve: times then grow with the requests asked."""
