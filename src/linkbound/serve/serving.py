"""The comparison itself: contenders in turn, every cell flushed, and on after any failure (P2).

A server that dies, hangs or lies costs its cell; the next cell gets a fresh one.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Finding, Measured, Reason, Record
from linkbound.links.live.meter import TrafficMeter, open_meter
from linkbound.serve.client_limit import asks_too_much, was_client_bound
from linkbound.serve.contenders import (
    Contender,
    ServeRun,
    breaks_arm,
    cell_subject,
    reseeded,
    turns,
)
from linkbound.serve.engines import ENGINES
from linkbound.serve.latency import summarise
from linkbound.serve.load import run_cell
from linkbound.serve.load_types import Cell, ClientLimit, Request
from linkbound.serve.moved import Moved, moved_by_requests
from linkbound.serve.output_probe import probe_output
from linkbound.serve.outputs import Output, compare_outputs
from linkbound.serve.path_types import PathVerdict
from linkbound.serve.path_watch import PathWatch, Seen
from linkbound.serve.records import (
    client_record,
    finding_record,
    load_record,
    outcome_of,
    output_record,
    request_lines,
    skipped_record,
    trace_record,
    traffic_record,
)
from linkbound.serve.servers import Servers
from linkbound.serve.trace_files import parse_trace_log
from linkbound.serve.witnesses import judge

Say = Callable[[str], None]
Subject = Mapping[str, Any]


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
    outputs: dict[str, tuple[Output, str]] = {}
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
        outputs: dict[str, tuple[Output, str]],
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
        self._found: set[str] = set()

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
        subject = self._start_subject(starts)
        with Servers(self._run, self._contender, folder) as servers:
            self._say(f"{self._contender.name}: starting {self._run.engine}")
            began = time.monotonic()
            reason = servers.begin()
            start_id = self._keep_start(servers, subject, reason, time.monotonic() - began)
            reason = reason or self._arm_is_kept(servers, subject, start_id)
            if reason is not None:
                self._give_up(left, reason, start_id)
                return []
            self._ask_fixed_prompt(servers, subject, start_id)
            self._watch.rest()
            while left:
                cell, cell_name = left[0]
                left = left[1:]
                if self._run_one(servers, cell, cell_name, start_id) is not None:
                    break
        return left

    def _start_subject(self, starts: int) -> Subject:
        return {
            "engine": self._run.engine,
            "model": self._run.model,
            "contender": self._contender.name,
            "repeat": self._repeat,
            "start": starts,
        }

    def _keep_start(
        self, servers: Servers, subject: Subject, reason: Reason | None, duration_s: float
    ) -> str:
        blobs = self._log_blobs(servers)
        launches = servers.launches()
        first = launches[0] if launches else None
        return self._study.append(
            Record(
                kind="serve.start",
                subject=subject,
                outcome=Measured(
                    values={"ready_s": duration_s, "replicas": len(servers.target().urls)}
                )
                if reason is None
                else Failed(reason=reason, log=blobs[0] if blobs else None),
                method="linkbound.serve.process",
                command=first.argv if first else (),
                environment=first.told_environment() if first else {},
                started=datetime.now(UTC).isoformat(timespec="seconds"),
                duration_s=duration_s,
                blobs=blobs,
                machine=self._run.machine,
            )
        )

    def _arm_is_kept(self, servers: Servers, subject: Subject, start_id: str) -> Reason | None:
        """Channels and own kernels are set up by now: a run on another path is no number."""
        if self._contender.arm is None:
            return None
        found = [parse_trace_log(data, name) for name, data in servers.logs().items()]
        verdict = judge(
            [log for one in found for log in one.nccl],
            [log for one in found for log in one.engines],
        )
        parents = (start_id,)
        self._study.append(trace_record(subject, verdict, parents, self._log_blobs(servers)))
        self._keep_findings(subject, verdict.findings, parents)
        return self._broken_arm(verdict)

    def _broken_arm(self, verdict: PathVerdict) -> Reason | None:
        if not breaks_arm(self._contender.arm, verdict.answer):
            return None
        text = f"Arm {self._contender.arm} runs {verdict.answer}: {verdict.why}"
        return Reason(code="arm-not-kept", text=text)

    def _keep_findings(
        self, subject: Subject, findings: Sequence[Finding], parents: tuple[str, ...]
    ) -> None:
        """Each once in a turn: the logs say the same after every cell."""
        for finding in findings:
            if finding.seen not in self._found:
                self._found.add(finding.seen)
                self._study.append(finding_record(subject, finding, parents))
                self._say(f"{finding.severity}: {finding.seen}")

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

    def _ask_fixed_prompt(self, servers: Servers, subject: Subject, start_id: str) -> None:
        output = probe_output(servers.target(), self._contender.name)
        output_id = self._study.append(output_record(subject, output, (start_id,)))
        if isinstance(output, Reason):
            self._say(f"{self._contender.name}: fixed prompt, {output.text}")
            return
        first, first_id = self._outputs.setdefault("first", (output, output_id))
        finding = compare_outputs(first, output)
        if finding is not None:
            self._study.append(finding_record(subject, finding, (first_id, output_id)))
            self._say(f"{finding.severity}: {finding.seen}")

    def _run_one(
        self, servers: Servers, cell: Cell, subject: Subject, start_id: str
    ) -> Reason | None:
        """One cell to its record; what became of the server, if anything did."""
        self._say(f"{self._contender.name}, {cell.name}: {cell.requests} requests")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.monotonic()
        self._watch.begin()
        requests = run_cell(servers.target(), cell)
        duration_s = time.monotonic() - began
        seen = self._watch.end(self._moved(requests), servers.logs())
        trouble = servers.trouble()
        counted = any(not one.warm_up for one in requests)
        summary = summarise(requests, self._run.slo) if counted else None
        refusal = trouble or self._broken_arm(seen.verdict)
        refusal = refusal or (was_client_bound(summary, self._limit) if summary else None)
        blobs: tuple[str, ...] = (self._study.add_blob(request_lines(requests)),)
        log = None
        if refusal is not None or summary is None or summary.failed:
            logs = self._log_blobs(servers)
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
                parents=(start_id, self._client_id),
                machine=self._run.machine,
                duration_s=duration_s,
                started=started,
            )
        )
        self._keep_traffic(subject, seen, (load_id, start_id))
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

    def _keep_traffic(self, subject: Subject, seen: Seen, parents: tuple[str, ...]) -> None:
        """What the counters saw of a cell; where nothing was to cross and none answers, nothing.

        A server that somebody else started may be on any host.
        """
        if not ENGINES[self._run.engine].starts:
            return
        if seen.traffic.moved or self._contender.arm is not None:
            self._study.append(traffic_record(subject, seen, parents, self._run.machine))
            self._keep_findings(subject, seen.findings, parents)

    def _log_blobs(self, servers: Servers) -> tuple[str, ...]:
        logs = [data for data in servers.logs().values() if data]
        return tuple(dict.fromkeys(self._study.add_blob(data) for data in logs))
