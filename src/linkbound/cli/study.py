"""`linkbound study MODEL`: every stage, then the verdict and the path of the page (E1, D1)."""

from pathlib import Path

import click

from linkbound.cli.options import (
    HELP,
    load_options,
    machine_option,
    min_gain_option,
    override_option,
    read_machine_sources,
    stem,
    to_loads,
    to_overrides,
    write_text,
)
from linkbound.errors import UsageError


@click.command("study", context_settings=HELP)
@click.argument("model")
@machine_option
@load_options
@override_option
@min_gain_option("Least gain to keep.")
@click.option(
    "--until",
    type=click.Choice(["topology", "links", "model", "splits", "serve", "predict", "verdict"]),
    default="verdict",
    show_default=True,
    help="Last stage to run; run again to go on.",
)
@click.option("-C", "--study", "path", type=click.Path(path_type=Path), help="Study file.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    model: str,
    machine: str | None,
    prompt: int,
    output: int,
    concurrency: str,
    override: tuple[str, ...],
    min_gain: float,
    until: str,
    path: Path | None,
    quiet: bool,
) -> None:
    """Study MODEL: a bundled name, a folder with config.json, a config.json or a GGUF file.

    Writes NAME.linkbound (the evidence) and NAME.html (the page) here. The last line of the output
    is the page's path. Exit 4 where wrong bytes or a hang were seen on this machine's links.
    """
    from linkbound.evidence.study import Study
    from linkbound.report.html import render_html
    from linkbound.report.text import render_verdict_text
    from linkbound.study.faults import refuse_faults
    from linkbound.study.gather import gather
    from linkbound.study.markers import Stage
    from linkbound.study.stages import request, run_stages

    sources = read_machine_sources(machine)
    asked = request(
        model, sources, to_loads(prompt, output, concurrency), to_overrides(override), min_gain
    )
    file = path or Path(f"{stem(model)}-on-{stem(sources.name)}.linkbound")
    page = _page_beside(file)

    def progress(stage: Stage, held: bool) -> None:
        if not quiet:
            click.echo(f"{stage.value}: {'already there' if held else 'running'}", err=True)

    with Study.open_or_create(file) as study:
        run_stages(study, asked, progress, Stage(until))
        if until != Stage.VERDICT.value:
            click.echo(f"Stopped after {until}. Look: linkbound show -C {file}", err=True)
            click.echo(str(file))
            return
        report = gather(study, sources.name, model, asked.loads)
        write_text(page, render_html(report))
        click.echo(render_verdict_text(report))
        click.echo(str(page))
        refuse_faults(study, sources.name)


def _page_beside(file: Path) -> Path:
    if not file.name or file.suffix == ".html":
        raise UsageError(
            f"-C '{file}' is no name for a study.",
            why="The page is written beside it, under its name with .html.",
            hint="Write -C NAME.linkbound.",
        )
    # Not with_suffix: "a-3.1-8b" would lose its "-8b" and share a page with "a-3.1-70b".
    return file.with_name(file.name.removesuffix(".linkbound") + ".html")
