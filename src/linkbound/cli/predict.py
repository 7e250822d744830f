"""`linkbound predict`: step times of splits, or a score of predictions against a runs file (E3)."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkbound.cli.options import (
    HELP,
    load_options,
    machine_option,
    override_option,
    read_machine_sources,
    to_loads,
    to_overrides,
)
from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.evidence.study import Study
    from linkbound.model.types import Load
    from linkbound.study.sources import Sources


@click.command("predict", context_settings=HELP)
@click.argument("model", required=False)
@machine_option
@load_options
@override_option
@click.option(
    "--score",
    "runs",
    type=click.Path(path_type=Path),
    metavar="RUNS.jsonl",
    help="Predict the points of a runs file, then compare.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "-C", "--study", "path", type=click.Path(path_type=Path), help="Keep the records here."
)
def command(
    model: str | None,
    machine: str | None,
    prompt: int,
    output: int,
    concurrency: str,
    override: tuple[str, ...],
    runs: Path | None,
    as_json: bool,
    path: Path | None,
) -> None:
    """Predict MODEL in every split and arm, or --score predictions against measured runs."""
    if (model is None) == (runs is None):
        raise UsageError(
            "predict needs a MODEL or --score RUNS.jsonl, and not both.",
            why="One asks for times, the other compares times with measurements.",
            hint="Write: linkbound predict llama-3.1-8b",
        )
    sources = read_machine_sources(machine)
    with _study(path) as study:
        if runs is not None:
            _score(study, sources, runs, as_json)
        elif model is not None:
            loads = to_loads(prompt, output, concurrency)
            _predict(study, sources, model, loads, to_overrides(override), as_json)


@contextmanager
def _study(path: Path | None) -> "Iterator[Study]":
    """The named study, or one that is gone afterwards."""
    from linkbound.evidence.study import Study

    if path is not None:
        with Study.open_or_create(path) as study:
            yield study
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Study.create(Path(folder) / "predict.linkbound") as study,
    ):
        yield study


def _score(study: "Study", sources: "Sources", runs: Path, as_json: bool) -> None:
    from linkbound.report.score_document import render_score_json
    from linkbound.report.score_text import render_score
    from linkbound.study.scoring import score_file
    from linkbound.study.stages import prepare

    prepare(study, sources)
    found = score_file(study, sources, runs)
    name = f"the recorded machine {sources.name}" if sources.recorded else "this host"
    if as_json:
        click.echo(render_score_json(found, sources.name))
    else:
        click.echo(render_score(found, name))


def _predict(
    study: "Study",
    sources: "Sources",
    model: str,
    loads: "tuple[Load, ...]",
    overrides: dict[str, str],
    as_json: bool,
) -> None:
    from linkbound.report.predictions import render_predictions, render_predictions_json
    from linkbound.study.gather import gather
    from linkbound.study.stages import request, run_stages

    asked = request(model, sources, loads, overrides)
    run_stages(study, asked, lambda _stage, _held: None)
    report = gather(study, sources.name, model, asked.loads)
    click.echo(render_predictions_json(report) if as_json else render_predictions(report))
