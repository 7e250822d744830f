"""`linkbound export`: what a study holds, for other programs (E2)."""

from pathlib import Path

import click

from linkbound.cli.options import HELP, write_text
from linkbound.cli.studies import locate_study, study_option
from linkbound.errors import UsageError

_TABLES = ("curves", "calls", "verdicts", "score")


@click.group("export", context_settings=HELP)
def command() -> None:
    """Write a study's figures for other programs; `linkbound report -o FILE.json` writes all of it.

    Figures keep their unit in their name and their record's id beside them.
    """


_output = click.option(
    "-o",
    "--output",
    default="-",
    show_default=True,
    metavar="FILE",
    help="Write FILE; - is stdout.",
)


@command.command("csv")
@study_option
@click.option(
    "--table",
    type=click.Choice(_TABLES),
    default="curves",
    show_default=True,
    help="Links' curves, predicted calls, gains of verdicts, or scores.",
)
@_output
def csv_command(study_path: Path | None, table: str, output: str) -> None:
    """Write one table as CSV, times in seconds."""
    from linkbound.evidence.study import Study
    from linkbound.report.tables import render_csv
    from linkbound.study.exporting import export_table

    with Study.open(locate_study(study_path)) as study:
        text = render_csv(export_table(study, table))
    _write(output, text)


@command.command("prometheus")
@study_option
@_output
def prometheus_command(study_path: Path | None, output: str) -> None:
    """Write all tables as gauges in Prometheus' text format, for a textfile collector."""
    from linkbound.evidence.study import Study
    from linkbound.report.tables import render_prometheus
    from linkbound.study.exporting import export_tables

    with Study.open(locate_study(study_path)) as study:
        text = render_prometheus(export_tables(study))
    _write(output, text)


@command.command("aiconfigurator")
@study_option
@click.option(
    "--systems",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="aiconfigurator_core/systems of an installed AIConfigurator 0.12.0.",
)
@click.option("--system", required=True, help="Whose tables to start from: h200_sxm.")
@click.option(
    "--arm",
    type=click.Choice(["p2p", "nccl", "staged", "net"]),
    default="nccl",
    show_default=True,
    help="Whose all-reduces to write.",
)
@click.option(
    "--version",
    default="0.24.0",
    show_default=True,
    help="Of vLLM: the table that is replaced.",
)
@click.option("--machine", help="Machine of the study [the first].")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="New folder for --systems-paths.",
)
def aiconfigurator_command(
    study_path: Path | None,
    systems: Path,
    system: str,
    arm: str,
    version: str,
    machine: str | None,
    output: Path,
) -> None:
    """Write AIConfigurator's systems directory with the all-reduces that were measured here.

    Only measured times are written; linkbound.json beside them names their records.
    """
    from linkbound.evidence.study import Study
    from linkbound.links import Arm
    from linkbound.study.aiconfigurator import export_systems
    from linkbound.study.exporting import machines_of

    with Study.open(locate_study(study_path)) as study:
        known = machines_of(study)
        if machine is not None and machine not in known:
            raise UsageError(
                f"The study has no machine '{machine}'.",
                why="Its curves are exported.",
                hint=f"It has {', '.join(known)}.",
            )
        found = export_systems(
            study,
            machine or known[0],
            Arm(arm),
            systems=systems,
            system=system,
            version=version,
            out=output,
        )
    for line in found.not_measured:
        click.echo(f"Not measured, so left out: all-reduces of {line}.", err=True)
    click.echo(
        f"{len(found.rows)} all-reduces of {found.machine}, arm {arm}, in {found.table}.\n"
        f"aiconfigurator cli estimate --systems-paths {output} --system {system} ..."
    )


def _write(output: str, text: str) -> None:
    if output == "-":
        click.echo(text, nl=False)
        return
    if Path(output).exists():
        raise UsageError(f"{output} exists.", why="It would be lost.", hint="Name another file.")
    write_text(Path(output), text)
    click.echo(f"Wrote {output}", err=True)
