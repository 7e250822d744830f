"""One start of a contender: servers up, path proven, the fixed prompt answered (P2, P3).

with Start(study, run, contender, number, folder, say) as start:
    reason = start.begin()            up, and on the arm's path
    start.ask_fixed_prompt(outputs)   is it still the same model?
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Finding, Measured, Reason, Record
from linkbound.serve.contenders import Contender, ServeRun, breaks_arm
from linkbound.serve.engines import ENGINES
from linkbound.serve.output_probe import probe_output
from linkbound.serve.outputs import Output, compare_outputs
from linkbound.serve.path_types import PathVerdict
from linkbound.serve.path_watch import Seen
from linkbound.serve.records import finding_record, output_record, trace_record, traffic_record
from linkbound.serve.servers import Servers
from linkbound.serve.trace_files import parse_trace_log
from linkbound.serve.witnesses import judge

Say = Callable[[str], None]
Subject = Mapping[str, Any]
Outputs = dict[str, tuple[Output, str]]
"""The first answer to the fixed prompt of each model, with its record."""


class Start:
    """Use it in a `with` block: leaving it ends the servers."""

    def __init__(
        self,
        study: Study,
        run: ServeRun,
        contender: Contender,
        number: Mapping[str, int],
        folder: Path,
        say: Say,
    ) -> None:
        """`number`: what tells this start from the contender's others."""
        self._study = study
        self._run = run
        self.contender = contender
        self._subject = {
            "engine": run.engine,
            "model": run.model,
            "contender": contender.name,
            **number,
        }
        self._say = say
        self._found: set[str] = set()
        self.servers = Servers(run, contender, folder)
        self._started: str | None = None
        self.id = ""
        """Of its record, once it has begun."""

    def __enter__(self) -> Self:
        self.servers.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the servers, once; what they wrote can still be read."""
        self.servers.end()

    def begin(self) -> Reason | None:
        """Start what is not started yet and wait for it; a reason where it is of no use."""
        self.start()
        reason = self.servers.wait_ready()
        self._keep(reason)
        return reason or self._arm_is_kept()

    def start(self) -> None:
        """Start the processes, once; several starts then get ready at the same time."""
        if self._started is None:
            self._started = datetime.now(UTC).isoformat(timespec="seconds")
            self._say(f"{self.contender.name}: starting {self._run.engine}")
            self.servers.start()

    def _keep(self, reason: Reason | None) -> None:
        duration_s = self.servers.settled_s()
        blobs = self.log_blobs()
        launches = self.servers.launches()
        first = launches[0] if launches else None
        ready = {"ready_s": duration_s, "replicas": len(self.servers.target().urls)}
        self.id = self._study.append(
            Record(
                kind="serve.start",
                subject=self._subject,
                outcome=Measured(values=ready)
                if reason is None
                else Failed(reason=reason, log=blobs[0] if blobs else None),
                method="linkbound.serve.process",
                command=first.argv if first else (),
                environment=first.told_environment() if first else {},
                started=self._started,
                duration_s=duration_s,
                blobs=blobs,
                machine=self._run.machine,
            )
        )

    def _arm_is_kept(self) -> Reason | None:
        """Channels and own kernels are set up by now: a run on another path is no number."""
        if self.contender.arm is None:
            return None
        found = [parse_trace_log(data, name) for name, data in self.servers.logs().items()]
        verdict = judge(
            [log for one in found for log in one.nccl],
            [log for one in found for log in one.engines],
        )
        parents = (self.id,)
        blobs = self.log_blobs()
        self._study.append(trace_record(self._subject, verdict, parents, blobs))
        self.keep_findings(verdict.findings, parents)
        return self.broken_arm(verdict)

    def broken_arm(self, verdict: PathVerdict) -> Reason | None:
        """Why a run on this path has no figures in this arm; None where it is the arm's."""
        if not breaks_arm(self.contender.arm, verdict.answer):
            return None
        text = f"Arm {self.contender.arm} runs {verdict.answer}: {verdict.why}"
        return Reason(code="arm-not-kept", text=text)

    def ask_fixed_prompt(self, outputs: Outputs) -> None:
        """Keep the answer, and what tells it from the first one of the same model."""
        output = probe_output(self.servers.target(), self.contender.name)
        output_id = self._study.append(output_record(self._subject, output, (self.id,)))
        if isinstance(output, Reason):
            self._say(f"{self.contender.name}: fixed prompt, {output.text}")
            return
        first, first_id = outputs.setdefault(self._same_model(), (output, output_id))
        finding = compare_outputs(first, output)
        if finding is not None:
            self._study.append(finding_record(self._subject, finding, (first_id, output_id)))
            self._say(f"{finding.severity}: {finding.seen}")

    def _same_model(self) -> str:
        """Random weights are drawn by each rank for its own part: another split, another model."""
        return self.contender.model_key if self._run.dummy_weights else "all"

    def keep_findings(self, findings: Sequence[Finding], parents: tuple[str, ...]) -> None:
        """Each once in a start: the logs say the same after every cell."""
        for finding in findings:
            if finding.seen not in self._found:
                self._found.add(finding.seen)
                self._study.append(finding_record(self._subject, finding, parents))
                self._say(f"{finding.severity}: {finding.seen}")

    def keep_traffic(self, subject: Subject, seen: Seen, parents: tuple[str, ...]) -> None:
        """What the counters saw of a cell; where nothing was to cross and none answers, nothing.

        A server that somebody else started may be on any host.
        """
        if not ENGINES[self._run.engine].starts:
            return
        if seen.traffic.moved or self.contender.arm is not None:
            self._study.append(traffic_record(subject, seen, parents, self._run.machine))
            self.keep_findings(seen.findings, parents)

    def log_blobs(self) -> tuple[str, ...]:
        """Ids of everything that the servers and NCCL wrote so far."""
        logs = [data for data in self.servers.logs().values() if data]
        return tuple(dict.fromkeys(self._study.add_blob(data) for data in logs))
