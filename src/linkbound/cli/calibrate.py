"""`linkbound calibrate`: a short run of an engine becomes the constants of predictions (D5)."""

from pathlib import Path

import click

from linkbound.cli.options import HELP, machine_option, read_machine_sources
from linkbound.cli.studies import open_study
from linkbound.errors import LinkboundError


@click.command("calibrate", context_settings=HELP)
@click.argument("runs", required=False, metavar="[RUNS.jsonl]", type=click.Path(path_type=Path))
@click.option(
    "--engine",
    type=click.Choice(["vllm"]),
    default="vllm",
    show_default=True,
    help="Whose runs they are.",
)
@machine_option
@click.option(
    "--tag", "tags", multiple=True, help="Only runs of this tag; repeatable [all on one GPU]."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "-C",
    "--study",
    "path",
    type=click.Path(path_type=Path),
    help="Keep runs and constants here: predictions in this study rest on them.",
)
def command(
    runs: Path | None,
    engine: str,
    machine: str | None,
    tags: tuple[str, ...],
    as_json: bool,
    path: Path | None,
) -> None:
    """Calibrate a machine's constants with RUNS.jsonl, or with the runs that -C measured.

    One short run of the engine on one GPU is enough: linkbound serve MODEL --engine vllm-offline
    --split one -C FILE, then linkbound calibrate -C FILE.
    """
    from linkbound.report.calibration_text import calibration_lines, render_calibration_json
    from linkbound.study.choosing import calibrate_with

    sources = read_machine_sources(machine)
    made = path is not None and not path.exists()
    try:
        with open_study(path) as study:
            found = calibrate_with(study, sources, engine, runs, tags)
    except LinkboundError:
        if path is not None and made:
            # It would hold the machine, and no constants of these runs.
            path.unlink(missing_ok=True)
        raise
    name = f"the recorded machine {found.machine}" if found.recorded else "this host"
    shown = (found.runs, found.used, found.before, found.after)
    if as_json:
        click.echo(render_calibration_json(found.machine, *shown, found.record_id))
        return
    click.echo("\n".join(calibration_lines(name, *shown)))
    click.echo("Kept nowhere: name a study with -C." if path is None else f"Wrote {path}")
