"""Which splits of many GPUs are judged, and copies that take no part of the load."""

import pytest
from verdict_cases import ONE, TP2, load, made, spread

from linkbound.links import Arm
from linkbound.predict.shortlist import shortlist
from linkbound.predict.types import Forecast, TermKind
from linkbound.splits.types import Split
from linkbound.verdict.gain import time_gain


def test_few_gpus_keep_every_split() -> None:
    found = made_forecasts((1, "one", 5.0), (2, "tp", 3.0), (2, "pp", 6.0), (2, "x", 4.0))
    assert shortlist(found, 2) == {one.plan.split for one in found}


def test_many_gpus_keep_what_may_win() -> None:
    found = made_forecasts(
        (1, "one", 8.0),
        (2, "tp", 5.0),
        (2, "pp", 9.0),
        (2, "x", 6.0),
        (3, "pp", 5.5),
        (4, "tp", 3.0),
        (4, "pp", 8.0),
        (4, "x", 4.0),
        (8, "tp", 3.5),
        (8, "pp", 9.0),
        (8, "x", 3.4),
    )
    assert {split.name for split in shortlist(found, 8)} == {
        *("one GPU", "tp2", "2 replicas", "tp4", "4 replicas", "tp8", "8 replicas"),
    }


def made_forecasts(*rows: tuple[int, str, float]) -> list[Forecast]:
    degrees = {"tp": "tp", "pp": "pp", "x": "replicas"}
    return [
        made(
            Split() if name == "one" else Split(**{degrees[name]: gpus}),
            {TermKind.WEIGHTS: spread(seconds)},
        )
        for gpus, name, seconds in rows
    ]


@pytest.mark.parametrize(("concurrency", "same"), [(1, True), (2, False)])
def test_a_copy_without_a_part_of_the_load_gains_nothing(concurrency: int, same: bool) -> None:
    asked = load(100, 10, concurrency)
    seconds = {TermKind.WEIGHTS: spread(1.0, 0.3), TermKind.CROSSINGS: spread(0.5, 0.2)}
    one = made(TP2, seconds, arm=Arm.P2P, asked=asked)
    two = made(Split(tp=2, replicas=2), seconds, arm=Arm.P2P, asked=asked)
    gain = time_gain(two, one, 0.05)
    assert (gain.low == gain.value == gain.high == 1) is same
    # Another split of the same time is another thing all the same.
    other = time_gain(two, made(ONE, seconds, asked=asked), 0.05)
    assert other.low < 1 < other.high
