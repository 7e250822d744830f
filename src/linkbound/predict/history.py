"""Scores of frozen predictions move the stated errors, by one rule and in the open (E3).

The stated error of a kind of plan counts as that of `PRIOR_STARTS` starts of an engine; each start
that was scored adds one more. What one start shows is 1.645 root mean squares of the logarithms of
measured over predicted of its rows, which err together. Squares are averaged, so that one bad start
widens at once and good ones narrow slowly:

    error^2 = (4 x stated^2 + sum of shown^2) / (4 + starts)

Starts without anything unseen move the model error. Those with one unseen part move that part, by
what they show beyond the model error. Those with several move nothing: whose fault is not known.
Nothing falls below 5 %.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from linkbound.predict.calibrate import LEAST_MODEL_ERROR, NORMAL_90
from linkbound.predict.calibration import Calibration, Learned
from linkbound.predict.score_types import ScoreRow
from linkbound.values import Value

PRIOR_STARTS = 4
MODEL = "model"


class Start(Value, frozen=True, kw_only=True):
    """What one start of an engine showed."""

    unseen: tuple[str, ...]
    rows: int
    shown: float
    """Relative half-width that would have covered 90 % of its rows, were they normal."""


def starts_of(rows: Iterable[ScoreRow]) -> tuple[Start, ...]:
    """The starts among scored rows: rows of one tag that have the same parts unseen."""
    groups: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for row in rows:
        if row.counts and row.measured > 0:
            misses = groups.setdefault((row.tag, row.unseen), [])
            misses.append(math.log(row.measured / row.predicted))
    return tuple(
        Start(unseen=unseen, rows=len(misses), shown=NORMAL_90 * _root_mean_square(misses))
        for (_, unseen), misses in groups.items()
    )


def _root_mean_square(misses: Sequence[float]) -> float:
    return math.sqrt(math.fsum(miss * miss for miss in misses) / len(misses))


def learn(calibration: Calibration, starts: Sequence[Start]) -> Calibration:
    """The calibration with its stated errors moved by `starts`; without any, as it was."""
    telling = [one for one in starts if len(one.unseen) < 2]
    if not telling:
        return calibration
    plain = [one.shown**2 for one in telling if not one.unseen]
    stated = {MODEL: calibration.model_error} if plain else {}
    model_error = _moved(calibration.model_error, plain)
    changes = {}
    for name in dict.fromkeys(part for one in telling for part in one.unseen):
        beyond = [
            max(0.0, one.shown**2 - model_error**2) for one in telling if one.unseen == (name,)
        ]
        stated[name] = getattr(calibration.unseen, name)
        changes[name] = _moved(stated[name], beyond)
    return msgspec.structs.replace(
        calibration,
        model_error=model_error,
        unseen=msgspec.structs.replace(calibration.unseen, **changes),
        learned=Learned(starts=len(telling), rows=sum(one.rows for one in telling), stated=stated),
    )


def _moved(stated: float, squares: Sequence[float]) -> float:
    total = PRIOR_STARTS * stated**2 + math.fsum(squares)
    return max(LEAST_MODEL_ERROR, math.sqrt(total / (PRIOR_STARTS + len(squares))))
