"""`linkbound predict`: step times of splits, frozen before they are measured, scored after (E3)."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkbound.cli.freezing import check_freezing, freeze_option, frozen_option, keep_frozen
from linkbound.cli.given import refuse_given
from linkbound.cli.options import (
    HELP,
    load_options,
    machine_option,
    override_option,
    read_machine_sources,
    to_loads,
    to_overrides,
)
from linkbound.cli.studies import open_study
from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.evidence.study import Study
    from linkbound.model.types import Load
    from linkbound.study.sources import Sources


_ASKED = ("prompt", "output", "concurrency", "override")


@click.command("predict", context_settings=HELP)
@click.argument("model", required=False)
@machine_option
@load_options
@override_option
@click.option(
    "--points",
    type=click.Path(path_type=Path),
    metavar="RUNS.jsonl",
    help="Predict the points of a runs file, whose times are not read; needs --freeze.",
)
@freeze_option
@click.option(
    "--score",
    "measured",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Compare predictions with a runs file, or with --frozen with a study too.",
)
@frozen_option
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
    points: Path | None,
    freeze_file: Path | None,
    measured: Path | None,
    frozen_file: Path | None,
    as_json: bool,
    path: Path | None,
) -> None:
    """Predict MODEL in every split and arm, or --score predictions against measured runs."""
    _check(model, points, freeze_file, measured, frozen_file)
    with open_study(path) as study:
        if measured is not None and frozen_file is not None:
            _score_frozen(study, frozen_file, measured, as_json)
            return
        sources = read_machine_sources(machine)
        if measured is not None:
            _score(study, sources, measured, as_json)
        elif points is not None and freeze_file is not None:
            _freeze_points(study, sources, points, freeze_file, as_json)
        elif model is not None:
            loads = to_loads(prompt, output, concurrency)
            asked = (model, loads, to_overrides(override))
            _predict(study, sources, asked, freeze_file, as_json)


def _check(
    model: str | None,
    points: Path | None,
    freeze_file: Path | None,
    measured: Path | None,
    frozen_file: Path | None,
) -> None:
    """Raises UsageError where options do not go together."""
    if sum(one is not None for one in (model, points, measured)) != 1:
        raise UsageError(
            "predict needs one of MODEL, --points RUNS.jsonl and --score FILE.",
            why="Two ask for times, the last compares times with measurements.",
            hint="Write: linkbound predict llama-3.1-8b",
        )
    if points is not None and freeze_file is None:
        raise UsageError(
            "--points needs --freeze FILE.",
            why="Predictions of points are there to be scored later.",
            hint="Add --freeze FILE, or write --score to compare with times that are in the file.",
        )
    check_freezing(freeze_file, measured, frozen_file)
    if model is None:
        file = "--score" if points is None else "--points"
        refuse_given(_ASKED, f"{file} is written", why="The rows of the file say what is asked.")
    if frozen_file is not None:
        refuse_given(
            ("machine",), "--frozen is written", why="A frozen set says which machine it is of."
        )


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


def _score_frozen(study: "Study", frozen_file: Path, measured: Path, as_json: bool) -> None:
    from linkbound.report.score_document import render_score_json
    from linkbound.report.score_text import render_score
    from linkbound.study.scoring_frozen import read_frozen, score_frozen

    frozen = read_frozen(frozen_file)
    if not frozen.content.predictions:
        raise UsageError(
            f"{frozen_file} holds loads over time, and no calls or steps.",
            why="`simulate` froze it, and compares it with what `serve` measured.",
            hint=f"Write: linkbound simulate MODEL --score STUDY --frozen {frozen_file}",
        )
    found = score_frozen(study, frozen, measured)
    render = render_score_json if as_json else render_score
    click.echo(render(found, frozen.content.machine))


def _freeze_points(
    study: "Study", sources: "Sources", points: Path, freeze_file: Path, as_json: bool
) -> None:
    from linkbound.study.freezing import freeze_points
    from linkbound.study.stages import prepare

    prepare(study, sources)
    keep_frozen(study, freeze_points(study, sources, points), freeze_file, as_json)


def _predict(
    study: "Study",
    sources: "Sources",
    asked: "tuple[str, tuple[Load, ...], dict[str, str]]",
    freeze_file: Path | None,
    as_json: bool,
) -> None:
    from linkbound.report.predictions import render_predictions, render_predictions_json
    from linkbound.study.freezing import freeze_model
    from linkbound.study.gather import gather
    from linkbound.study.stages import request, run_stages

    wanted = request(asked[0], sources, *asked[1:])
    run_stages(study, wanted, lambda _stage, _held: None)
    if freeze_file is not None:
        frozen = freeze_model(study, sources, wanted.model, wanted.loads)
        keep_frozen(study, frozen, freeze_file, as_json)
        return
    report = gather(study, sources.name, wanted.model, wanted.loads)
    click.echo(render_predictions_json(report) if as_json else render_predictions(report))
