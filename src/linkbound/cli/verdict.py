"""`linkbound verdict`: the verdicts of a study; `--gate` turns them into an exit code (D1)."""

from pathlib import Path

import click

from linkbound.cli.options import HELP
from linkbound.cli.studies import locate_study, study_option

GATE_REJECT, GATE_UNDECIDED = 10, 11


@click.command("verdict", context_settings=HELP)
@study_option
@click.option("--gate", is_flag=True, help="Exit 0 keep, 10 reject, 11 undecided: the weakest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(study_path: Path | None, gate: bool, as_json: bool) -> int:
    """Print the verdicts that a study holds, of every model and machine, with their reasons.

    A load that no plan holds has no split to reject: it counts as undecided.
    """
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
