"""Engines without HTTP: contenders in turn, every batch on disk before the next begins (P2)."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
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
from linkbound.serve.contenders import Contender, ServeRun
from linkbound.serve.engines import ENGINES
from linkbound.serve.moved import Moved, moved_by_batch
from linkbound.serve.path_watch import PathWatch
from linkbound.serve.start import Say, Start
from linkbound.serve.turns import Turn, take_turns

_DYING_S = 3.0
"""For an engine whose order failed to end by itself: its last words say why."""


def run_batches(
    study: Study, run: ServeRun, say: Say, *, meter: TrafficMeter | None = None
) -> None:
    """Run every batch of every turn that the study does not hold yet."""
    take_turns(study, run, _Batches(study, run, say), meter or open_meter(), say)


class _Batches:
    """The points of a run of whole batches."""

    def __init__(self, study: Study, run: ServeRun, say: Say) -> None:
        self._study = study
        self._run = run
        self._engine = ENGINES[run.engine]
        self._say = say
        self.points = len(run.batches)

    def left(self, contender: Contender, repeats: Sequence[int]) -> list[Turn]:
        """Batches not measured yet."""
        left = []
        for repeat in repeats:
            for number, batch in enumerate(self._run.batches):
                subject = batch_subject(self._run, contender, batch, repeat)
                held = self._study.find(KIND, **subject)
                if any(isinstance(one.outcome, Measured) for one in held):
                    self._say(f"{contender.name}, {batch.name}: already there")
                else:
                    left.append(Turn(repeat=repeat, number=number, subject=subject))
        return left

    def measure(self, start: Start, watch: PathWatch, turn: Turn) -> Reason | None:
        """One batch to its record; what became of the engine, if anything did."""
        batch, servers, name = self._run.batches[turn.number], start.servers, start.contender.name
        self._say(f"{name}, {batch.name}: {batch.calls} calls of each kind")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.monotonic()
        watch.begin()
        times = run_batch(servers.target().urls[0], batch, self._run.batch_limit_s)
        duration_s = time.monotonic() - began
        failed = times if isinstance(times, Reason) else None
        moved = moved_in(batch, self._step_tokens(batch))
        seen = watch.end(failed or moved, servers.logs())
        # An answer that cannot be used ends this engine as a dead one does.
        trouble = servers.trouble(_DYING_S) or failed
        reason = trouble or start.broken_arm(seen.verdict)
        if reason is not None:
            self._say(f"{name}, {batch.name}: {reason.code}, {reason.text}")
        if isinstance(times, Reason) or reason is not None:
            found: Any = reason or times
        else:
            found = engine_run(self._run, start.contender, batch, times)
        run_id = self._keep(start, turn, found, started=started, duration_s=duration_s)
        start.keep_traffic(turn.subject, seen, (run_id, start.id))
        if reason is None and self._engine.stages_in_turn and start.contender.arm is not None:
            self._keep_hand_overs(start, turn, run_id)
        return trouble

    def fail(self, start: Start, turn: Turn, reason: Reason) -> None:
        """A batch that this engine will never answer."""
        self._keep(start, turn, reason)

    def _step_tokens(self, batch: Batch) -> int:
        """The most that go through the model at once; without a scheduler, all prompts."""
        rules = self._engine.rules
        return batch.batch * batch.prompt_tokens if rules is None else rules.max_batched_tokens

    def _keep_hand_overs(self, start: Start, turn: Turn, run_id: str) -> None:
        """Outside of the counters' window: what is copied here is no part of the batch."""
        url, batch = start.servers.target().urls[0], self._run.batches[turn.number]
        found = time_hand_overs(url, batch, self._run.batch_limit_s)
        parents = (run_id, start.id)
        self._study.append(hand_over_record(turn.subject, found, parents, self._run.machine))

    def _keep(self, start: Start, turn: Turn, found: Any, **when: Any) -> str:
        logs = start.log_blobs() if isinstance(found, Reason) else ()
        record = run_record(
            turn.subject,
            found,
            machine=self._run.machine,
            parents=(start.id,),
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
