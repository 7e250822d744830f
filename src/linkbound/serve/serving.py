"""The comparison under load: contenders in turn, every cell flushed, on after any failure (P2).

A server that dies, hangs or lies costs its cell. Alone, the next cell gets a fresh server; side by
side, where nothing is started again, the others go on without it.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Measured, Reason
from linkbound.links.live.meter import TrafficMeter, open_meter
from linkbound.serve.client_limit import asks_too_much, was_client_bound
from linkbound.serve.contenders import Contender, ServeRun, cell_subject, reseeded
from linkbound.serve.engines import ENGINES
from linkbound.serve.latency import summarise
from linkbound.serve.load import run_cell
from linkbound.serve.load_types import ClientLimit, Request
from linkbound.serve.moved import Moved, moved_by_requests
from linkbound.serve.path_watch import PathWatch
from linkbound.serve.records import (
    client_record,
    load_record,
    outcome_of,
    request_lines,
    skipped_record,
)
from linkbound.serve.start import Say, Start, Subject
from linkbound.serve.turns import Turn, take_turns


def run_serving(
    study: Study,
    run: ServeRun,
    limit: ClientLimit,
    say: Say,
    *,
    meter: TrafficMeter | None = None,
) -> None:
    """Run every turn that the study does not hold yet; each record is on disk at once.

    `meter` counts what passes the GPUs of this host; without one, it is NVML's.
    """
    client_id = study.append(client_record(limit, run.machine))
    cells = _Cells(study, run, (limit, client_id), say)
    take_turns(study, run, cells, meter or open_meter(), say)


class _Cells:
    """The points of a run under load."""

    def __init__(
        self, study: Study, run: ServeRun, client: tuple[ClientLimit, str], say: Say
    ) -> None:
        self._study = study
        self._run = run
        self._limit, self._client_id = client
        self._say = say
        self.points = len(run.cells)

    def left(self, contender: Contender, repeats: Sequence[int]) -> list[Turn]:
        """Cells not measured yet; those beyond the client are refused here."""
        left = []
        for repeat in repeats:
            for number, cell in enumerate(self._run.cells):
                cell = reseeded(cell, number, repeat)
                subject = cell_subject(self._run, contender, cell, repeat)
                if self._is_measured(subject):
                    self._say(f"{contender.name}, {cell.name}: already there")
                elif reason := asks_too_much(cell, self._limit):
                    self._study.append(skipped_record(subject, reason, self._run.machine))
                    self._say(f"{contender.name}, {cell.name}: refused, {reason.text}")
                else:
                    left.append(Turn(repeat=repeat, number=number, subject=subject))
        return left

    def _is_measured(self, subject: Subject) -> bool:
        held = self._study.find("serve.load", **subject)
        return any(isinstance(record.outcome, Measured) for record in held)

    def fail(self, start: Start, turn: Turn, reason: Reason) -> None:
        """A cell that this start will never answer."""
        self._study.append(
            load_record(
                turn.subject,
                Failed(reason=reason),
                parents=(start.id,),
                machine=self._run.machine,
            )
        )

    def measure(self, start: Start, watch: PathWatch, turn: Turn) -> Reason | None:
        """One cell to its record; what became of the server, if anything did."""
        cell = reseeded(self._run.cells[turn.number], turn.number, turn.repeat)
        name = f"{start.contender.name}, {cell.name}"
        self._say(f"{name}: {cell.requests} requests")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.monotonic()
        servers = start.servers
        watch.begin()
        requests = run_cell(servers.target(), cell)
        duration_s = time.monotonic() - began
        seen = watch.end(self._moved(requests), servers.logs())
        trouble = servers.trouble()
        counted = any(not one.warm_up for one in requests)
        summary = summarise(requests, self._run.slo) if counted else None
        refusal = trouble or start.broken_arm(seen.verdict)
        if refusal is None and summary is not None:
            refusal = was_client_bound(summary, requests, self._limit)
        blobs: tuple[str, ...] = (self._study.add_blob(request_lines(requests)),)
        log = None
        if refusal is not None or summary is None or summary.failed:
            logs = start.log_blobs()
            log, blobs = (logs[0] if logs else None), (*blobs, *logs)
        outcome = (
            Failed(reason=trouble, log=log)
            if trouble is not None
            else outcome_of(requests, summary, refusal, log)
        )
        load_id = self._study.append(
            load_record(
                turn.subject,
                outcome,
                requests=requests,
                blobs=blobs,
                parents=(start.id, self._client_id),
                machine=self._run.machine,
                duration_s=duration_s,
                started=started,
            )
        )
        start.keep_traffic(turn.subject, seen, (load_id, start.id))
        if not isinstance(outcome, Failed):
            return None
        self._say(f"{name}: {outcome.reason.code}, {outcome.reason.text}")
        return outcome.reason if trouble is not None or _hung(requests) else None

    def _moved(self, requests: Sequence[Request]) -> Moved | Reason:
        """The tokens of a cell; steps are as large as the engine's rules let them be."""
        rules = ENGINES[self._run.engine].rules
        if rules is None:
            text = f"Nothing is known of the steps that {self._run.engine} makes."
            return Reason(code="rules-unknown", text=text)
        return moved_by_requests(requests, rules.max_batched_tokens, self._run.sequences)


def _hung(requests: Sequence[Request]) -> bool:
    """Whether no request was over in time: an engine may hang while its health still answers."""
    return all(one.error is not None and one.error.code == "time-limit" for one in requests)
