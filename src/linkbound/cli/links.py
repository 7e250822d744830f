"""`linkbound links`: measure every link of this host, verified first (L1-L3, L5, L6)."""

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from linkbound.cli.options import HELP
from linkbound.errors import CorruptionFound, LinkboundError, UsageError

if TYPE_CHECKING:
    from linkbound.links.live.cell import Cell, CopyJob
    from linkbound.links.live.collective_types import CollectiveJob
    from linkbound.links.live.measure import Outcome
    from linkbound.links.live.records import Kept, Origin
    from linkbound.links.live.rows import LinkRow
    from linkbound.topology.types import Machine

SCHEMA = "linkbound.links"
VERSION = 1
DEFAULT_STUDY = Path("links.linkbound")
QUIET_LINE_S = 30.0
"""Between lines of progress where stderr is no terminal."""


@click.command("links", context_settings=HELP)
@click.option(
    "--quick",
    is_flag=True,
    help="Copies in seconds: three sizes, no sets, no collectives unless --only names them.",
)
@click.option("--pairs", metavar="0-1,...", help="Only these pairs; 0>1 for one direction.")
@click.option("--methods", metavar="NAME,...", help="Only these methods.")
@click.option(
    "-l",
    "--list",
    "list_methods",
    is_flag=True,
    help="List methods and collectives and stop; alone or with --json.",
)
@click.option("-b", "begin", metavar="SIZE", help="Smallest size of a sweep.")
@click.option("-e", "end", metavar="SIZE", help="Largest size of a sweep.")
@click.option("-f", "factor", type=click.IntRange(2), help="From size to size [4].")
@click.option(
    "--only",
    type=click.Choice(["copies", "collectives"]),
    help="Measure one of the two; --quick and --methods measure copies.",
)
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
    factor: int | None,
    only: str | None,
    busy_ok: bool,
    path: Path,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Measure this host's links: copies by every method, both ways, then collectives in every arm.

    Bytes and sums are verified before any time is shown.

    Ends with code 4 where bytes arrive wrong or a copy hangs; the rest is measured all the same.
    """
    from linkbound.links.live import request
    from linkbound.links.live.measure import collective_jobs

    asked = request.Asked(
        quick=quick, pairs=pairs, methods=methods, begin=begin, end=end, factor=factor
    )
    request.check(asked)
    if only == "collectives" and methods is not None:
        raise UsageError(
            f"--methods {methods} with --only collectives.",
            why="Methods are ways to copy; collectives have none of them.",
            hint="Leave out one of the two.",
        )
    if list_methods:
        if asked != request.Asked() or only is not None or dry_run or busy_ok:
            raise UsageError(
                "-l with options of a measurement.",
                why="It lists what could be measured and stops.",
                hint="Write linkbound links -l, or -l --json.",
            )
        from linkbound.cli.links_list import render_list

        click.echo(render_list(probed(), as_json))
        return
    machine = probed()
    gpus = request.measurable(machine)
    scope = request.to_scope(asked, machine, [gpu.label for gpu in gpus])
    if only is None and (quick or methods is not None):
        only = "copies"
    copies = () if only == "collectives" else request.to_jobs(machine, gpus, scope, asked)
    used = {label for pair in scope.pairs for label in pair}
    named = [gpu for gpu in gpus if gpu.label in used]
    collectives = () if only == "copies" else collective_jobs(machine, named, asked)
    if dry_run:
        click.echo("\n".join(plan_lines(copies, collectives)))
        return
    check_ready(machine, busy_ok)
    measure(machine, copies, collectives, path, as_json, busy_ok)


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


def plan_lines(
    copies: "tuple[CopyJob, ...]", collectives: "tuple[CollectiveJob, ...]"
) -> list[str]:
    """The cells of each arm, and how long copies take on a slow link."""
    from linkbound.links.live.collective_rows import NCCL_WAYS, cells_of
    from linkbound.links.live.progress import Progress

    cells = [cell for job in copies for cell in job.cells]
    lines = [f"{job.arm}: {cell.title}" for job in copies for cell in job.cells]
    sums = 0
    for job in collectives:
        found = sum(1 for _ in cells_of(job, NCCL_WAYS))
        sums += found
        names = ", ".join(one.value for one in job.operations)
        lines.append(f"{job.arm}: {job.family} {names} over {', '.join(job.group)}: {found} cells")
    expected_s = Progress(cells, len(copies)).expected_s
    return [
        *lines,
        f"{len(cells)} cells in {len(copies)} children, at most about {expected_s:.0f} s; "
        f"{sums} cells of collectives in {len(collectives)} children.",
    ]


def measure(
    machine: "Machine",
    copies: "tuple[CopyJob, ...]",
    collectives: "tuple[CollectiveJob, ...]",
    path: Path,
    as_json: bool,
    busy_ok: bool,
) -> None:
    """Measure into the study, print, and raise what was found."""
    from linkbound.evidence.study import Study
    from linkbound.links.live import state as live_state
    from linkbound.links.live.collective_table import render_collectives
    from linkbound.links.live.matrices import render_links
    from linkbound.links.live.measure import measure as measure_all
    from linkbound.links.live.records import HOST_NAME, append_machine
    from linkbound.links.live.request import job_environment

    environment = job_environment()
    state = live_state.open_state()
    uuids = [gpu.uuid for job in copies for gpu in job.gpus]
    uuids += [uuid for job in collectives for uuid in job.uuids if uuid is not None]
    shown = Shown(copies, busy_ok and any(state.others(uuid) for uuid in uuids))
    with Study.open_or_create(path) as study:
        origin = new_origin(append_machine(study, HOST_NAME, machine), environment)
        try:
            found = measure_all(study, origin, copies, collectives, environment, shown, state)
        finally:
            shown.end()
    if as_json:
        click.echo(json.dumps(document(found, origin), indent=2, allow_nan=False))
    else:
        labels = [gpu.label for job in copies[:1] for gpu in job.gpus]
        if found.copies:
            click.echo(render_links([one.row for one in found.copies], labels), nl=False)
        click.echo(render_collectives([one.row for one in found.collectives]), nl=False)
    click.echo(f"{len(found.kept)} rows in {path}; look: linkbound show -C {path}", err=True)
    raise_found(found, path)


def raise_found(found: "Outcome", path: Path) -> None:
    """Raises CorruptionFound after findings, LinkboundError where nothing has a time."""
    from linkbound.links.live.matrices import render_findings

    if found.findings:
        click.echo(render_findings(found.findings), err=True)
        codes = ", ".join(dict.fromkeys(finding.code for finding in found.findings))
        raise CorruptionFound(
            f"Found: {codes}.",
            why="Paths that failed have no speed.",
            hint="Each finding above says what to do.",
        )
    if not any(one.row.samples_s for one in found.kept):
        raise LinkboundError(
            "Nothing could be timed.",
            why="Every row says why.",
            hint=f"Look: linkbound show -C {path}.",
        )


def new_origin(machine: tuple[str, str], environment: dict[str, str]) -> "Origin":
    """What the records of this run share."""
    from linkbound.links.live.records import HOST_NAME, Origin
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

    def __init__(self, copies: "tuple[CopyJob, ...]", others: bool) -> None:
        from linkbound.links.live.progress import Progress

        self._progress = Progress([cell for job in copies for cell in job.cells], len(copies))
        self._others = others
        self._started_s = time.monotonic()
        self._said_s = -QUIET_LINE_S
        self._live = sys.stderr.isatty()
        self._collectives = 0

    def flagged(self, row: "LinkRow") -> "LinkRow":
        """The row, marked where others were on the GPUs."""
        from msgspec import structs

        from linkbound.links.live.rows import Flag

        disturbed = self._others and row.samples_s
        return structs.replace(row, flags=(*row.flags, Flag.BUSY)) if disturbed else row

    def begin_collective(self, title: str) -> None:
        self._collectives += 1
        self._say(f"collective {self._collectives}  {title}")

    def begin(self, cell: "Cell") -> None:
        self._progress.begin(cell)
        elapsed_s = time.monotonic() - self._started_s
        at = f"case {self._progress.done}/{self._progress.total}  {cell.title}"
        self._say(f"{at}  about {_clock(self._progress.left_s(elapsed_s))} left")

    def _say(self, words: str) -> None:
        elapsed_s = time.monotonic() - self._started_s
        if not self._live and elapsed_s - self._said_s < QUIET_LINE_S:
            return
        self._said_s = elapsed_s
        line = f"links  {words}  {_clock(elapsed_s)} elapsed"
        click.echo(f"\r\x1b[2K{line}" if self._live else line, err=True, nl=not self._live)

    def end(self) -> None:
        """Erase the live line and leave one that stays."""
        spent = _clock(time.monotonic() - self._started_s)
        cases = f"{self._progress.done} of {self._progress.total} cases"
        line = f"links  {cases} and {self._collectives} collectives in {spent}"
        click.echo(f"\r\x1b[2K{line}" if self._live else line, err=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def document(found: "Outcome", origin: "Origin") -> dict[str, Any]:
    """The one JSON document of --json: rows with all dimensions, and findings."""
    import msgspec

    return {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": origin.machine_id,
        "started": origin.started,
        "environment": dict(origin.environment),
        "rows": [row_document(one) for one in found.kept],
        "findings": msgspec.to_builtins(found.findings),
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
