"""The comparison itself: contenders in turn, every cell flushed, and on after any failure (P2).

A server that dies, hangs or lies costs its cell; the next cell gets a fresh one.
"""

import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Measured, Reason
from linkbound.links.live.meter import TrafficMeter, open_meter
from linkbound.serve.client_limit import asks_too_much, was_client_bound
from linkbound.serve.contenders import (
    Contender,
    ServeRun,
    cell_subject,
    reseeded,
    turns,
)
from linkbound.serve.engines import ENGINES
from linkbound.serve.latency import summarise
from linkbound.serve.load import run_cell
from linkbound.serve.load_types import Cell, ClientLimit, Request
from linkbound.serve.moved import Moved, moved_by_requests
from linkbound.serve.path_watch import PathWatch
from linkbound.serve.records import (
    client_record,
    load_record,
    outcome_of,
    request_lines,
    skipped_record,
)
from linkbound.serve.start import Outputs, Say, Start, Subject


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
    meter = meter or open_meter()
    outputs: Outputs = {}
    for repeat, contender in turns(run.contenders, run.repeats):
        watch = PathWatch(meter, run, contender)
        _Turn(study, run, contender, repeat, (limit, client_id), outputs, say, watch).run()


class _Turn:
    """One contender's go: starts, cells, and what is left after a failure."""

    def __init__(
        self,
        study: Study,
        run: ServeRun,
        contender: Contender,
        repeat: int,
        client: tuple[ClientLimit, str],
        outputs: Outputs,
        say: Say,
        watch: PathWatch,
    ) -> None:
        self._study = study
        self._run = run
        self._contender = contender
        self._repeat = repeat
        self._limit, self._client_id = client
        self._outputs = outputs
        self._say = say
        self._watch = watch

    def run(self) -> None:
        left = self._left()
        starts = 0
        while left:
            starts += 1
            with tempfile.TemporaryDirectory(prefix="linkbound-serve-") as folder:
                left = self._with_servers(Path(folder), left, starts)

    def _left(self) -> list[tuple[Cell, Subject]]:
        """Cells of this turn not measured yet; those beyond the client are refused here."""
        left = []
        for number, cell in enumerate(self._run.cells):
            cell = reseeded(cell, number, self._repeat)
            subject = cell_subject(self._run, self._contender, cell, self._repeat)
            if self._is_measured(subject):
                self._say(f"{self._contender.name}, {cell.name}: already there")
            elif reason := asks_too_much(cell, self._limit):
                self._study.append(skipped_record(subject, reason, self._run.machine))
                self._say(f"{self._contender.name}, {cell.name}: refused, {reason.text}")
            else:
                left.append((cell, subject))
        return left

    def _is_measured(self, subject: Subject) -> bool:
        held = self._study.find("serve.load", **subject)
        return any(isinstance(record.outcome, Measured) for record in held)

    def _with_servers(
        self, folder: Path, left: list[tuple[Cell, Subject]], starts: int
    ) -> list[tuple[Cell, Subject]]:
        """Start, run cells until one breaks the server, end; returns what is left to run."""
        number = {"repeat": self._repeat, "start": starts}
        with Start(self._study, self._run, self._contender, number, folder, self._say) as start:
            reason = start.begin()
            if reason is not None:
                self._give_up(left, reason, start.id)
                return []
            start.ask_fixed_prompt(self._outputs)
            self._watch.rest()
            while left:
                cell, cell_name = left[0]
                left = left[1:]
                if self._run_one(start, cell, cell_name) is not None:
                    break
        return left

    def _give_up(self, left: Sequence[tuple[Cell, Subject]], reason: Reason, start_id: str) -> None:
        self._say(f"{self._contender.name}: {reason.code}, {reason.text}")
        for _, subject in left:
            self._study.append(
                load_record(
                    subject,
                    Failed(reason=reason),
                    parents=(start_id,),
                    machine=self._run.machine,
                )
            )

    def _run_one(self, start: Start, cell: Cell, subject: Subject) -> Reason | None:
        """One cell to its record; what became of the server, if anything did."""
        self._say(f"{self._contender.name}, {cell.name}: {cell.requests} requests")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.monotonic()
        servers = start.servers
        self._watch.begin()
        requests = run_cell(servers.target(), cell)
        duration_s = time.monotonic() - began
        seen = self._watch.end(self._moved(requests), servers.logs())
        trouble = servers.trouble()
        counted = any(not one.warm_up for one in requests)
        summary = summarise(requests, self._run.slo) if counted else None
        refusal = trouble or start.broken_arm(seen.verdict)
        refusal = refusal or (was_client_bound(summary, self._limit) if summary else None)
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
                subject,
                outcome,
                requests=requests,
                blobs=blobs,
                parents=(start.id, self._client_id),
                machine=self._run.machine,
                duration_s=duration_s,
                started=started,
            )
        )
        start.keep_traffic(subject, seen, (load_id, start.id))
        match outcome:
            case Failed(reason=reason):
                self._say(f"{self._contender.name}, {cell.name}: {reason.code}, {reason.text}")
        return trouble

    def _moved(self, requests: Sequence[Request]) -> Moved | Reason:
        """The tokens of a cell; steps are as large as the engine's rules let them be."""
        rules = ENGINES[self._run.engine].rules
        if rules is None:
            text = f"Nothing is known of the steps that {self._run.engine} makes."
            return Reason(code="rules-unknown", text=text)
        return moved_by_requests(requests, rules.max_batched_tokens, self._run.sequences)
