"""Engines without HTTP: contenders in turn, every batch on disk before the next begins (P2).

One after the other, each with the GPUs to itself, as the recorded runs were made; or side by side:
all engines are built at once, each with a part of the memory, and take turns batch by batch. The
others are idle then, and what drifts meets all of them within seconds.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Reason
from linkbound.links.live.meter import TrafficMeter, open_meter
from linkbound.serve.batch_client import run_batch, time_hand_overs
from linkbound.serve.batch_records import (
    KIND,
    batch_subject,
    engine_run,
    hand_over_record,
    run_record,
)
from linkbound.serve.batch_types import Batch
from linkbound.serve.contenders import Contender, ServeRun, turns
from linkbound.serve.engines import ENGINES
from linkbound.serve.moved import Moved, moved_by_batch
from linkbound.serve.path_watch import PathWatch
from linkbound.serve.start import Outputs, Say, Start
from linkbound.values import Value

_DYING_S = 3.0
"""For an engine whose order failed to end by itself: its last words say why."""


class Turn(Value, frozen=True, kw_only=True):
    """A batch of a contender that is to be measured."""

    repeat: int
    batch: Batch
    subject: Mapping[str, Any]


def run_batches(
    study: Study, run: ServeRun, say: Say, *, meter: TrafficMeter | None = None
) -> None:
    """Run every batch of every turn that the study does not hold yet."""
    meter = meter or open_meter()
    outputs: Outputs = {}
    if run.cache_bytes is not None:
        _side_by_side(study, run, say, meter, outputs)
        return
    for repeat, contender in turns(run.contenders, run.repeats):
        left = _left(study, run, contender, (repeat,), say)
        starts = 0
        while left:
            starts += 1
            number = {"repeat": repeat, "start": starts}
            with tempfile.TemporaryDirectory(prefix="linkbound-batches-") as folder:
                start = Start(study, run, contender, number, Path(folder), say)
                with _Engine(study, run, contender, start, meter, say) as engine:
                    left = engine.run(left, outputs)


def _side_by_side(
    study: Study, run: ServeRun, say: Say, meter: TrafficMeter, outputs: Outputs
) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="linkbound-batches-")))
        engines: dict[Contender, tuple[_Engine, list[Turn]]] = {}
        for number, contender in enumerate(run.contenders):
            if left := _left(study, run, contender, range(run.repeats), say):
                place = folder / f"engine-{number}"
                named = {"repeat": 0, "start": 1}
                start = Start(study, run, contender, named, place, say)
                engine = _Engine(study, run, contender, start, meter, say)
                engines[contender] = stack.enter_context(engine), left
                start.start()
        live = {
            contender: (engine, left)
            for contender, (engine, left) in engines.items()
            if engine.begin(left, outputs)
        }
        for engine, _ in live.values():
            engine.rest()
        for repeat in range(run.repeats):
            for batch in run.batches:
                for contender in _order(run.contenders, repeat):
                    _take_turn(live, contender, repeat, batch)


def _order(contenders: Sequence[Contender], repeat: int) -> Sequence[Contender]:
    return contenders if repeat % 2 == 0 else tuple(reversed(contenders))


def _take_turn(
    live: dict[Contender, tuple["_Engine", list[Turn]]],
    contender: Contender,
    repeat: int,
    batch: Batch,
) -> None:
    """Measure this batch where the engine lives and it is not measured yet."""
    engine, left = live.get(contender, (None, []))
    for turn in left:
        if engine is not None and (turn.repeat, turn.batch) == (repeat, batch):
            left.remove(turn)
            if (reason := engine.measure(turn)) is not None:
                engine.give_up(left, reason)
                del live[contender]
            return


def _left(
    study: Study, run: ServeRun, contender: Contender, repeats: Sequence[int], say: Say
) -> list[Turn]:
    left = []
    for repeat in repeats:
        for batch in run.batches:
            subject = batch_subject(run, contender, batch, repeat)
            if any(isinstance(one.outcome, Measured) for one in study.find(KIND, **subject)):
                say(f"{contender.name}, {batch.name}: already there")
            else:
                left.append(Turn(repeat=repeat, batch=batch, subject=subject))
    return left


class _Engine:
    """One start of a contender. Use it in a `with` block."""

    def __init__(
        self,
        study: Study,
        run: ServeRun,
        contender: Contender,
        start: Start,
        meter: TrafficMeter,
        say: Say,
    ) -> None:
        self._study = study
        self._run = run
        self._contender = contender
        self._start = start
        self._engine = ENGINES[run.engine]
        self._watch = PathWatch(meter, run, contender)
        self._say = say

    def __enter__(self) -> "_Engine":
        self._start.__enter__()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._start.__exit__(*ended)

    def run(self, left: list[Turn], outputs: Outputs) -> list[Turn]:
        """All that is left, up to what breaks the engine; returns what needs a fresh one."""
        if not self.begin(left, outputs):
            return []
        self.rest()
        while left:
            turn, *left = left
            if self.measure(turn) is not None:
                break
        return left

    def begin(self, left: Sequence[Turn], outputs: Outputs) -> bool:
        """Whether it is up and on its arm's path; else everything left has failed."""
        reason = self._start.begin()
        if reason is not None:
            self.give_up(left, reason)
            return False
        self._start.ask_fixed_prompt(outputs)
        return True

    def rest(self) -> None:
        """Take the counters' baseline."""
        self._watch.rest()

    def give_up(self, left: Sequence[Turn], reason: Reason) -> None:
        """Nothing of this is measured with this engine."""
        self._say(f"{self._contender.name}: {reason.code}, {reason.text}")
        for turn in left:
            self._keep(turn, reason)

    def measure(self, turn: Turn) -> Reason | None:
        """One batch to its record; what became of the engine, if anything did."""
        batch, servers = turn.batch, self._start.servers
        self._say(f"{self._contender.name}, {batch.name}: {batch.calls} calls of each kind")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.monotonic()
        self._watch.begin()
        times = run_batch(servers.target().urls[0], batch, self._run.batch_limit_s)
        duration_s = time.monotonic() - began
        failed = times if isinstance(times, Reason) else None
        moved = moved_in(batch, self._step_tokens(batch))
        seen = self._watch.end(failed or moved, servers.logs())
        # An answer that cannot be used ends this engine as a dead one does.
        trouble = servers.trouble(_DYING_S) or failed
        reason = trouble or self._start.broken_arm(seen.verdict)
        if reason is not None:
            self._say(f"{self._contender.name}, {batch.name}: {reason.code}, {reason.text}")
        if isinstance(times, Reason) or reason is not None:
            run_id = self._keep(turn, reason or times, started=started, duration_s=duration_s)
        else:
            found = engine_run(self._run, self._contender, batch, times)
            run_id = self._keep(turn, found, started=started, duration_s=duration_s)
        self._start.keep_traffic(turn.subject, seen, (run_id, self._start.id))
        if reason is None and self._engine.stages_in_turn and self._contender.arm is not None:
            self._keep_hand_overs(turn, run_id)
        return trouble

    def _step_tokens(self, batch: Batch) -> int:
        """The most that go through the model at once; without a scheduler, all prompts."""
        rules = self._engine.rules
        return batch.batch * batch.prompt_tokens if rules is None else rules.max_batched_tokens

    def _keep_hand_overs(self, turn: Turn, run_id: str) -> None:
        """Outside of the counters' window: what is copied here is no part of the batch."""
        url = self._start.servers.target().urls[0]
        found = time_hand_overs(url, turn.batch, self._run.batch_limit_s)
        parents = (run_id, self._start.id)
        self._study.append(hand_over_record(turn.subject, found, parents, self._run.machine))

    def _keep(self, turn: Turn, found: Any, **when: Any) -> str:
        logs = self._start.log_blobs() if isinstance(found, Reason) else ()
        record = run_record(
            turn.subject,
            found,
            machine=self._run.machine,
            parents=(self._start.id,),
            log=logs[0] if logs else None,
            **when,
        )
        return self._study.append(record)


def moved_in(batch: Batch, step_tokens: int) -> Moved:
    """The tokens of everything that a measurement of a batch runs, its warm-up included."""
    parts = [
        moved_by_batch(batch.batch, batch.prompt_tokens, output, step_tokens, calls)
        for output, calls in batch.lengths
    ]
    return msgspec.structs.replace(
        parts[0],
        prompt_tokens=sum(one.prompt_tokens for one in parts),
        prompts=sum(one.prompts for one in parts),
        decode=tuple(decode for one in parts for decode in one.decode),
    )
