"""`linkbound verdict`: the verdicts of a study; `--gate` turns them into an exit code (D1)."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkbound.cli.options import HELP, min_gain_option
from linkbound.cli.studies import locate_study, study_option
from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.study.supposing import Question

GATE_REJECT, GATE_UNDECIDED = 10, 11


@click.command("verdict", context_settings=HELP)
@study_option
@click.option("--gate", is_flag=True, help="Exit 0 keep, 10 reject, 11 undecided: the weakest.")
@click.option(
    "--what-if",
    "suppositions",
    multiple=True,
    type=click.Choice(["p2p", "nccl", "staged", "net", "half-lanes"]),
    help="The verdict with this arm alone, or with half the lanes; repeatable.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="TIME,RATE",
    help="The verdict with direct links of 5us,200GB/s each way; repeatable.",
)
@click.option(
    "--links-of",
    "others",
    multiple=True,
    metavar="NAME|FILE|DIR",
    help="The verdict with the direct links of another machine; repeatable.",
)
@min_gain_option("Least gain to keep, in these questions [0.05].", None)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    study_path: Path | None,
    gate: bool,
    suppositions: tuple[str, ...],
    links: tuple[str, ...],
    others: tuple[str, ...],
    min_gain: float | None,
    as_json: bool,
) -> int:
    """Print the verdicts that a study holds, of every model and machine, with their reasons.

    A load that no plan holds has no split to reject: it counts as undecided. With --what-if, --link
    or --links-of, the verdicts of the last model again with other links: predicted, links stated.
    """
    questions = _questions(suppositions, links, others)
    if questions:
        if gate:
            raise UsageError(
                "--gate has no effect on a question.",
                why="It is about the verdicts that the study holds.",
                hint="Leave out one of the two.",
            )
        _suppose(locate_study(study_path), questions, min_gain, as_json)
        return 0
    if min_gain is not None:
        raise UsageError(
            "--min-gain has no effect on verdicts that are made.",
            why="It is an option of `linkbound study`, and here of questions.",
            hint="Add --what-if, --link or --links-of.",
        )
    from linkbound.cli.reading import no_verdict, read_rate_verdicts, read_reports
    from linkbound.report.simulations import render_rate_verdicts
    from linkbound.report.text import render_verdict_text
    from linkbound.report.verdict_document import render_verdict_json
    from linkbound.verdict.types import Answer

    path = locate_study(study_path)
    rates = read_rate_verdicts(path)
    # A study of `simulate` alone has verdicts of rates, and no report.
    reports = read_reports(path)
    if not (reports or rates):
        raise no_verdict(path)
    if as_json:
        click.echo(render_verdict_json(reports, rates))
    else:
        parts = [render_verdict_text(one) for one in reports]
        click.echo("\n".join([*parts, *([render_rate_verdicts(rates)] if rates else [])]))
    answers = {one.verdict.answer for report in reports for one in report.loads}
    answers |= {each.answer for one in rates for each in one.comparisons}
    if not gate or answers == {Answer.KEEP}:
        return 0
    return GATE_REJECT if Answer.REJECT in answers else GATE_UNDECIDED


def _questions(
    suppositions: tuple[str, ...], links: tuple[str, ...], others: tuple[str, ...]
) -> "list[Question]":
    from linkbound.links.types import Arm
    from linkbound.study.supposing import HALF_LANES, Question, parse_link

    found = [
        Question(half=True) if one == HALF_LANES else Question(arm=Arm(one)) for one in suppositions
    ]
    found += [Question(link=parse_link(one)) for one in links]
    return [*found, *(Question(other=one) for one in others)]


def _suppose(
    path: Path, questions: "list[Question]", min_gain: float | None, as_json: bool
) -> None:
    from linkbound.cli.reading import last_judged
    from linkbound.evidence.study import Study
    from linkbound.report.what_if_text import render_what_if, render_what_if_json
    from linkbound.study.reading import read_machine_record
    from linkbound.study.supposing import suppose
    from linkbound.verdict.compare import MIN_GAIN

    least = MIN_GAIN if min_gain is None else min_gain
    with Study.open(path) as study:
        machine, model, loads = last_judged(study, path)
        recorded = read_machine_record(study, machine).recorded
        found = suppose(study, machine, model, loads, questions, least)
    if as_json:
        click.echo(render_what_if_json(found, machine, recorded, model))
    else:
        where = f"the recorded machine {machine}" if recorded else "this host"
        click.echo(render_what_if(found, f"{model} on {where}"))
