"""`linkbound report`: a study as text, Markdown, JSON or one HTML page; never measures (E2)."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkbound.cli.options import HELP, write_text
from linkbound.cli.studies import locate_study, printable, study_option
from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.report.types import Report

KINDS = {".txt": "text", ".md": "markdown", ".json": "json", ".html": "html"}


@click.command("report", context_settings=HELP)
@study_option
@click.option(
    "-o",
    "--output",
    multiple=True,
    metavar="FILE",
    help="Write FILE (.txt, .md, .json, .html by its name; - is text on stdout); repeatable.",
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def command(study_path: Path | None, output: tuple[str, ...], force: bool) -> None:
    """Render a study: text on stdout, or the files that are named.

    A study of several models or machines is rendered for the one that was judged last.
    """
    from linkbound.cli.reading import read_report

    path = locate_study(study_path)
    for name in output:
        _check(name, force)
    report, others = read_report(path)
    if others:
        said = f"{path} also holds verdicts of {', '.join(map(printable, others))}"
        click.echo(f"{said}: linkbound verdict -C {path} prints them.", err=True)
    for name in output or ("-",):
        text = _render(report, name)
        if name == "-":
            click.echo(text)
            continue
        write_text(Path(name), text)
        click.echo(f"Wrote {name}", err=True)


def _check(name: str, force: bool) -> None:
    if name == "-":
        return
    if Path(name).suffix.lower() not in KINDS:
        raise UsageError(
            f"-o {name} has none of the endings {', '.join(KINDS)}.",
            why="The ending says what to write.",
            hint="Write: linkbound report -o page.html",
        )
    if Path(name).exists() and not force:
        raise UsageError(
            f"{name} exists.", why="It would be lost.", hint="Add --force to overwrite it."
        )


def _render(report: "Report", name: str) -> str:
    from linkbound.report.document import render_json
    from linkbound.report.html import render_html
    from linkbound.report.markdown import render_markdown
    from linkbound.report.text import render_text

    match KINDS.get(Path(name).suffix.lower(), "text"):
        case "html":
            return render_html(report)
        case "json":
            return render_json(report)
        case "markdown":
            return render_markdown(report)
        case _:
            return render_text(report)
