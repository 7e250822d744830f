"""Contenders in turn: each with the GPUs to itself, or all of them side by side (P2).

Alone, as the recorded runs were made: a start for each contender and repeat, and a fresh one after
what broke it. Side by side: all start at once, each with a part of the memory, and points go round.
The others are idle then, and what drifts meets all of them within seconds.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from linkbound.evidence.study import Study
from linkbound.evidence.types import Reason
from linkbound.links.live.meter import TrafficMeter
from linkbound.serve.contenders import Contender, ServeRun, in_order, turns
from linkbound.serve.path_watch import PathWatch
from linkbound.serve.process import POLL_S
from linkbound.serve.start import Outputs, Say, Start, Subject
from linkbound.values import Value

_PREFIX = "linkbound-serve-"


class Turn(Value, frozen=True, kw_only=True):
    """A point of a contender that is to be measured."""

    repeat: int
    number: int
    """Of the point: a cell's, or a batch's."""
    subject: Subject


class Lane(Protocol):
    """How points of one kind are measured: cells of requests, or whole batches."""

    points: int

    def left(self, contender: Contender, repeats: Sequence[int]) -> list[Turn]:
        """What the study does not hold yet, in order."""

    def measure(self, start: Start, watch: PathWatch, turn: Turn) -> Reason | None:
        """One point to its record; what became of the engine, if anything did."""

    def fail(self, start: Start, turn: Turn, reason: Reason) -> None:
        """A record of a point that this engine will never answer."""


def take_turns(study: Study, run: ServeRun, lane: Lane, meter: TrafficMeter, say: Say) -> None:
    """Measure what is left of every contender, as the run asks: one by one or side by side."""
    contest = _Contest(study, run, lane, meter, say)
    if run.side_by_side:
        contest.side_by_side()
    else:
        contest.one_by_one()


class _Seat:
    """An engine that stands beside the others, and what it has to answer."""

    def __init__(self, start: Start, watch: PathWatch, left: list[Turn]) -> None:
        self.start = start
        self.watch = watch
        self.left = left

    def take(self, repeat: int, number: int) -> Turn | None:
        """The turn of this point, no longer among what is left; None where it is measured."""
        for turn in self.left:
            if (turn.repeat, turn.number) == (repeat, number):
                self.left.remove(turn)
                return turn
        return None


class _Contest:
    """One comparison: what its turns share."""

    def __init__(
        self, study: Study, run: ServeRun, lane: Lane, meter: TrafficMeter, say: Say
    ) -> None:
        self._study = study
        self._run = run
        self._lane = lane
        self._meter = meter
        self._say = say
        self._outputs: Outputs = {}

    def one_by_one(self) -> None:
        for repeat, contender in turns(self._run.contenders, self._run.repeats):
            left = self._lane.left(contender, (repeat,))
            starts = 0
            while left:
                starts += 1
                with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
                    number = {"repeat": repeat, "start": starts}
                    with self._start(contender, number, Path(folder)) as start:
                        left = self._through(start, contender, left)

    def _through(self, start: Start, contender: Contender, left: list[Turn]) -> list[Turn]:
        """All that is left, up to what breaks the engine; returns what needs a fresh one."""
        if not self._begin(start, left):
            return []
        watch = PathWatch(self._meter, self._run, contender)
        watch.rest()
        while left:
            turn, *left = left
            if self._lane.measure(start, watch, turn) is not None:
                break
        return left

    def side_by_side(self) -> None:
        with ExitStack() as stack:
            live = self._seats(stack)
            _await([seat.start for seat in live.values()])
            for contender, seat in list(live.items()):
                if not self._begin(seat.start, seat.left):
                    del live[contender]
            if not live:
                return
            # Once for all: what the others pass while they wait is in it.
            self._meter.rest()
            for repeat in range(self._run.repeats):
                for number in range(self._lane.points):
                    for contender in in_order(self._run.contenders, repeat):
                        self._take_turn(live, contender, repeat, number)

    def _seats(self, stack: ExitStack) -> dict[Contender, _Seat]:
        """Every contender that has something left, started."""
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
        seats = {}
        for number, contender in enumerate(self._run.contenders):
            if left := self._lane.left(contender, range(self._run.repeats)):
                named = {"repeat": 0, "start": 1}
                start = self._start(contender, named, folder / f"engine-{number}")
                stack.enter_context(start)
                watch = PathWatch(self._meter, self._run, contender)
                seats[contender] = _Seat(start, watch, left)
                start.start()
        return seats

    def _take_turn(
        self, live: dict[Contender, _Seat], contender: Contender, repeat: int, number: int
    ) -> None:
        """Measure this point where the engine lives and it is not measured yet."""
        seat = live.get(contender)
        turn = None if seat is None else seat.take(repeat, number)
        if seat is None or turn is None:
            return
        reason = self._lane.measure(seat.start, seat.watch, turn)
        if reason is not None:
            self._give_up(seat.start, seat.left, reason)
            del live[contender]

    def _start(self, contender: Contender, number: Mapping[str, int], folder: Path) -> Start:
        return Start(self._study, self._run, contender, number, folder, self._say)

    def _begin(self, start: Start, left: Sequence[Turn]) -> bool:
        """Whether it is up and on its arm's path; else everything left has failed."""
        reason = start.begin()
        if reason is not None:
            self._give_up(start, left, reason)
            return False
        start.ask_fixed_prompt(self._outputs)
        return True

    def _give_up(self, start: Start, left: Sequence[Turn], reason: Reason) -> None:
        """Nothing of this is measured with this engine, which disturbs no other from now on."""
        self._say(f"{start.contender.name}: {reason.code}, {reason.text}")
        for turn in left:
            self._lane.fail(start, turn, reason)
        start.end()


def _await(starts: Sequence[Start]) -> None:
    """Until it is known of each what became of it; asked in turn, so that each has its own time."""
    waiting = list(starts)
    while waiting := [start for start in waiting if not start.servers.settled()]:
        time.sleep(POLL_S)
