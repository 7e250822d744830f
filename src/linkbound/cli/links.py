"""`linkbound links`: measure every link of this host, verified first (L1-L3, L5, L6)."""

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from linkbound.errors import CorruptionFound, LinkboundError

if TYPE_CHECKING:
    from linkbound.links.live.cell import Cell, CopyJob
    from linkbound.links.live.records import Kept, Origin
    from linkbound.links.live.rows import LinkRow
    from linkbound.links.live.sweep import Swept
    from linkbound.topology.types import Machine

SCHEMA = "linkbound.links"
VERSION = 1
DEFAULT_STUDY = Path("links.linkbound")
HOST_NAME = "this-host"
QUIET_LINE_S = 30.0
"""Between lines of progress where stderr is no terminal."""


@click.command("links")
@click.option("--quick", is_flag=True, help="A matrix in seconds: three sizes, no sets.")
@click.option("--pairs", metavar="0-1,...", help="Only these pairs; 0>1 for one direction.")
@click.option("--methods", metavar="NAME,...", help="Only these methods.")
@click.option("-l", "--list", "list_methods", is_flag=True, help="List the methods and stop.")
@click.option("-b", "begin", metavar="SIZE", help="Smallest size of a sweep.")
@click.option("-e", "end", metavar="SIZE", help="Largest size of a sweep.")
@click.option("-f", "factor", type=int, default=4, show_default=True, help="From size to size.")
@click.option("--busy-ok", is_flag=True, help="Measure although others use the GPUs.")
@click.option(
    "-C",
    "--study",
    "path",
    type=click.Path(path_type=Path),
    default=DEFAULT_STUDY,
    show_default=True,
    help="Study file to append to; made where there is none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and for how long.")
def command(
    quick: bool,
    pairs: str | None,
    methods: str | None,
    list_methods: bool,
    begin: str | None,
    end: str | None,
    factor: int,
    busy_ok: bool,
    path: Path,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Measure copies between all GPUs and with the host: verified, by every method, both ways.

    Ends with code 4 where bytes arrive wrong or a copy hangs; the rest is measured all the same.
    """
    from linkbound.links.live.request import Asked, measurable, method_lines, to_jobs, to_scope

    if list_methods:
        click.echo("\n".join(method_lines(probed())))
        return
    asked = Asked(quick=quick, pairs=pairs, methods=methods, begin=begin, end=end, factor=factor)
    machine = probed()
    gpus = measurable(machine)
    scope = to_scope(asked, machine, [gpu.label for gpu in gpus])
    jobs = to_jobs(machine, gpus, scope, asked)
    if dry_run:
        click.echo("\n".join(plan_lines(jobs)))
        return
    check_ready(machine, busy_ok)
    measure(machine, jobs, path, as_json, busy_ok)


def probed() -> "Machine":
    """This host as its driver and its kernel show it."""
    from linkbound.topology.probe import probe_machine

    return probe_machine()


def check_ready(machine: "Machine", busy_ok: bool) -> None:
    """Raises MissingExtra without the bindings, UsageError on busy GPUs."""
    from linkbound.links.live.cuda import require_gpu_extra
    from linkbound.links.live.request import refuse_busy
    from linkbound.links.live.state import open_state

    require_gpu_extra()
    if not busy_ok:
        refuse_busy(machine.gpus, open_state())


def plan_lines(jobs: "tuple[CopyJob, ...]") -> list[str]:
    """The cells of each arm, and how long they take on a slow link."""
    from linkbound.links.live.progress import Progress

    cells = [cell for job in jobs for cell in job.cells]
    lines = [f"{job.arm}: {cell.title}" for job in jobs for cell in job.cells]
    expected_s = Progress(cells, len(jobs)).expected_s
    return [
        *lines,
        f"{len(cells)} cells in {len(jobs)} children, at most about {expected_s:.0f} s.",
    ]


def measure(
    machine: "Machine",
    jobs: "tuple[CopyJob, ...]",
    path: Path,
    as_json: bool,
    busy_ok: bool,
) -> None:
    """Sweep into the study, print, and raise what was found."""
    from linkbound.evidence.study import Study
    from linkbound.links.live.matrices import render_links
    from linkbound.links.live.records import (
        append_cell,
        append_finding,
        append_machine,
        append_summaries,
    )
    from linkbound.links.live.request import job_environment
    from linkbound.links.live.sweep import sweep

    environment = job_environment()
    kept: list[Kept] = []
    with Study.open_or_create(path) as study:
        origin = new_origin(append_machine(study, HOST_NAME, machine), environment)
        shown = Shown(jobs)

        def on_row(_cell: "Cell | None", row: "LinkRow") -> None:
            kept.append(append_cell(study, origin, flagged(row, busy_ok and shown.others)))

        try:
            swept = sweep(jobs, environment, on_cell=shown.begin, on_row=on_row)
        finally:
            # Also after an interrupt: what was measured is then readable like all else.
            append_summaries(study, origin, kept)
            shown.end()
        for finding in swept.findings:
            append_finding(study, origin, finding, swept.log)
    if as_json:
        click.echo(json.dumps(document(kept, swept, origin), indent=2, allow_nan=False))
    else:
        labels = [gpu.label for job in jobs[:1] for gpu in job.gpus]
        click.echo(render_links([one.row for one in kept], labels), nl=False)
    click.echo(f"{len(kept)} rows in {path}; look: linkbound show -C {path}", err=True)
    raise_found(kept, swept, path)


def raise_found(kept: "list[Kept]", swept: "Swept", path: Path) -> None:
    """Raises CorruptionFound after findings, LinkboundError where nothing has a time."""
    from linkbound.links.live.matrices import render_findings

    if swept.findings:
        click.echo(render_findings(swept.findings), err=True)
        codes = ", ".join(dict.fromkeys(finding.code for finding in swept.findings))
        raise CorruptionFound(
            f"Found: {codes}.",
            why="Paths that failed have no speed.",
            hint="Each finding above says what to do.",
        )
    if not any(one.row.samples_s for one in kept):
        raise LinkboundError(
            "Nothing could be timed.",
            why="Every row says why.",
            hint=f"Look: linkbound show -C {path}.",
        )


def flagged(row: "LinkRow", busy: bool) -> "LinkRow":
    """The row, marked where others were on the GPUs."""
    from msgspec import structs

    from linkbound.links.live.rows import Flag

    return structs.replace(row, flags=(*row.flags, Flag.BUSY)) if busy and row.samples_s else row


def new_origin(machine: tuple[str, str], environment: dict[str, str]) -> "Origin":
    """What the records of this run share."""
    from linkbound.links.live.records import Origin
    from linkbound.links.live.request import recorded_environment

    record_id, fingerprint_id = machine
    return Origin(
        machine_name=HOST_NAME,
        machine_id=fingerprint_id,
        command=("linkbound", *sys.argv[1:]),
        environment=recorded_environment(environment),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        parents=(record_id,),
    )


class Shown:
    """Progress on stderr: one live line on a terminal, a line every 30 s elsewhere."""

    def __init__(self, jobs: "tuple[CopyJob, ...]") -> None:
        from linkbound.links.live.progress import Progress
        from linkbound.links.live.state import open_state

        self._progress = Progress([cell for job in jobs for cell in job.cells], len(jobs))
        self._started_s = time.monotonic()
        self._said_s = -QUIET_LINE_S
        self._live = sys.stderr.isatty()
        state = open_state()
        self.others = any(state.others(gpu.uuid) for job in jobs for gpu in job.gpus)

    def begin(self, cell: "Cell") -> None:
        self._progress.begin(cell)
        elapsed_s = time.monotonic() - self._started_s
        if not self._live and elapsed_s - self._said_s < QUIET_LINE_S:
            return
        self._said_s = elapsed_s
        at = f"links  case {self._progress.done}/{self._progress.total}  {cell.title}"
        left = _clock(self._progress.left_s(elapsed_s))
        line = f"{at}  {_clock(elapsed_s)} elapsed, about {left} left"
        click.echo(f"\r\x1b[2K{line}" if self._live else line, err=True, nl=not self._live)

    def end(self) -> None:
        """Erase the live line and leave one that stays."""
        spent = _clock(time.monotonic() - self._started_s)
        line = f"links  {self._progress.done} of {self._progress.total} cases in {spent}"
        click.echo(f"\r\x1b[2K{line}" if self._live else line, err=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def document(kept: "list[Kept]", swept: "Swept", origin: "Origin") -> dict[str, Any]:
    """The one JSON document of --json: rows with all dimensions, and findings."""
    import msgspec

    return {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": origin.machine_id,
        "started": origin.started,
        "environment": dict(origin.environment),
        "rows": [row_document(one) for one in kept],
        "findings": msgspec.to_builtins(swept.findings),
    }


def row_document(kept: "Kept") -> dict[str, Any]:
    """A row: its dimensions, its figures with quantiles, its record."""
    import msgspec

    from linkbound.evidence.stats import cov, p10, p90

    row = kept.row
    plain: dict[str, Any] = msgspec.to_builtins(row)
    return {
        **plain,
        "src": row.group[0],
        "dst": row.group[-1],
        "time_s": None
        if row.time_s is None
        else {
            "median": row.time_s,
            "p10": p10(row.samples_s),
            "p90": p90(row.samples_s),
            "cov": cov(row.samples_s),
            "n": len(row.samples_s),
        },
        "bytes_per_s": row.bytes_per_s if row.operation.value != "latency" else None,
        "retained_share": row.retained_share,
        "outcome": "measured" if row.samples_s or row.reason is None else "no figure",
        "record_ids": [kept.record_id],
    }
