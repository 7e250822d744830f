"""`linkbound serve`: a real engine under real load, splits and arms in turn (P2, D2)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from linkbound.cli.given import refuse_given
from linkbound.cli.options import (
    HELP,
    POSITIVE,
    arrival_options,
    contender_options,
    request_options,
    seed_option,
    slo_option,
    stem,
)
from linkbound.cli.serve_plan import plan_run, read_file, refuse_beside
from linkbound.cli.serve_reduce import serve_reduce
from linkbound.cli.serve_tables import comparison_lines, foreign_lines, launch_lines, traffic_lines
from linkbound.cli.studies import SHOWN_DIGITS, SUFFIX, echo_json, printable
from linkbound.errors import Interrupted, LinkboundError, UsageError

if TYPE_CHECKING:
    from linkbound.evidence.study import Study
    from linkbound.evidence.types import Record
    from linkbound.serve.contenders import ServeRun
    from linkbound.serve.load_types import ClientLimit

SCHEMA = "linkbound.serve"
VERSION = 1


@click.command("serve", context_settings=HELP)
@click.argument("model", required=False)
@click.option("--engine", "engine_name", default="vllm", show_default=True, help="See --list.")
@click.option("--list", "list_engines", is_flag=True, help="List engines, arms, scheduler rules.")
@contender_options("one, tp2, pp2, x2; 'tp2 nccl' in that arm alone", "one")
@arrival_options
@click.option("--batch", "batches", metavar="LIST", help="Whole batches: 1,8,128x128,1x8192+1.")
@click.option(
    "--calls",
    default=3,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Timed calls of a batch: so many with one token, so many with all.",
)
@click.option("--all-reduce", is_flag=True, help="Time the engine's own all-reduce over --gpus.")
@click.option("--twin", "twins", multiple=True, help="Run the shard of a split alone; repeatable.")
@click.option(
    "--side-by-side",
    is_flag=True,
    help="Start every contender at once; they share the memory and take turns.",
)
@click.option(
    "--runs",
    "runs_file",
    type=click.Path(path_type=Path),
    help="Also write the batches as a runs file, with the models' configurations beside it.",
)
@request_options(100, p99_requests=1000)
@click.option(
    "--repeats",
    default=2,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Turns of every split and arm, in the order ABBA.",
)
@slo_option
@click.option(
    "--warm-up",
    default=2,
    show_default=True,
    type=click.IntRange(0, 10**4),
    help="Requests before each cell: kept, not counted.",
)
@click.option(
    "--limit",
    "limit_s",
    default=300.0,
    show_default=True,
    type=POSITIVE,
    help="Seconds that a request may take.",
)
@click.option(
    "--ready-limit",
    "ready_limit_s",
    default=600.0,
    show_default=True,
    type=POSITIVE,
    help="Seconds that a start may take.",
)
@seed_option
@click.option("--vocabulary", default="100,512", show_default=True, help="Range of token ids.")
@click.option("--gpus", help="Ordinals in rank order: 0,1. Needed to split over GPUs.")
@click.option("--sequences", type=click.IntRange(1, 10**5), help="At once in a server [its rule].")
@click.option("--dummy-weights", is_flag=True, help="Random weights, where the engine can.")
@click.option("--program", help="Program to start instead of the engine's usual one.")
@click.option("--extra", multiple=True, help="One more flag for the engine; repeatable.")
@click.option("--url", "urls", multiple=True, help="Address of a running server; repeatable.")
@click.option("--label", help="What was started at --url.")
@click.option(
    "--import",
    "imports",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read a run of vllm bench, guidellm or aiperf instead; repeatable.",
)
@click.option("--allow-multicast", is_flag=True, help="Leave NVLink multicast to the engine.")
@click.option("-C", "--study", "path", type=click.Path(path_type=Path), help="Study file.")
@click.option("--dry-run", is_flag=True, help="Show every command and environment; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    model: str | None,
    engine_name: str,
    list_engines: bool,
    imports: tuple[Path, ...],
    path: Path | None,
    dry_run: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Load MODEL on an engine, in every split and arm, and compare them.

    Records go into NAME.linkbound here, or into -C FILE; the same command again goes on.
    """
    from linkbound.serve.engines import ENGINES
    from linkbound.serve.engines.listing import render_engines

    if list_engines:
        refuse_beside("list_engines")
        click.echo(render_engines(ENGINES.values()))
        return
    if imports:
        refuse_beside("imports")
        _import(imports, path)
        return
    if engine_name not in ENGINES:
        raise UsageError(
            f"There is no engine '{engine_name}'.",
            why="Each has an adapter of its own.",
            hint=f"Take one of {', '.join(ENGINES)}.",
        )
    engine = ENGINES[engine_name]
    if asked.pop("all_reduce"):
        refuse_beside("all_reduce")
        serve_reduce(engine, model, asked, path or Path(f"all-reduce{SUFFIX}"), as_json)
        return
    run = plan_run(model, engine, asked)
    if dry_run:
        refuse_given(
            ("as_json",),
            "--dry-run prints commands",
            why="They are there to be read, and run by hand.",
            hint="Leave one of the two out.",
        )
        click.echo("\n".join(launch_lines(run)))
        return
    path = path or Path(f"{stem(run.model)}.linkbound")
    if engine.takes_batches:
        _serve_batches(run, path, asked["runs_file"], as_json)
    else:
        _serve(run, path, as_json)


def _import(files: tuple[Path, ...], path: Path | None) -> None:
    from linkbound.evidence.study import Study
    from linkbound.serve.import_runs import foreign_record, parse_foreign

    read = [(data, parse_foreign(data, str(file))) for file in files for data in (read_file(file),)]
    click.echo("\n".join(foreign_lines(tuple(run for _, runs in read for run in runs))))
    if path is not None:
        with Study.open_or_create(path) as study:
            for data, runs in read:
                blob = study.add_blob(data)
                study.append_many(foreign_record(run, blob) for run in runs)


def _serve(run: "ServeRun", path: Path, as_json: bool) -> None:
    import msgspec

    from linkbound.evidence.study import Study
    from linkbound.serve.compare_runs import (
        comparison_record,
        differences_of,
        rows_of,
        slower_findings,
    )
    from linkbound.serve.held import held_records
    from linkbound.serve.serving import run_serving
    from linkbound.serve.traffic_rows import traffic_rows

    def say(text: str) -> None:
        click.echo(printable(text), err=True)

    with Study.open_or_create(path) as study:
        say("client: measuring what it can follow, on a mock server")
        run = msgspec.structs.replace(run, machine=_machine(study, run))
        interrupted = False
        try:
            run_serving(study, run, _client_limit(run), say)
        except KeyboardInterrupt:
            # What was measured is compared all the same.
            interrupted = True
        rows = rows_of(held_records(study, run))
        if interrupted and not rows:
            raise KeyboardInterrupt
        differences = differences_of(rows)
        findings = slower_findings(rows)
        traffic = traffic_rows(held_records(study, run, "serve.traffic"))
        subject = {"engine": run.engine, "model": run.model}
        compared = comparison_record(rows, differences, findings, subject, traffic)
        record_id = study.append(compared)
    if as_json:
        _show_json(run, record_id, compared)
    else:
        click.echo("\n".join(comparison_lines(rows, differences, findings)))
        click.echo("\n".join(traffic_lines(traffic)), nl=bool(traffic))
        click.echo(f"record {record_id[:SHOWN_DIGITS]}")
    if interrupted:
        raise Interrupted("Stopped.", hint=f"{path} keeps what was measured; run again.")
    _wrote(path, any(row.figures for row in rows), "serve.load")


def _serve_batches(run: "ServeRun", path: Path, runs_file: Path | None, as_json: bool) -> None:
    import msgspec

    from linkbound.cli.serve_batches import serve_batches
    from linkbound.evidence.study import Study

    with Study.open_or_create(path) as study:
        run = msgspec.structs.replace(run, machine=_machine(study, run))
        has_figures = serve_batches(study, run, runs_file, as_json)
    _wrote(path, has_figures, "serve.run")


def _wrote(path: Path, has_figures: bool, kind: str) -> None:
    click.echo(f"Wrote {path}", err=True)
    if not has_figures:
        raise LinkboundError(
            "No cell has figures.",
            why="Nothing can be compared.",
            hint=f"See why: linkbound show {kind} -C {path}",
        )


def _machine(study: "Study", run: "ServeRun") -> str | None:
    """This host's fingerprint, its map kept in the study; None without GPUs, or for an address."""
    from linkbound.study.importing import import_topology
    from linkbound.study.sources import read_host

    host = None if run.urls else read_host()
    return None if host is None else study.get(import_topology(study, host)).machine


def _client_limit(run: "ServeRun") -> "ClientLimit":
    from linkbound.serve.client_limit import AMPLE, measure_client_limit

    # A closed loop's pace is the engine's: nothing says beforehand how much is enough.
    asked = [
        None if cell.rate_per_s is None else AMPLE * cell.rate_per_s * cell.output_tokens
        for cell in run.cells
    ]
    known = [pace for pace in asked if pace is not None]
    return measure_client_limit(
        enough_chunks_per_s=max(known) if len(known) == len(asked) else None
    )


def _show_json(run: "ServeRun", record_id: str, compared: "Record") -> None:
    from linkbound.evidence.types import Derived

    assert isinstance(compared.outcome, Derived)
    echo_json(
        {
            "schema": SCHEMA,
            "version": VERSION,
            "engine": run.engine,
            "model": run.model,
            "record_id": record_id,
            **compared.outcome.values,
        }
    )
